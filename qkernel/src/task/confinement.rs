//! The confinement of a task: `PR_SET_NO_NEW_PRIVS`, and its filter of system calls (`seccomp(2)`).
//!
//! A task changes its own, and a thread with `SECCOMP_FILTER_FLAG_TSYNC` that of all threads of its process. So whoever
//! changes one, or makes a task that inherits one, holds the lock of the process's tasks.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::seccomp::filter::{Filter, Verdict};
use crate::seccomp::program::Data;
use machine::sync::{Rank, SpinLock};

/// The mode of a task (`PR_GET_SECCOMP`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Off = 0,
    /// Only `read`, `write`, `exit` and `rt_sigreturn`.
    Strict = 1,
    Filter = 2,
}

/// The confinement of a task. It never gets less.
pub struct Confinement {
    no_new_privs: AtomicBool,
    /// A [`Mode`].
    pub(super) mode: AtomicU32,
    pub(super) filter: SpinLock<Option<Arc<Filter>>>,
    /// The task runs no user code any more.
    is_over: AtomicBool,
}

impl Confinement {
    /// None.
    pub const fn new() -> Self {
        Self {
            no_new_privs: AtomicBool::new(false),
            mode: AtomicU32::new(Mode::Off as u32),
            filter: SpinLock::new(Rank::Leaf, None),
            is_over: AtomicBool::new(false),
        }
    }

    /// Whether no program gives the task more rights than it has.
    pub fn no_new_privs(&self) -> bool {
        self.no_new_privs.load(Ordering::Relaxed)
    }

    /// See [`Self::no_new_privs`].
    pub fn set_no_new_privs(&self) {
        self.no_new_privs.store(true, Ordering::Relaxed);
    }

    /// The task ends, and runs no user code any more: its filters concern nobody (as since Linux 6.11). Said before others can
    /// see that it ends.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Whether the task runs no user code any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Returns the mode, which decides about the task's calls.
    #[inline]
    pub fn mode(&self) -> Mode {
        match self.mode.load(Ordering::Acquire) {
            0 => Mode::Off,
            1 => Mode::Strict,
            _ => Mode::Filter,
        }
    }

    /// The verdict about a call of the current task, if the filter does not allow all calls of this number.
    #[inline]
    pub fn verdict(&self, number: u32, data: impl FnOnce() -> Data) -> Option<Verdict> {
        let filter = match &*self.filter.lock() {
            Some(filter) if !filter.always_allows(number) => filter.clone(),
            _ => return None,
        };
        Some(filter.verdict(&data()))
    }

    /// Bytes of kernel memory that its filters take.
    pub fn filter_bytes(&self) -> u64 {
        self.filter.lock().as_ref().map_or(0, |filter| filter.bytes())
    }

    /// Number of filters.
    pub fn filters(&self) -> u32 {
        self.filter.lock().as_ref().map_or(0, |filter| filter.count())
    }

    /// The first filter of a process that nobody has forked.
    pub fn begin_with(&self, filter: Option<Arc<Filter>>) {
        if filter.is_some() {
            *self.filter.lock() = filter;
            self.mode.store(Mode::Filter as u32, Ordering::Release);
        }
    }

    /// A new task has what its creator has. The lock of the creator's process's tasks is held.
    pub fn inherit(&self, from: &Self) {
        self.no_new_privs.store(from.no_new_privs(), Ordering::Relaxed);
        let filter = from.filter.lock().clone();
        *self.filter.lock() = filter;
        self.mode.store(from.mode() as u32, Ordering::Release);
    }
}

impl Default for Confinement {
    fn default() -> Self {
        Self::new()
    }
}
