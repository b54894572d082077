//! Paths and the file-system context of a task (skeleton).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;

use super::file::{File, OpenFlags};
use super::inode::Inode;
use crate::errno::{Errno, Result};
use crate::sync::SpinLock;
use crate::syscall::Ctx;

/// A place in the tree: a directory entry in a mount.
#[derive(Clone)]
pub struct Path {
    pub inode: Arc<dyn Inode>,
}

impl Path {
    /// The absolute path as seen from the mount tree's root.
    pub fn absolute(&self) -> Vec<u8> {
        Vec::new()
    }
}

/// Root, working directory and umask; shared by `CLONE_FS`.
pub struct FsContext {
    pub root: SpinLock<Path>,
    pub cwd: SpinLock<Path>,
    pub umask: AtomicU32,
}

impl FsContext {
    /// For tasks that never name a file.
    pub fn none() -> Arc<Self> {
        let nothing = Path { inode: Arc::new(Nothing) };
        Arc::new(Self {
            root: SpinLock::new(nothing.clone()),
            cwd: SpinLock::new(nothing),
            umask: AtomicU32::new(0),
        })
    }

    /// A copy for a new process.
    pub fn fork(&self) -> Arc<Self> {
        Arc::new(Self {
            root: SpinLock::new(self.root.lock().clone()),
            cwd: SpinLock::new(self.cwd.lock().clone()),
            umask: AtomicU32::new(self.umask.load(core::sync::atomic::Ordering::Relaxed)),
        })
    }
}

/// `AT_FDCWD` of `openat(2)`.
pub const AT_FDCWD: i32 = -100;
/// `AT_EMPTY_PATH`.
pub const AT_EMPTY_PATH: u32 = 0x1000;
/// `AT_SYMLINK_NOFOLLOW`.
pub const AT_SYMLINK_NOFOLLOW: u32 = 0x100;

/// Opens a file (`openat(2)`); `mode` counts when it is made.
pub fn open_at(_cx: &Ctx<'_>, _dirfd: i32, _path: &[u8], _flags: OpenFlags, _mode: u32) -> Result<Arc<File>> {
    Err(Errno::ENOSYS)
}

/// Opens a program for `execve(2)`: a regular file the task may execute. `flags` as `execveat(2)`.
pub fn open_executable(_cx: &Ctx<'_>, _dirfd: i32, _path: &[u8], _flags: u32) -> Result<Arc<File>> {
    Err(Errno::ENOSYS)
}

/// An inode without anything.
struct Nothing;

impl Inode for Nothing {
    fn stat(&self) -> Result<super::Stat> {
        Err(Errno::ENOENT)
    }
    fn kind(&self) -> u32 {
        super::inode::S_IFDIR
    }
    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<alloc::boxed::Box<dyn super::FileOps>> {
        Err(Errno::ENOENT)
    }
    fn statfs(&self) -> Result<abi::hostcall::HostStatFs> {
        Err(Errno::ENOENT)
    }
    fn as_any(&self) -> &dyn core::any::Any {
        self
    }
}
