//! Host files: the table of handles, opening, and changes to directories.
//!
//! The guest walks; the VMM opens one component at a time, never following a link. A component is a single name, so
//! `O_NOFOLLOW` alone keeps a walk below its directory. Mount points below a mount that the guest was given are
//! crossed as any directory is; what is mounted there is decided when the mounts are made (they are copied without
//! what lies below them), not here.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use abi::hostcall::HostCall;

use super::decode::{Handle, Name, Request, decode};
use super::guest::{GuestMemory, GuestSlice};
use super::quota::{Held, Need, Quota};
use super::sockets::SocketKind;
use super::streams::Stream;
use super::sys::{self, Errno};
use crate::activity::Activity;
use crate::io::{EventSink, IoThreads};
use crate::lock::{Mutex, Rank};

/// Descriptors that the table leaves to the rest of the VMM.
const RESERVED_DESCRIPTORS: u64 = 256;
/// Most handles, whatever the limit of open files is.
const HANDLES_MAX: u64 = 1 << 20;
/// How often an open that may create a file is tried while others create and remove it.
const CREATE_TRIES: u32 = 16;
/// Most bytes one `COPY_RANGE` copies; the rest is for the next call.
const COPY_MAX: u64 = 16 << 20;

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What a file inherits from the mount it was found in.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountTraits {
    /// Must not change.
    read_only: bool,
    /// The host opens no devices in it (`nodev`), so that opening by name does nothing else than that.
    no_devices: bool,
    /// What may be written there; none: as much as the host has.
    quota: Option<Arc<Quota>>,
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
        Ok(Self { fd, kind, path_only, mount, position: Mutex::new(Rank::Position, ()), held })
    }

    /// A file that was just made in `dir`.
    fn made(fd: OwnedFd, dir: &Self) -> Result<Self, Errno> {
        let file = Self::new(fd, FileKind::Regular, false, dir.mount.clone())?;
        dir.quota().iter().for_each(|quota| quota.made(file.as_fd()));
        Ok(file)
    }

    pub(super) fn quota(&self) -> Option<&Arc<Quota>> {
        self.mount.quota.as_ref()
    }

    pub(super) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
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
}

#[derive(Debug, Default)]
struct Slots {
    files: Vec<Option<Arc<HostFile>>>,
    free: Vec<Handle>,
}

impl FileTable {
    fn new() -> Self {
        let limit = sys::raise_open_files().saturating_sub(RESERVED_DESCRIPTORS).clamp(64, HANDLES_MAX);
        Self { slots: RwLock::default(), most: usize::try_from(limit).unwrap_or(64) }
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
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.files.len() - slots.free.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives a directory (or a single file) that the sandbox mounts; the descriptor names it with `O_PATH`.
    pub fn adopt_mount(&self, fd: OwnedFd) -> Result<Handle, Errno> {
        self.adopt(fd, false, None)
    }

    /// As [`FileTable::adopt_mount`], for a view in which a quota bounds what is written.
    pub(crate) fn adopt_counted_mount(&self, fd: OwnedFd, quota: &Arc<Quota>) -> Result<Handle, Errno> {
        self.adopt(fd, false, Some(Arc::clone(quota)))
    }

    /// As [`FileTable::adopt_mount`], for a mount that must not change.
    pub fn adopt_read_only_mount(&self, fd: OwnedFd) -> Result<Handle, Errno> {
        self.adopt(fd, true, None)
    }

    fn adopt(&self, fd: OwnedFd, read_only: bool, quota: Option<Arc<Quota>>) -> Result<Handle, Errno> {
        let path_only = sys::status_flags(fd.as_fd())? & libc::O_PATH != 0;
        let kind = kind_of(fd.as_fd())?;
        let mount = MountTraits { read_only, no_devices: sys::has_no_devices(fd.as_fd())?, quota };
        self.insert(HostFile::new(fd, kind, path_only, mount)?)
    }

    pub(super) fn insert(&self, file: HostFile) -> Result<Handle, Errno> {
        let file = Some(Arc::new(file));
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = slots.free.pop() {
            slots.files[handle as usize] = file;
            return Ok(handle);
        }
        let handle = Handle::try_from(slots.files.len()).map_err(|_| Errno(libc::ENFILE))?;
        if slots.files.len() >= self.most {
            return Err(Errno(libc::ENFILE));
        }
        slots.files.push(file);
        Ok(handle)
    }

    pub(super) fn remove(&self, handle: Handle) -> Result<Arc<HostFile>, Errno> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = usize::try_from(handle).ok().and_then(|at| slots.files.get_mut(at));
        let file = slot.and_then(Option::take).ok_or(Errno(libc::EBADF))?;
        slots.free.push(handle);
        Ok(file)
    }
}

/// The type of the node behind a descriptor.
fn kind_of(fd: BorrowedFd<'_>) -> Result<FileKind, Errno> {
    Ok(match u32::from(sys::statx(fd, c"")?.stx_mode) & libc::S_IFMT {
        libc::S_IFREG => FileKind::Regular,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFLNK => FileKind::Link,
        _ => FileKind::Node,
    })
}

/// A descriptor's name in `/proc/self/fd`, zero-terminated.
pub(crate) struct FdName([u8; 32]);

impl FdName {
    fn new(prefix: &str, fd: BorrowedFd<'_>) -> Self {
        use std::io::Write;
        let mut text = [0; 32];
        let _ = write!(&mut text[..31], "{prefix}{}", fd.as_raw_fd());
        Self(text)
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

/// The host-file half of a sandbox: serves the calls from [`abi::hostcall::OPEN`] on.
pub struct HostIo {
    files: FileTable,
    io: IoThreads,
    /// `/proc/self/fd`, opened before the process gives up its view of the host. Descriptors are opened anew by their
    /// names there, and by nothing else: a link of it leads to what is open already, never along a path.
    proc_dir: OwnedFd,
    /// `/proc` is out of reach, and the working directory is [`Self::proc_dir`].
    jailed: AtomicBool,
    /// The terminal behind the streams.
    pub(crate) terminal: OnceLock<Handle>,
    /// What bounds its views, if something does.
    pub(crate) quota: OnceLock<Arc<Quota>>,
}

impl HostIo {
    /// Prepares the process for host I/O: no creation mask, no `SIGPIPE`, as many open files as the hard limit allows.
    /// Call it in the process that will serve the sandbox, before it leaves the host's file systems. Events of
    /// [`abi::hostcall::POLL_ARM`] and [`abi::hostcall::SUBMIT`] go to `sink`, from threads of its own.
    pub fn new(sink: EventSink) -> Result<Self, Errno> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let proc = sys::openat(sys::working_directory(), c"/proc", flags, 0)?;
        Self::with_proc(sink, proc.as_fd())
    }

    /// As [`HostIo::new`], with a `/proc` that shows at least this process.
    pub fn with_proc(sink: EventSink, proc: BorrowedFd<'_>) -> Result<Self, Errno> {
        sys::clear_umask();
        sys::ignore_sigpipe();
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let proc_dir = sys::openat(proc, c"self/fd", flags, 0)?;
        Ok(Self {
            files: FileTable::new(),
            io: IoThreads::new(sink)?,
            proc_dir,
            jailed: AtomicBool::new(false),
            terminal: OnceLock::new(),
            quota: OnceLock::new(),
        })
    }

    /// The `/proc` it was made with.
    pub(crate) fn proc_root(&self) -> Result<OwnedFd, Errno> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        sys::openat(self.proc_dir.as_fd(), c"../..", flags, 0)
    }

    /// What one of this process's threads does.
    pub(crate) fn thread_activity(&self, tid: i32) -> Option<Activity> {
        Activity::of(self.proc_dir.as_fd(), &format!("../task/{tid}"))
    }

    /// What the host says of this process's memory, as `/proc/PID/smaps_rollup` has it; nothing when it does not say.
    pub(crate) fn io_memory(&self) -> String {
        let mut text = String::new();
        let file = sys::openat(self.proc_dir.as_fd(), c"../smaps_rollup", libc::O_RDONLY, 0);
        if let Ok(file) = file {
            let _ = std::io::Read::read_to_string(&mut std::fs::File::from(file), &mut text);
        }
        text
    }

    /// Makes `/proc/self/fd` the working directory, since no path leads to it once the process is jailed.
    pub fn enter_jail(&self) -> Result<(), Errno> {
        sys::fchdir(self.proc_dir.as_fd())?;
        self.jailed.store(true, Ordering::Release);
        Ok(())
    }

    #[must_use]
    pub fn files(&self) -> &FileTable {
        &self.files
    }

    /// Gives one of the sandbox's standard streams.
    pub fn adopt_stream(&self, fd: OwnedFd) -> Result<Handle, Errno> {
        let (handle, stream) = self.adopt_as_stream(fd, false)?;
        if stream.is_terminal() {
            let _ = self.terminal.set(handle);
        }
        Ok(handle)
    }

    /// Gives a stream of a process that comes in later. One that does not wait was opened for us alone.
    pub(crate) fn adopt_own_stream(&self, fd: OwnedFd) -> Result<Handle, Errno> {
        self.adopt_as_stream(fd, true).map(|(handle, _)| handle)
    }

    fn adopt_as_stream(&self, fd: OwnedFd, is_own: bool) -> Result<(Handle, Stream), Errno> {
        let (fd, stream) = Stream::prepare(fd, self.proc_dir.as_fd(), is_own)?;
        let file = HostFile::new(fd, FileKind::Stream(stream), false, MountTraits::default())?;
        Ok((self.files.insert(file)?, stream))
    }

    /// Takes back what the kernel was not told of.
    pub(crate) fn disown(&self, handle: Handle) {
        let _ = self.close(handle);
    }

    /// Rows and columns of the terminal behind the streams.
    pub fn terminal_size(&self) -> Option<(u16, u16)> {
        let file = self.files.get(*self.terminal.get()?).ok()?;
        Some(crate::process::terminal_size(file.as_fd()))
    }

    /// Serves one copied call; result: as the guest sees it.
    pub fn serve<M: GuestMemory + ?Sized>(&self, call: &HostCall, memory: &M) -> i64 {
        decode(call, memory).and_then(|request| self.carry_out(request)).unwrap_or_else(Errno::as_result)
    }

    /// Carries out a checked request.
    pub fn carry_out(&self, request: Request<'_>) -> Result<i64, Errno> {
        match request {
            Request::Open { dir, name: Some(name), flags, mode } => self.open(dir, &name, flags, mode),
            Request::Open { dir, name: None, flags, .. } => self.reopen_handle(dir, flags),
            Request::Close { handle } => self.close(handle),
            Request::ReadDir { dir, out, position } => self.read_dir(dir, out, position),
            Request::MkDir { dir, name, mode } => {
                self.make(&*self.parent(dir)?, name.as_c_str(), |dir, name| sys::mkdirat(dir, name, mode))
            }
            Request::MkNod { dir, name, mode } => {
                self.make(&*self.parent(dir)?, name.as_c_str(), |dir, name| sys::mknodat(dir, name, mode))
            }
            Request::Unlink { dir, name, flags } => self.unlink(&*self.parent(dir)?, name.as_c_str(), flags),
            Request::SymLink { dir, name, target } => {
                self.make(&*self.parent(dir)?, name.as_c_str(), |dir, name| {
                    sys::symlinkat(target.as_c_str(), dir, name)
                })
            }
            Request::Rename { old_dir, old, new_dir, new, flags } => {
                let (from, to) = (self.parent(old_dir)?, self.parent(new_dir)?);
                self.rename((&from, old.as_c_str()), (&to, new.as_c_str()), flags)
            }
            Request::Link { node, dir, name } => self.link(node, dir, &name),
            Request::TmpFile { dir, flags, mode } => self.tmp_file(dir, flags, mode),
            Request::CopyRange { from, from_at, to, to_at, len } => {
                self.copy_range(from, from_at, to, to_at, len)
            }
            Request::Seek { handle, offset, whence } => {
                sys::lseek(self.files.get(handle)?.as_fd(), offset, whence)
            }
            Request::Fallocate { handle, mode, offset, len } => {
                self.fallocate(&*self.files.get(handle)?, mode, offset, len)
            }
            Request::Fsync { handle, data_only } => sys::fsync(self.files.get(handle)?.as_fd(), data_only),
            Request::Stat { .. }
            | Request::ReadLink { .. }
            | Request::SetAttr { .. }
            | Request::StatFs { .. }
            | Request::GetXattr { .. }
            | Request::SetXattr { .. }
            | Request::ListXattr { .. }
            | Request::RemoveXattr { .. } => self.carry_out_attribute(request),
            Request::Socket(request) => self.carry_out_socket(request),
            _ => self.carry_out_stream(request),
        }
    }

    pub(crate) fn io(&self) -> &IoThreads {
        &self.io
    }

    pub(crate) fn proc_dir(&self) -> BorrowedFd<'_> {
        self.proc_dir.as_fd()
    }

    /// A descriptor's name below [`Self::proc_dir`].
    pub(crate) fn fd_name(fd: BorrowedFd<'_>) -> FdName {
        FdName::new("", fd)
    }

    /// A path to a descriptor for calls that take no directory.
    pub(crate) fn fd_path(&self, fd: BorrowedFd<'_>) -> FdName {
        FdName::new(if self.jailed.load(Ordering::Acquire) { "" } else { "/proc/self/fd/" }, fd)
    }

    /// A directory that may be changed.
    fn parent(&self, dir: Handle) -> Result<Arc<HostFile>, Errno> {
        let dir = self.files.get(dir)?;
        dir.check_writable()?;
        Ok(dir)
    }

    fn open(&self, dir: Handle, name: &Name, flags: i32, mode: u32) -> Result<i64, Errno> {
        let dir = self.files.get(dir)?;
        let name = name.as_c_str();
        if flags & libc::O_PATH != 0 {
            let must_be_dir = flags & libc::O_DIRECTORY;
            let fd = open_node(dir.as_fd(), name, must_be_dir)?;
            let kind = if must_be_dir != 0 { FileKind::Directory } else { kind_of(fd.as_fd())? };
            return self.insert(HostFile::new(fd, kind, true, dir.mount.clone()));
        }
        if flags & libc::O_CREAT == 0 {
            return self.open_existing(&dir, name, flags);
        }
        if flags & libc::O_DIRECTORY != 0 {
            return Err(Errno(libc::EINVAL));
        }
        for _ in 0..CREATE_TRIES {
            if flags & libc::O_EXCL == 0 {
                match self.open_existing(&dir, name, flags) {
                    Err(Errno(libc::ENOENT)) => {}
                    result => return result,
                }
            }
            dir.check_writable()?;
            let create = || {
                let fd = sys::openat(dir.as_fd(), name, flags | libc::O_EXCL | libc::O_NOFOLLOW, mode)?;
                HostFile::made(fd, &dir)
            };
            match self.changing(dir.quota(), &[dir.as_fd()], Need::node(), create) {
                Err(Errno(libc::EEXIST)) if flags & libc::O_EXCL == 0 => {}
                result => return self.insert(result),
            }
        }
        Err(Errno(libc::EBUSY))
    }

    fn open_existing(&self, dir: &HostFile, name: &CStr, flags: i32) -> Result<i64, Errno> {
        // The host looks at the type before it opens a directory. Whatever fails is left to the careful way.
        if flags & (libc::O_DIRECTORY | libc::O_ACCMODE | libc::O_TRUNC) == libc::O_DIRECTORY
            && let Ok(fd) = sys::open_dir(dir.as_fd(), name, flags)
        {
            return self.insert(HostFile::new(fd, FileKind::Directory, false, dir.mount.clone()));
        }
        // Where the host opens no devices, opening a regular file by its name is harmless, and so is finding a pipe or
        // a socket there instead: it is given back at once.
        if dir.mount.no_devices
            && flags & libc::O_DIRECTORY == 0
            && !((dir.mount.read_only || dir.quota().is_some()) && opens_for_writing(flags))
            && let Ok(fd) = sys::open_file(dir.as_fd(), name, flags & !(libc::O_CREAT | libc::O_EXCL))
            && kind_of(fd.as_fd())? == FileKind::Regular
        {
            return self.insert(HostFile::new(fd, FileKind::Regular, false, dir.mount.clone()));
        }
        let node = open_node(dir.as_fd(), name, 0)?;
        let kind = kind_of(node.as_fd())?;
        self.reopen(node.as_fd(), kind, flags, &dir.mount)
    }

    fn reopen_handle(&self, handle: Handle, flags: i32) -> Result<i64, Errno> {
        let file = self.files.get(handle)?;
        if !file.path_only {
            // A stream must not come back with more rights than it was handed over with.
            return Err(Errno(libc::EBADF));
        }
        if flags & libc::O_PATH != 0 {
            let fd = file.fd.try_clone()?;
            return self.insert(HostFile::new(fd, file.kind, true, file.mount.clone()));
        }
        self.reopen(file.as_fd(), file.kind, flags, &file.mount)
    }

    /// Opens a node whose type is known to be harmless.
    fn reopen(
        &self,
        node: BorrowedFd<'_>,
        kind: FileKind,
        flags: i32,
        mount: &MountTraits,
    ) -> Result<i64, Errno> {
        let changes =
            flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_TRUNC | libc::O_CREAT) != 0;
        match kind {
            FileKind::Link => return Err(Errno(libc::ELOOP)),
            FileKind::Directory if changes => return Err(Errno(libc::EISDIR)),
            FileKind::Regular if flags & libc::O_DIRECTORY != 0 => return Err(Errno(libc::ENOTDIR)),
            FileKind::Directory | FileKind::Regular => {}
            FileKind::Node | FileKind::Stream(_) | FileKind::Socket(_) => return Err(Errno(libc::ENXIO)),
        }
        if mount.read_only && opens_for_writing(flags) {
            return Err(Errno(libc::EROFS));
        }
        let flags = flags & !(libc::O_CREAT | libc::O_EXCL) | libc::O_NOCTTY;
        let quota = mount.quota.as_ref().filter(|_| opens_for_writing(flags));
        let need = Need { truncates: flags & libc::O_TRUNC != 0, ..Need::default() };
        let open = || {
            let fd = sys::openat(self.proc_dir(), Self::fd_name(node).as_c_str(), flags, 0)?;
            HostFile::new(fd, kind, false, mount.clone())
        };
        self.insert(self.changing(quota, &[node], need, open))
    }

    fn insert(&self, file: Result<HostFile, Errno>) -> Result<i64, Errno> {
        self.files.insert(file?).map(i64::from)
    }

    fn close(&self, handle: Handle) -> Result<i64, Errno> {
        let file = self.files.remove(handle)?;
        self.io.forget(handle, &file);
        Ok(0)
    }

    fn read_dir(&self, dir: Handle, out: GuestSlice<'_>, position: i64) -> Result<i64, Errno> {
        let dir = self.files.get(dir)?;
        if dir.kind != FileKind::Directory {
            return Err(Errno(libc::ENOTDIR));
        }
        let _held = dir.position.lock();
        sys::lseek(dir.as_fd(), position, libc::SEEK_SET)?;
        sys::getdents(dir.as_fd(), out)
    }

    fn link(&self, node: Handle, dir: Handle, name: &Name) -> Result<i64, Errno> {
        let (node, dir) = (self.files.get(node)?, self.parent(dir)?);
        if matches!(node.kind, FileKind::Stream(_) | FileKind::Socket(_)) {
            return Err(Errno(libc::EXDEV));
        }
        node.check_writable().map_err(|_| Errno(libc::EXDEV))?;
        let link = || {
            let path = Self::fd_name(node.as_fd());
            sys::linkat(self.proc_dir(), path.as_c_str(), dir.as_fd(), name.as_c_str())
        };
        self.changing(dir.quota(), &[node.as_fd(), dir.as_fd()], Need::name(), link)
    }

    fn tmp_file(&self, dir: Handle, flags: i32, mode: u32) -> Result<i64, Errno> {
        let dir = self.parent(dir)?;
        let create = || {
            let fd = sys::openat(dir.as_fd(), c".", flags | libc::O_TMPFILE, mode)?;
            HostFile::made(fd, &dir)
        };
        // The host may bring the directory into the layer, or make a file of its own there: both are nodes.
        self.insert(self.changing(dir.quota(), &[dir.as_fd()], Need::node(), create))
    }

    fn copy_range(&self, from: Handle, from_at: i64, to: Handle, to_at: i64, len: u64) -> Result<i64, Errno> {
        let (from, to) = (self.files.get(from)?, self.files.get(to)?);
        let at = u64::try_from(to_at).unwrap_or(0);
        self.writing(&to, at, len.min(COPY_MAX), |len| copy_between(&from, from_at, &to, to_at, len))
    }
}

fn copy_between(from: &HostFile, from_at: i64, to: &HostFile, to_at: i64, len: u64) -> Result<i64, Errno> {
    let len = usize::try_from(len).unwrap_or(0);
    match sys::copy_file_range(from.as_fd(), from_at, to.as_fd(), to_at, len) {
        Err(Errno(libc::EXDEV | libc::ENOSYS | libc::EOPNOTSUPP)) => {}
        result => return result,
    }
    let mut buffer = vec![0_u8; len.min(1 << 17)];
    let mut done = 0_i64;
    while let left @ 1.. = len - usize::try_from(done).unwrap_or(len) {
        let most = left.min(buffer.len());
        let step =
            sys::copy_step(from.as_fd(), from_at + done, to.as_fd(), to_at + done, &mut buffer[..most]);
        match step {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

fn opens_for_writing(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}

/// Names a node without opening it.
pub(crate) fn open_node(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> Result<OwnedFd, Errno> {
    sys::openat(dir, name, flags | libc::O_PATH | libc::O_NOFOLLOW, 0)
}
