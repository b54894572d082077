//! Inodes: the objects that names refer to.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::creds::Creds;
use crate::fs::file::{File, FileOps, OpenFlags};
use crate::fs::locks::held::HostView;
use crate::fs::opens::Opens;
use crate::fs::path::Path;
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::sync::SpinLock;

/// A slot of an inode for an object that belongs to the node while it is used: a FIFO's pipe, a bound socket.
pub type Attachment = SpinLock<Option<Arc<dyn Any + Send + Sync>>>;

pub const S_IFMT: u32 = 0o170_000;
pub const S_IFSOCK: u32 = 0o140_000;
pub const S_IFLNK: u32 = 0o120_000;
pub const S_IFREG: u32 = 0o100_000;
pub const S_IFBLK: u32 = 0o060_000;
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFCHR: u32 = 0o020_000;
pub const S_IFIFO: u32 = 0o010_000;
pub const S_ISUID: u32 = 0o4000;
pub const S_ISGID: u32 = 0o2000;
pub const S_ISVTX: u32 = 0o1000;

/// The attributes that `stat(2)` shows. Times are nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub blksize: u32,
    pub blocks: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub btime_ns: i64,
}

impl Stat {
    /// The `S_IFMT` part of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }
    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }
    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }
    pub fn is_regular(&self) -> bool {
        self.kind() == S_IFREG
    }
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    Now,
    At(i64),
}

/// The rule for set-id bits: makes the new mode of credentials, mode and group.
pub type SetIdRule = fn(&Creds, u32, u32) -> u32;

/// Attribute changes; `None` leaves as is.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttrChange {
    pub mode: Option<u32>,
    /// Sets the mode of a file with set-id bits to the rule's result for the current task's credentials and the file's
    /// mode and group. The node calls the rule with changes of its attributes locked out, so that none made meanwhile
    /// is undone.
    pub set_id: Option<SetIdRule>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
}

/// The kind of node that `Inode::create` makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    Regular,
    Fifo,
    Socket,
    CharDevice(u64),
    BlockDevice(u64),
}

/// Owner, group and permission bits of a new node (the umask is already applied).
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The target of a symbolic link.
pub enum LinkTarget {
    /// A path to be walked.
    Text(Vec<u8>),
    /// Straight to an object (`/proc/self/fd/1`).
    Direct(Path),
}

/// How long a looked-up name may be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CachePolicy {
    /// Only the kernel changes the directory: names (and their absence) stay until it does.
    Trust,
    /// Others may change it: ask again each time, keep the inode if it is the same.
    Revalidate,
    /// Never cached (`/proc`).
    Never,
}

/// A file system's node. The VFS checks permissions; these operations are the file system's part alone.
pub trait Inode: Send + Sync + Any {
    fn stat(&self) -> Result<Stat>;
    /// Attributes of which only mode and owner, which permission checks need, have to be current.
    fn protection(&self) -> Result<Stat> {
        self.stat()
    }
    /// The `S_IFMT` part of the mode; never changes.
    fn kind(&self) -> u32;
    fn cache_policy(&self) -> CachePolicy {
        CachePolicy::Trust
    }
    /// The number that offsets and lengths of reads and writes with `O_DIRECT` are multiples of, in bytes; 0: they need
    /// not be.
    fn direct_align(&self) -> u32 {
        0
    }
    fn lookup(&self, _name: &[u8]) -> Result<Arc<dyn Inode>> {
        Err(Errno::ENOTDIR)
    }
    /// The attributes of the node of this name, where they are known without an inode.
    fn stat_listed(&self, _name: &[u8]) -> Option<Stat> {
        None
    }
    fn create(&self, _name: &[u8], _kind: NodeKind, _new: NewNode) -> Result<Arc<dyn Inode>> {
        Err(Errno::EPERM)
    }
    fn mkdir(&self, _name: &[u8], _new: NewNode) -> Result<Arc<dyn Inode>> {
        Err(Errno::EPERM)
    }
    fn symlink(&self, _name: &[u8], _target: &[u8], _new: NewNode) -> Result<Arc<dyn Inode>> {
        Err(Errno::EPERM)
    }
    fn link(&self, _name: &[u8], _node: &Arc<dyn Inode>) -> Result<()> {
        Err(Errno::EPERM)
    }
    fn unlink(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EPERM)
    }
    fn rmdir(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// `flags` are `RENAME_*`; both directories are of this file system.
    fn rename(&self, _old: &[u8], _new_dir: &Arc<dyn Inode>, _new: &[u8], _flags: u32) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// An unnamed file (`O_TMPFILE`).
    fn tmpfile(&self, _new: NewNode) -> Result<Arc<dyn Inode>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// One of this node's names, `name` in `dir`, is about to go (removed, or replaced by a rename). `used`: the node is
    /// in use, and must stay reachable without the name.
    fn before_unlink(&self, _dir: &Arc<dyn Inode>, _name: &[u8], _used: bool) {}
    /// The name has gone.
    fn after_unlink(&self, _dir: &Arc<dyn Inode>, _name: &[u8]) {}
    /// This node was renamed: `name` in `dir` is its name now.
    fn moved(&self, _dir: &Arc<dyn Inode>, _name: &[u8]) {}
    /// The slot of a FIFO's pipe or a bound socket; `None` for file systems without such nodes.
    fn attachment(&self) -> Option<&Attachment> {
        None
    }
    fn readlink(&self) -> Result<LinkTarget> {
        Err(Errno::EINVAL)
    }
    /// The content was read, which moves the time of access: always if `strictly`, else where [`is_access_due`] says so.
    fn accessed(&self, _strictly: bool) {}
    fn set_attr(&self, _change: &AttrChange) -> Result<()> {
        Err(Errno::EPERM)
    }
    /// Opens the node for I/O. The VFS has checked permissions and handled `O_CREAT`, `O_EXCL` and `O_PATH`;
    /// `O_TRUNC` comes afterwards through `set_attr`.
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Box<dyn FileOps>>;
    /// Who writes to it and who runs it, which exclude each other (`ETXTBSY`).
    fn writers(&self) -> Option<&Opens> {
        self.opens()
    }
    /// Whether others may change its content by mappings whose descriptors are closed.
    fn is_mapped_writable(&self) -> bool {
        false
    }
    /// How often it is open; `None` where that is not counted, and there are no leases.
    fn opens(&self) -> Option<&Opens> {
        None
    }
    /// A number that stands for the file where its locks are kept. It is the file's while anyone has the file open.
    fn lock_key(&self) -> usize {
        (&raw const *self).cast::<u8>() as usize
    }
    /// [`Self::lock_key`], if anybody may watch the file.
    fn watch_key(&self) -> Option<usize> {
        Some(self.lock_key())
    }
    /// Whether [`notify::gone`] is called when the file is no more.
    ///
    /// [`notify::gone`]: crate::fs::notify::gone
    fn tells_its_end(&self) -> bool {
        false
    }
    /// Of a node that others than the sandbox may change: a handle by which the host watches it.
    fn watched_by(&self) -> Option<Result<Arc<Handle>>> {
        None
    }
    /// Of a file or directory that others than the sandbox may lock: what is locked of it on the host.
    fn host_locks(&self) -> Option<HostView<'_>> {
        None
    }
    /// Opens such a file once more, for reading and, if `writes`, for writing: to hold its locks by it, and for nothing else.
    fn open_to_lock(&self, _file: &File, _writes: bool) -> Result<Handle> {
        Err(Errno::ENOLCK)
    }
    /// Gives up a host handle that the node keeps and can open again.
    fn spare_handle(&self) {}
    fn get_xattr(&self, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP)
    }
    /// `flags` are `XATTR_*`.
    fn set_xattr(&self, _name: &[u8], _value: &[u8], _flags: u32) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Names, each ended by NUL.
    fn list_xattr(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn remove_xattr(&self, _name: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    /// For `statfs(2)`.
    fn statfs(&self) -> Result<abi::hostcall::HostStatFs>;
    /// Options of the file system as the tables of mounts show them, each behind a comma.
    fn fs_options(&self) -> Vec<u8> {
        Vec::new()
    }
    /// Changes options of the file system.
    fn remount(&self, _options: &[u8]) -> Result<()> {
        Ok(())
    }
    /// The text that links and tables of `/proc` show for a node that has no name anywhere, such as `pipe:[12]`.
    fn shown_as(&self) -> Option<Vec<u8>> {
        None
    }
    fn as_any(&self) -> &dyn Any;
}

/// Whether a read moves the time of access (`relatime`): the first after a change, and the first of a day.
pub fn is_access_due(atime_ns: i64, mtime_ns: i64, ctime_ns: i64, now_ns: i64) -> bool {
    const DAY_NS: i64 = 24 * 3600 * 1_000_000_000;
    atime_ns <= mtime_ns || atime_ns <= ctime_ns || now_ns.saturating_sub(atime_ns) >= DAY_NS
}

/// Changes the content of a file that is not open for that: `ETXTBSY`, if it is a program that runs.
pub fn while_writing<R>(inode: &dyn Inode, change: impl FnOnce() -> Result<R>) -> Result<R> {
    match inode.writers() {
        Some(writers) => writers.while_writing(change),
        None => change(),
    }
}
