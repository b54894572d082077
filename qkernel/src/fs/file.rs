//! Open file descriptions.

pub mod position;
mod table;
mod transfer;

pub use table::{Descriptor, FileTable, TableOfTask};

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bitflags::bitflags;
use core::any::Any;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::fs::caller::CallerCtx;
use crate::fs::inode::{AttrChange, S_IFREG, Stat};
use crate::fs::notify::Mask;
use crate::fs::opens::Opens;
use crate::fs::path::Path;
use crate::fs::poll::PollTable;
use crate::fs::sigio::{self, Notice};
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, MemoryObject};
use machine::sched::wait::PollEvents;
use machine::sync::{Mutex, Once, Rank, SpinLock};

bitflags! {
    /// `O_*` of `open(2)`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct OpenFlags: u32 {
        const WRONLY = 0o1;
        const RDWR = 0o2;
        const CREAT = 0o100;
        const EXCL = 0o200;
        const NOCTTY = 0o400;
        const TRUNC = 0o1000;
        const APPEND = 0o2000;
        const NONBLOCK = 0o4000;
        const DSYNC = 0o10000;
        const ASYNC = 0o20000;
        const DIRECT = 0o40000;
        const LARGEFILE = 0o100_000;
        const DIRECTORY = 0o200_000;
        const NOFOLLOW = 0o400_000;
        const NOATIME = 0o1_000_000;
        const CLOEXEC = 0o2_000_000;
        const SYNC_BIT = 0o4_000_000;
        const PATH = 0o10_000_000;
        const TMPFILE_BIT = 0o20_000_000;
    }
}

impl OpenFlags {
    /// Whether reading is allowed.
    pub fn readable(self) -> bool {
        !self.contains(Self::PATH) && !self.contains(Self::WRONLY)
    }
    /// Whether writing is allowed.
    pub fn writable(self) -> bool {
        !self.contains(Self::PATH) && self.intersects(Self::MODE) && !self.is_mode_three()
    }
    /// The bits of the access mode.
    const MODE: Self = Self::WRONLY.union(Self::RDWR);
    /// Access mode 3: opening it asks for both permissions, and it allows neither reading nor writing.
    pub fn is_mode_three(self) -> bool {
        self.contains(Self::MODE)
    }
    /// Flags that `F_SETFL` may change.
    pub const SETTABLE: Self =
        Self::APPEND.union(Self::NONBLOCK).union(Self::ASYNC).union(Self::DIRECT).union(Self::NOATIME);
    /// Flags that a description keeps and `F_GETFL` shows: all but those that only matter while opening.
    pub const KEPT: Self = Self::all()
        .difference(Self::CREAT)
        .difference(Self::EXCL)
        .difference(Self::NOCTTY)
        .difference(Self::TRUNC)
        .difference(Self::CLOEXEC);
}

/// The position of a read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// At the description's position, which moves.
    Position,
    /// At this offset; the position stays (`pread(2)`).
    Offset(u64),
    /// At the end, without `O_APPEND` (`RWF_APPEND`); `moves`: the position goes behind what was written.
    End { moves: bool },
    /// At this offset or, without one, at the position, in spite of `O_APPEND` (`RWF_NOAPPEND`).
    Exactly(Option<u64>),
}

impl At {
    /// The offset, for files where nothing is appended.
    pub fn from(self, position: u64) -> u64 {
        match self {
            Self::Offset(offset) | Self::Exactly(Some(offset)) => offset,
            Self::Position | Self::End { .. } | Self::Exactly(None) => position,
        }
    }

    /// Whether the position moves.
    pub fn moves(self) -> bool {
        matches!(self, Self::Position | Self::End { moves: true } | Self::Exactly(None))
    }

    /// Whether a write goes to the end.
    pub fn appends(self, flags: OpenFlags) -> bool {
        match self {
            Self::Position | Self::Offset(_) => flags.contains(OpenFlags::APPEND),
            Self::End { .. } => true,
            Self::Exactly(_) => false,
        }
    }
}

/// Which way a transfer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Read,
    Write,
}

/// `whence` of `lseek(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    Set,
    Current,
    End,
    Data,
    Hole,
}

/// One entry of a directory.
pub struct DirEntry<'a> {
    pub name: &'a [u8],
    pub ino: u64,
    /// Position to continue behind this entry (`d_off`).
    pub next: u64,
    /// `DT_*`.
    pub kind: u8,
}

/// The operations of an open file. Every call is one attempt that doesn't wait for others: where it would have to wait,
/// it answers `EAGAIN`, and [`FileOps::poll`] tells when to try again. The waiting is done in one place,
/// [`File::blocking`].
pub trait FileOps: Send + Sync + Any {
    /// `EINVAL` for a transfer with `O_DIRECT` of so many bytes that is not one of whole blocks.
    fn check_direct(&self, _file: &File, _at: At, _bytes: usize, _way: Way) -> Result<()> {
        Ok(())
    }
    /// Reads into `buf`; 0 is the end.
    fn read(&self, _file: &File, _buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        Err(Errno::EINVAL)
    }
    /// The attribute `security.capability` of the very file that is read.
    fn capabilities(&self) -> Result<Vec<u8>> {
        Err(Errno::ENODATA)
    }
    /// Writes from `buf`.
    fn write(&self, _file: &File, _buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        Err(Errno::EINVAL)
    }
    /// The events that hold now. With a table, registers for changes first.
    fn poll(&self, _file: &File, _table: Option<&mut PollTable>) -> PollEvents {
        PollEvents::READABLE | PollEvents::WRITABLE
    }
    /// Whether a regular file has something to tell who polls it.
    fn is_polled(&self) -> bool {
        false
    }
    /// [`Self::poll`], where only `wanted` events and errors matter: the rest may be left out.
    fn poll_for(&self, file: &File, table: Option<&mut PollTable>, _wanted: PollEvents) -> PollEvents {
        self.poll(file, table)
    }
    /// Whether what a reader waits for here comes from outside the sandbox, or over a socket.
    fn is_from_outside(&self) -> bool {
        false
    }
    /// Moves the position; `ESPIPE` for streams, whose `pread` and `pwrite` fail likewise.
    fn seek(&self, _file: &File, _offset: i64, _whence: Whence) -> Result<u64> {
        Err(Errno::ESPIPE)
    }
    /// Whether positions mean anything.
    fn is_seekable(&self) -> bool {
        false
    }
    fn ioctl(&self, _cx: &CallerCtx<'_>, _file: &File, _request: u32, _arg: u64) -> Result<u64> {
        Err(Errno::ENOTTY)
    }
    /// Lists from the description's position; `sink` answers false when it is full.
    fn read_dir(&self, _file: &File, _sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        Err(Errno::ENOTDIR)
    }
    /// The object that `mmap(2)` maps. `shared_write`: for a shared mapping that may become writable.
    fn mapping(&self, _file: &File, _shared_write: bool) -> Result<MemoryObject> {
        Err(Errno::ENODEV)
    }
    fn stat(&self, file: &File) -> Result<Stat>;
    fn truncate(&self, _file: &File, _size: u64) -> Result<()> {
        Err(Errno::EINVAL)
    }
    /// `fallocate(2)`.
    fn allocate(&self, _file: &File, _mode: u32, _offset: u64, _len: u64) -> Result<()> {
        Err(Errno::ENODEV)
    }
    fn sync(&self, _file: &File, _data_only: bool) -> Result<()> {
        Err(Errno::EINVAL)
    }
    /// How it sends signals about I/O; `None`: it does not.
    fn signals(&self) -> Option<sigio::Kind> {
        None
    }
    /// Flags were changed by `fcntl(2)`.
    fn flags_changed(&self, _file: &File, _flags: OpenFlags) -> Result<()> {
        Ok(())
    }
    /// Whether it is a file or directory of a file system that could keep flags of it.
    fn is_kept(&self) -> bool {
        false
    }
    /// Whether `O_APPEND` means anything to it.
    fn can_append(&self) -> bool {
        false
    }
    /// Whether `splice(2)` reads from it.
    fn can_be_spliced(&self) -> bool {
        true
    }
    /// Whether `splice(2)` writes to it.
    fn takes_splices(&self) -> bool {
        self.can_be_spliced()
    }
    /// Whether `O_DIRECT` means anything to it.
    fn is_direct(&self) -> bool {
        false
    }
    /// A number that stands for the file where its locks are kept, for files without a path that share an object.
    fn lock_key(&self) -> Option<usize> {
        None
    }
    /// Changes mode or owner of a file without a path.
    fn set_attr(&self, _change: &AttrChange) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// When a wait for `events` that begins now is given up with `EAGAIN` (`SO_RCVTIMEO`).
    fn deadline_ns(&self, _events: PollEvents) -> Option<u64> {
        None
    }
    /// The text that `/proc/PID/fd/N` shows for files without a path, such as `pipe:[12]`.
    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[file]".to_vec()
    }
    /// Lines for `/proc/PID/fdinfo/N` beyond the common ones.
    fn fdinfo(&self) -> Vec<u8> {
        Vec::new()
    }
    /// `F_GETPIPE_SZ`.
    fn pipe_size(&self) -> Result<u64> {
        Err(Errno::EBADF)
    }
    /// `F_SETPIPE_SZ`: asks for a capacity in bytes; answers what it is now.
    fn set_pipe_size(&self, _bytes: u64, _privileged: bool) -> Result<u64> {
        Err(Errno::EBADF)
    }
    /// `F_GET_SEALS`.
    fn seals(&self) -> Result<u32> {
        Err(Errno::EINVAL)
    }
    /// `F_ADD_SEALS`.
    fn add_seals(&self, _seals: u32) -> Result<()> {
        Err(Errno::EINVAL)
    }
    /// A process closed a descriptor of it (`close(2)`; POSIX locks go then).
    fn flush(&self, _file: &File, _owner: &FileTable) {}
    /// Something to do once a descriptor is closed and its reference to the file has gone.
    fn after_close(&self, _file: &File) -> Option<fn()> {
        None
    }
    /// `close(2)` took away the last descriptor of it; may sleep (`SO_LINGER`).
    fn last_close(&self) {}
    /// Bytes that it holds for its readers, or on behalf of others: they are freed when it is closed.
    fn held_bytes(&self) -> u64 {
        0
    }
    fn as_any(&self) -> &dyn Any;
}

/// Things that are kept for open files by others than the files themselves.
#[derive(Clone, Copy)]
pub enum Kept {
    Locks,
    Leases,
}

/// The one who keeps such things.
pub struct Keeper {
    /// The description is gone.
    pub file_gone: fn(&File),
    /// A process has closed a descriptor of it. The number is that of the process's table.
    pub descriptor_closed: fn(&File, u64),
}

/// By [`Kept`]. Where nothing was ever kept nobody is to be told.
static KEEPERS: [Once<&'static Keeper>; 2] = [Once::new(), Once::new()];

/// From now on something is kept for open files. The first call counts; it comes before anything is kept.
pub fn keep(kept: Kept, keeper: &'static Keeper) {
    KEEPERS[kept as usize].call_once(|| keeper);
}

fn keepers() -> impl Iterator<Item = &'static Keeper> {
    KEEPERS.iter().filter_map(|keeper| keeper.get().copied())
}

static NEXT_FILE: AtomicU64 = AtomicU64::new(1);

/// An open file description.
pub struct File {
    pub ops: Box<dyn FileOps>,
    /// The path it was opened by; `None` for pipes and the like.
    pub path: Option<Path>,
    flags: AtomicU32,
    pub pos: Mutex<u64>,
    /// The program's request for signals about the file, once it has made one.
    notice: SpinLock<Option<Arc<Notice>>>,
    /// A program is run by it: nobody writes to the file meanwhile.
    denies_writes: bool,
    /// Its mount counts it as one that writes.
    writes_to_mount: bool,
    /// How long what is written will live, as the program expects (`F_SET_RW_HINT`).
    pub write_life: AtomicU8,
    /// Unique among all descriptions ever (lock owners, epoll keys).
    pub id: u64,
}

impl Drop for File {
    fn drop(&mut self) {
        keepers().for_each(|keeper| (keeper.file_gone)(self));
        let notice = self.notice.lock().take();
        if let Some(notice) = notice {
            notice.close();
        }
        if self.denies_writes
            && let Some(writers) = self.writers()
        {
            writers.allow_writes();
        }
        if let Some(path) = self.path.as_ref().filter(|_| self.writes_to_mount) {
            path.mount.remove_writer();
        }
        self.notify(if self.flags().writable() { Mask::CLOSE_WRITE } else { Mask::CLOSE_NOWRITE });
    }
}

impl File {
    /// A description of `ops`.
    pub fn new(ops: Box<dyn FileOps>, flags: OpenFlags, path: Option<Path>) -> Arc<Self> {
        Arc::new(Self::with(ops, flags, path))
    }

    /// A description of a program's file, which is not written to as long as the description is there. `ETXTBSY`: somebody has it
    /// open for that.
    pub fn of_program(ops: Box<dyn FileOps>, path: Path) -> Result<Arc<Self>> {
        let writers = path.inode.writers();
        writers.map_or(Ok(()), Opens::deny_writes)?;
        // In this order: who maps it has it open for that first.
        if path.inode.is_mapped_writable() {
            writers.into_iter().for_each(Opens::allow_writes);
            return Err(Errno::ETXTBSY);
        }
        let denies_writes = writers.is_some();
        let mut file = Self::with(ops, OpenFlags::empty(), Some(path));
        file.denies_writes = denies_writes;
        Ok(Arc::new(file))
    }

    fn writers(&self) -> Option<&Opens> {
        self.path.as_ref()?.inode.writers()
    }

    fn with(ops: Box<dyn FileOps>, flags: OpenFlags, path: Option<Path>) -> Self {
        let written = path.as_ref().filter(|path| flags.writable() && path.inode.kind() == S_IFREG);
        written.iter().for_each(|path| path.mount.add_writer());
        let writes_to_mount = written.is_some();
        Self {
            ops,
            path,
            flags: AtomicU32::new((flags & OpenFlags::KEPT).bits()),
            pos: Mutex::new(Rank::Position, 0),
            notice: SpinLock::new(Rank::Leaf, None),
            denies_writes: false,
            writes_to_mount,
            write_life: AtomicU8::new(0),
            id: NEXT_FILE.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// `EROFS`: its mount was made read-only while it was opened for writing.
    pub fn check_mount(&self) -> Result<()> {
        match &self.path {
            Some(path) if self.writes_to_mount => path.mount.check_writable(),
            _ => Ok(()),
        }
    }

    /// Tells those of an event who watch the file, or the directory that it is in.
    #[inline]
    pub fn notify(&self, event: Mask) {
        if let Some(path) = &self.path
            && !self.flags().contains(OpenFlags::PATH)
        {
            path.notify(event);
        }
    }

    /// It was read: tells those who watch it, and moves the time of access.
    #[inline]
    pub fn accessed(&self) {
        self.notify(Mask::ACCESS);
        self.move_atime();
    }

    /// Moves the time of access, unless it was opened with `O_NOATIME`.
    pub fn move_atime(&self) {
        if let Some(path) = self.path.as_ref().filter(|_| !self.flags().contains(OpenFlags::NOATIME)) {
            path.accessed();
        }
    }

    pub fn flags(&self) -> OpenFlags {
        OpenFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// `F_SETFL`: changes the settable flags.
    pub fn set_flags(&self, flags: OpenFlags) -> Result<()> {
        let old = self.flags();
        let new = (old - OpenFlags::SETTABLE) | (flags & OpenFlags::SETTABLE);
        if (new - old).contains(OpenFlags::DIRECT) && !self.ops.is_direct() {
            return Err(Errno::EINVAL);
        }
        self.ops.flags_changed(self, new)?;
        self.flags.store(new.bits(), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the program's request for signals about the file, if it has made one.
    pub fn notice(&self) -> Option<Arc<Notice>> {
        self.notice.lock().clone()
    }

    /// Makes `new` its notice, unless it has one by now; returns the one it has, and `new` if that is not it.
    pub(super) fn keep_notice(&self, new: Arc<Notice>) -> (Arc<Notice>, Option<Arc<Notice>>) {
        let mut notice = self.notice.lock();
        match &*notice {
            Some(known) => (known.clone(), Some(new)),
            None => (notice.insert(new).clone(), None),
        }
    }

    pub fn is_nonblocking(&self) -> bool {
        self.flags().contains(OpenFlags::NONBLOCK)
    }

    /// The object behind, as its own type.
    pub fn as_ops<T: FileOps>(&self) -> Option<&T> {
        self.ops.as_any().downcast_ref::<T>()
    }
}
