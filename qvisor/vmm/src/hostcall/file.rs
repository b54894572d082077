//! Host files that are open, and the table of their handles.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};

use super::arguments::Handle;
use super::quota::{Held, Quota};
use super::reads::Reads;
use super::sockets::request::SocketKind;
use super::stream_kind::Stream;
use crate::errno::Errno;
use crate::lock::{Guard, Mutex, Rank};
use crate::process;
use crate::sys;

/// Descriptors that the table leaves to the rest of the VMM.
const RESERVED_DESCRIPTORS: u64 = 256;
/// Handles that programs leave to what comes in from outside: streams of exec'd processes, and views of new containers. Of
/// a small limit of open files it is an eighth.
const RESERVED_HANDLES: u64 = 1024;
/// Most handles, whatever the limit of open files is.
pub(super) const HANDLES_MAX: u64 = 1 << 20;

/// The object that a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    Regular,
    Directory,
    Link,
    /// A node that is never opened: device, pipe, socket.
    Node,
    /// A stream handed to the sandbox at its start.
    Stream(Stream),
    /// A socket that the sandbox made.
    Socket(SocketKind),
}

/// Traits that a file inherits from the mount it was found in.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountTraits {
    /// Must not change.
    pub(super) read_only: bool,
    /// The host opens no devices in it (`nodev`), so that opening by name does nothing else than that.
    pub(super) no_devices: bool,
    /// A volume: others see its files' locks.
    pub(super) is_volume: bool,
    /// The quota that bounds writes there; none: as much as the host has.
    pub(super) quota: Option<Arc<Quota>>,
}

/// An open host file.
#[derive(Debug)]
pub struct HostFile {
    fd: OwnedFd,
    kind: FileKind,
    /// Only names the node (`O_PATH`).
    path_only: bool,
    mount: MountTraits,
    /// Held while a directory's position is moved and read from.
    position: Mutex<()>,
    /// Its part of the quota's account.
    held: Option<Held>,
    /// The experience with reads of it: whether they have to wait for the disk.
    pub(super) reads: Reads,
}

impl Drop for HostFile {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            held.let_go(self.fd.as_fd());
        }
    }
}

impl HostFile {
    pub(super) fn new(
        fd: OwnedFd,
        kind: FileKind,
        path_only: bool,
        mount: MountTraits,
    ) -> Result<Self, Errno> {
        let held = mount.quota.as_ref().map(|quota| quota.hold(fd.as_fd())).transpose()?;
        Ok(Self::with(fd, kind, path_only, mount, held))
    }

    /// A file with its part of the account of its mount's quota, if that has one.
    pub(super) fn with(
        fd: OwnedFd,
        kind: FileKind,
        path_only: bool,
        mount: MountTraits,
        held: Option<Held>,
    ) -> Self {
        let position = Mutex::new(Rank::Position, ());
        Self { fd, kind, path_only, mount, position, held, reads: Reads::default() }
    }

    /// A file that was just made in `dir`.
    pub(super) fn made(fd: OwnedFd, dir: &Self) -> Result<Self, Errno> {
        let file = Self::new(fd, FileKind::Regular, false, dir.mount.clone())?;
        dir.quota().iter().for_each(|quota| quota.made(file.as_fd()));
        Ok(file)
    }

    pub(super) fn mount(&self) -> &MountTraits {
        &self.mount
    }

    /// Held while a directory's position is moved and read from.
    pub(super) fn lock_position(&self) -> Guard<'_, ()> {
        self.position.lock()
    }

    pub(crate) fn quota(&self) -> Option<&Arc<Quota>> {
        self.mount.quota.as_ref()
    }

    pub(super) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self.kind, FileKind::Stream(_))
    }

    #[must_use]
    pub fn is_path_only(&self) -> bool {
        self.path_only
    }

    /// `EROFS` when the file comes from a mount that must not change.
    pub fn check_writable(&self) -> Result<(), Errno> {
        if self.mount.read_only { Err(Errno(libc::EROFS)) } else { Ok(()) }
    }
}

impl AsFd for HostFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Handles and the files behind them.
#[derive(Debug)]
pub struct FileTable {
    slots: RwLock<Slots>,
    most: usize,
    /// Most handles in use with which a program still gets one.
    most_for_programs: usize,
}

#[derive(Debug, Default)]
struct Slots {
    files: Vec<Option<Arc<HostFile>>>,
    free: Vec<Handle>,
    /// Numbers of files that a former VMM had open, and that have none yet.
    absent: BTreeSet<Handle>,
    /// They are being placed.
    is_placing: bool,
}

impl Slots {
    fn in_use(&self) -> usize {
        self.files.len() - self.free.len() - self.absent.len()
    }
}

impl FileTable {
    pub(super) fn new() -> Self {
        Self::within(process::raise_open_files())
    }

    /// For so many open files of the process.
    fn within(open_files: u64) -> Self {
        let most = open_files.saturating_sub(RESERVED_DESCRIPTORS).clamp(64, HANDLES_MAX);
        let reserve = RESERVED_HANDLES.min(open_files / 8).min(most / 2);
        let number = |count: u64| usize::try_from(count).unwrap_or(64);
        Self { slots: RwLock::default(), most: number(most), most_for_programs: number(most - reserve) }
    }

    /// Most handles that are in use when a program gets another one.
    #[must_use]
    pub fn most_for_programs(&self) -> u32 {
        u32::try_from(self.most_for_programs).unwrap_or(u32::MAX)
    }

    /// The file behind a handle; `EBADF` when there is none.
    pub fn get(&self, handle: Handle) -> Result<Arc<HostFile>, Errno> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let slot = usize::try_from(handle).ok().and_then(|at| slots.files.get(at));
        slot.and_then(Option::as_ref).cloned().ok_or(Errno(libc::EBADF))
    }

    /// The files whose writes are not all measured yet.
    pub(super) fn pending(&self) -> Vec<Arc<HostFile>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let is_pending = |file: &&Arc<HostFile>| file.held().is_some_and(Held::is_pending);
        slots.files.iter().flatten().filter(is_pending).cloned().collect()
    }

    /// How many handles are in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).in_use()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives a directory (or a single file) that the sandbox mounts; the descriptor names it with `O_PATH`.
    pub fn adopt_mount(&self, fd: OwnedFd) -> Result<Handle, Errno> {
        self.adopt(fd, false, None, false)
    }

    /// Gives a mount as [`FileTable::adopt_mount`] does, for a volume: its files' locks are the host's as well.
    pub fn adopt_volume(&self, fd: OwnedFd, read_only: bool) -> Result<Handle, Errno> {
        self.adopt(fd, read_only, None, true)
    }

    /// Gives a mount as [`FileTable::adopt_mount`] does, for a view whose size a quota bounds.
    pub fn adopt_counted_mount(&self, fd: OwnedFd, quota: &Arc<Quota>) -> Result<Handle, Errno> {
        self.adopt(fd, false, Some(Arc::clone(quota)), false)
    }

    /// Gives a mount as [`FileTable::adopt_mount`] does, for one that must not change.
    pub fn adopt_read_only_mount(&self, fd: OwnedFd) -> Result<Handle, Errno> {
        self.adopt(fd, true, None, false)
    }

    /// Gives an open file that the kernel reads.
    pub fn adopt_text(&self, fd: OwnedFd) -> Result<Handle, Errno> {
        self.adopt(fd, true, None, false)
    }

    fn adopt(
        &self,
        fd: OwnedFd,
        read_only: bool,
        quota: Option<Arc<Quota>>,
        is_volume: bool,
    ) -> Result<Handle, Errno> {
        let path_only = sys::status_flags(fd.as_fd())? & libc::O_PATH != 0;
        let kind = kind_of(fd.as_fd())?;
        let no_devices = sys::has_no_devices(fd.as_fd())?;
        let mount = MountTraits { read_only, no_devices, is_volume, quota };
        self.insert(HostFile::new(fd, kind, path_only, mount)?)
    }

    /// Adds a file that a program has opened; `ENFILE` when only the reserve is left.
    pub(super) fn insert_for_program(&self, file: HostFile) -> Result<Handle, Errno> {
        self.insert_within(file, self.most_for_programs)
    }

    /// Adds a file that came from outside, for which there is a reserve.
    pub(super) fn insert(&self, file: HostFile) -> Result<Handle, Errno> {
        self.insert_within(file, self.most)
    }

    fn insert_within(&self, file: HostFile, most: usize) -> Result<Handle, Errno> {
        let file = Some(Arc::new(file));
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if slots.in_use() >= most {
            return Err(Errno(libc::ENFILE));
        }
        if let Some(handle) = slots.free.pop() {
            slots.files[handle as usize] = file;
            return Ok(handle);
        }
        let handle = Handle::try_from(slots.files.len()).map_err(|_| Errno(libc::ENFILE))?;
        slots.files.push(file);
        Ok(handle)
    }

    /// Looks at the files by their handles, and at the handles that are free.
    pub(super) fn look<T>(&self, look: impl FnOnce(&[Option<Arc<HostFile>>], &[Handle]) -> T) -> T {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        look(&slots.files, &slots.free)
    }

    /// The table with these files by their handles, and the handles of them that are free.
    pub(super) fn with(self, files: Vec<Option<Arc<HostFile>>>, free: Vec<Handle>) -> Self {
        Self { slots: RwLock::new(Slots { files, free, ..Slots::default() }), ..self }
    }

    /// The end of the handles that there have been.
    #[must_use]
    pub fn end(&self) -> Handle {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        Handle::try_from(slots.files.len()).unwrap_or(Handle::MAX)
    }

    /// Leaves the numbers below `first` to files that a former VMM had open: they are absent until they are placed. Called once, before
    /// there is any handle. `ENFILE`: there are more than a table may have.
    pub(super) fn begin_above(&self, first: Handle) -> Result<(), Errno> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if u64::from(first) > HANDLES_MAX || !slots.files.is_empty() {
            return Err(Errno(libc::ENFILE));
        }
        slots.files.resize_with(first as usize, || None);
        (slots.absent, slots.is_placing) = ((0..first).collect(), true);
        Ok(())
    }

    /// Moves a file to a number that is absent.
    pub(super) fn place(&self, from: Handle, to: Handle) -> Result<(), Errno> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if !slots.absent.contains(&to) {
            return Err(Errno(libc::EINVAL));
        }
        let file = slots.files.get_mut(from as usize).and_then(Option::take).ok_or(Errno(libc::EBADF))?;
        slots.absent.remove(&to);
        slots.free.push(from);
        slots.files[to as usize] = Some(file);
        Ok(())
    }

    /// Whether files of a former VMM are being placed.
    pub(super) fn is_placing(&self) -> bool {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).is_placing
    }

    /// Nothing more is placed: what is absent still is free.
    pub(super) fn end_placing(&self) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.is_placing = false;
        let absent = std::mem::take(&mut slots.absent);
        slots.free.extend(absent.into_iter().rev());
    }

    pub(super) fn remove(&self, handle: Handle) -> Result<Arc<HostFile>, Errno> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = usize::try_from(handle).ok().and_then(|at| slots.files.get_mut(at));
        let Some(file) = slot.and_then(Option::take) else {
            if slots.absent.remove(&handle) {
                slots.free.push(handle);
            }
            return Err(Errno(libc::EBADF));
        };
        slots.free.push(handle);
        Ok(file)
    }
}

/// The type of the node behind a descriptor.
pub(super) fn kind_of(fd: BorrowedFd<'_>) -> Result<FileKind, Errno> {
    Ok(match u32::from(sys::statx(fd, c"")?.stx_mode) & libc::S_IFMT {
        libc::S_IFREG => FileKind::Regular,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Link,
        _ => FileKind::Node,
    })
}

/// Names a node without opening it.
pub(crate) fn open_node(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> Result<OwnedFd, Errno> {
    sys::openat(dir, name, flags | libc::O_PATH | libc::O_NOFOLLOW, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> HostFile {
        let fd = std::fs::File::open("/dev/null").unwrap().into();
        HostFile::new(fd, FileKind::Node, false, MountTraits::default()).unwrap()
    }

    #[test]
    fn programs_leave_handles_to_what_comes_in_from_outside() {
        process::raise_open_files();
        let files = FileTable::within(512);
        assert_eq!((files.most, files.most_for_programs()), (256, 192));
        let of_programs: Vec<_> = (0..192).map(|_| files.insert_for_program(null()).unwrap()).collect();
        assert_eq!(files.insert_for_program(null()), Err(Errno(libc::ENFILE)));
        let from_outside: Vec<_> = (0..64).map(|_| files.insert(null()).unwrap()).collect();
        assert_eq!(files.insert(null()), Err(Errno(libc::ENFILE)));
        // A place that is free is no more a program's than a new one.
        files.remove(from_outside[0]).unwrap();
        files.remove(of_programs[0]).unwrap();
        assert_eq!(files.insert_for_program(null()), Err(Errno(libc::ENFILE)));
        assert!(files.insert(null()).is_ok());
    }

    #[test]
    fn a_file_takes_a_number_that_is_absent_and_no_other() {
        let files = FileTable::within(512);
        files.begin_above(3).unwrap();
        assert_eq!((files.len(), files.end()), (0, 3));
        let [one, other] = [(); 2].map(|()| files.insert(null()).unwrap());
        assert_eq!((one, other), (3, 4));
        assert_eq!([3, 5, Handle::MAX].map(|to| files.place(one, to)), [Err(Errno(libc::EINVAL)); 3]);
        assert_eq!(files.place(9, 1), Err(Errno(libc::EBADF)));
        files.place(one, 1).unwrap();
        assert_eq!(files.place(other, 1), Err(Errno(libc::EINVAL)));
        assert!(files.get(1).is_ok() && files.get(one).is_err());
        // One that nobody wants any more.
        assert!(files.remove(2).is_err());
        assert_eq!((files.insert(null()), files.insert(null())), (Ok(2), Ok(3)));
        files.end_placing();
        assert_eq!(files.place(other, 0), Err(Errno(libc::EINVAL)));
        assert_eq!((files.insert(null()), files.len()), (Ok(0), 5));
        assert!(files.begin_above(1).is_err());
    }

    #[test]
    fn of_many_open_files_the_reserve_is_a_small_part() {
        let files = FileTable::within(20_000);
        assert_eq!((files.most, files.most_for_programs()), (19_744, 18_720));
        assert_eq!(FileTable::within(1 << 30).most_for_programs(), (1 << 20) - 1024);
        assert!(FileTable::within(0).most_for_programs() > 0);
    }
}
