//! The task that a system call works for, as files, sockets and mounts see it.

use alloc::sync::Arc;
use core::cell::OnceCell;

use machine::errno::{Errno, Result};
use machine::host;
use machine::mm::{AddressSpace, UserMemory};
use machine::sched::Run;
use machine::sync::Once;

use crate::creds::Creds;
use crate::fs::file::{File, FileTable, OpenFlags};
use crate::fs::path::FsContext;
pub use crate::fs::pid_of::PidOf;
use crate::limits::RLIMIT_NOFILE;
use crate::signals::Source;

/// A task that uses files.
pub trait Caller: Run {
    /// Its process's id.
    fn pid(&self) -> u32;
    /// A number of its process that no other has, ever.
    fn process_serial(&self) -> u64;
    /// The number of the pid space that this is an id of.
    fn pid_space(&self) -> u64;
    /// Its credentials.
    fn creds(&self) -> Arc<Creds>;
    /// Its root, working directory and creation mask.
    fn fs(&self) -> Arc<FsContext>;
    /// Its descriptors; `None` once it has ended.
    fn files(&self) -> Option<Arc<FileTable>>;
    /// Its memory; `None` once it has ended.
    fn aspace(&self) -> Option<Arc<AddressSpace>>;
    /// Seconds that holders of leases have for giving them up when it is in their way; 0 and less: for ever.
    fn lease_break_seconds(&self) -> i32;
    /// A soft resource limit of its process.
    fn soft_limit(&self, resource: usize) -> u64;
    /// Sends it a signal.
    fn send_signal(self: Arc<Self>, signal: u32, source: Source);
}

static CURRENT: Once<fn() -> Arc<dyn Caller>> = Once::new();

/// Registers the function that finds the task running on the calling CPU. The first call counts.
pub fn register(current: fn() -> Arc<dyn Caller>) {
    CURRENT.call_once(|| current);
}

/// The task that runs on this CPU.
pub fn current() -> Arc<dyn Caller> {
    match CURRENT.get() {
        Some(current) => current(),
        None => host::die("files are used before there are tasks"),
    }
}

impl PidOf {
    /// The process `pid` in the caller's pid space.
    pub fn named_by(caller: &dyn Caller, pid: u32) -> Self {
        Self { pid, space: caller.pid_space() }
    }

    /// The caller's own process.
    pub fn of(caller: &dyn Caller) -> Self {
        Self::named_by(caller, caller.pid())
    }

    /// Its id as the caller knows it; 0: it is of another pid space.
    pub fn seen_by(self, caller: &dyn Caller) -> u32 {
        if self.space == caller.pid_space() { self.pid } else { 0 }
    }
}

/// A system call's view of its caller.
pub struct CallerCtx<'a> {
    pub caller: &'a dyn Caller,
    // Looked up when first asked for: many calls need neither.
    user: OnceCell<UserMemory>,
    files: OnceCell<Arc<FileTable>>,
}

impl<'a> CallerCtx<'a> {
    /// The context of the current task, which still has its memory and its descriptors.
    pub fn new(caller: &'a dyn Caller) -> Self {
        Self { caller, user: OnceCell::new(), files: OnceCell::new() }
    }

    /// The caller's memory.
    pub fn user(&self) -> &UserMemory {
        self.user.get_or_init(|| match self.caller.aspace() {
            Some(aspace) => UserMemory::new(aspace),
            None => host::die("a system call without memory"),
        })
    }

    /// The caller's address space.
    pub fn aspace(&self) -> &Arc<AddressSpace> {
        self.user().aspace()
    }

    /// The caller's descriptors.
    pub fn files(&self) -> &Arc<FileTable> {
        self.files.get_or_init(|| match self.caller.files() {
            Some(files) => files,
            None => host::die("a system call without descriptors"),
        })
    }

    /// The open file of a descriptor.
    pub fn file(&self, fd: i32) -> Result<Arc<File>> {
        self.files().get(fd)
    }

    /// The open file of a descriptor that does more than name a place; `EBADF` for one opened with `O_PATH`.
    pub fn opened(&self, fd: i32) -> Result<Arc<File>> {
        self.file(fd).and_then(|file| {
            if file.flags().contains(OpenFlags::PATH) { Err(Errno::EBADF) } else { Ok(file) }
        })
    }

    /// Gives a file the lowest free descriptor.
    pub fn install(&self, file: Arc<File>, close_on_exec: bool) -> Result<u64> {
        let limit = self.limit(RLIMIT_NOFILE);
        self.files().insert(file, close_on_exec, 0, limit).map(|fd| u64::from(fd.cast_unsigned()))
    }

    /// A soft resource limit of the caller.
    pub fn limit(&self, resource: usize) -> u64 {
        self.caller.soft_limit(resource)
    }
}
