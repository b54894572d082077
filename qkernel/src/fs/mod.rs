//! Files: the VFS, its file systems, and everything that has a descriptor.

pub mod access;
pub mod anon;
pub mod attr;
pub mod dentry;
pub mod devfs;
pub mod epoll;
pub mod eventfd;
pub mod file;
pub mod host_poll;
pub mod hostfs;
pub mod init;
pub mod inode;
pub mod locks;
pub mod memfd;
pub mod mount;
pub mod names;
pub mod open;
pub mod pages;
pub mod path;
pub mod pidfd;
pub mod pipe;
pub mod poll;
pub mod proc;
pub mod pseudo;
pub mod readiness;
pub mod sysfs;

pub mod signalfd;
pub mod special;
pub mod stream;
pub mod timerfd;
pub mod tmpfs;
pub mod tty;
pub mod walk;

#[cfg(test)]
mod tests;

pub use file::{At, Descriptor, DirEntry, File, FileOps, FileTable, OpenFlags, Whence};
pub use hostfs::to_stat as hostfs_stat;
pub use init::{context_of, enter_cwd_of, init, open_streams, read_start};
pub use inode::{Inode, Stat};
pub use path::{FsContext, Path};

use crate::task;
use machine::errno::{Errno, Result};
use machine::sched;
use machine::sched::wait::PollEvents;
use machine::sched::wait::Waker;
use machine::sync::SpinLock;
use poll::PollTable;

/// A terminal as job control sees it.
pub trait Terminal: Send + Sync {
    /// The foreground process group (0: none).
    fn foreground(&self) -> u32;
    /// Makes a group the foreground one.
    fn set_foreground(&self, group: u32);
    /// The session whose terminal it was is gone.
    fn left(&self) {}
    /// Its device number, for `/proc/PID/stat`.
    fn device(&self) -> u64;
    /// Opens it (`/dev/tty`).
    fn open(&self, flags: OpenFlags) -> Result<alloc::boxed::Box<dyn FileOps>>;
}

/// Tries `attempt` until it isn't `EAGAIN`, sleeping in between until one of `events` may hold on `file`.
///
/// With `nonblock` the first answer counts. `Errno::RESTART` when a signal comes, `Errno::EAGAIN` at `deadline_ns`.
pub fn block_on<R>(
    file: &File,
    events: PollEvents,
    nonblock: bool,
    deadline_ns: Option<u64>,
    mut attempt: impl FnMut() -> Result<R>,
) -> Result<R> {
    let first = attempt();
    if nonblock || !matches!(first, Err(Errno::EAGAIN)) {
        return first;
    }
    let mut table = PollTable::new(Waker::Task(task::current()), events);
    file.ops.poll_for(file, Some(&mut table), events);
    let ready = || match attempt() {
        Err(Errno::EAGAIN) => None,
        result => Some(result),
    };
    sched::sleep_until(sched::Sleep::Interruptible, deadline_ns, ready)?.unwrap_or(Err(Errno::EAGAIN))
}

/// The terminal the first process's streams are on changed its size (rows << 16 | columns).
pub fn console_resized(size: i64) {
    if let Some(tty) = tty::console::get() {
        tty::console::resized(tty, size);
    }
}

static HOSTNAME: SpinLock<alloc::vec::Vec<u8>> = SpinLock::new(alloc::vec::Vec::new());

/// Sets the sandbox's host name.
pub fn set_hostname(name: &[u8]) {
    *HOSTNAME.lock() = name.to_vec();
}

/// The sandbox's host name.
pub fn hostname() -> alloc::vec::Vec<u8> {
    HOSTNAME.lock().clone()
}
