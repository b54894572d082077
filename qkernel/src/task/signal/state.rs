//! A task's own part of signal state.

use machine::errno::Errno;
use machine::mm::UserAddr;

use crate::task::signal::altstack::AltStack;
use crate::task::signal::facts::Facts;
use crate::task::signal::queue::PendingSignals;

/// The rest of an interrupted sleep (`restart_syscall(2)`).
#[derive(Clone, Debug)]
pub enum Restart {
    /// `nanosleep`, `clock_nanosleep`: until this monotonic time; the remainder goes to this address.
    Sleep { clock: i32, deadline_ns: u64, remainder: UserAddr },
    /// `poll(2)` until this monotonic time.
    Poll { fds: UserAddr, count: u32, deadline_ns: Option<u64> },
    /// `FUTEX_WAIT` until this monotonic time.
    Futex { addr: UserAddr, value: u32, deadline_ns: u64, bitset: u32, private: bool },
}

/// A task's own part of signal state.
#[derive(Default)]
pub struct TaskSignals {
    pub blocked: u64,
    pub pending: PendingSignals,
    /// The mask that comes back once a call that had its own (`ppoll`, `sigsuspend`) is over.
    pub(super) saved_mask: Option<u64>,
    /// The signals that `sigtimedwait(2)` waits for just now, blocked or not.
    pub(super) waiting_for: u64,
    pub alt_stack: AltStack,
    /// The call a signal interrupted: how it may be restarted, and its number.
    pub(super) interrupted: Option<(Errno, u64)>,
    /// The last fault, as handlers see it.
    pub(super) fault: Facts,
}

impl TaskSignals {
    /// The signal state of a clone of a task: the same mask, nothing pending. A clone in the same memory
    /// (`reset_alt_stack`) starts without an alternate stack.
    pub fn fork(&self, reset_alt_stack: bool) -> Self {
        let alt_stack = if reset_alt_stack { AltStack::default() } else { self.alt_stack };
        Self { blocked: self.saved_mask.unwrap_or(self.blocked), alt_stack, ..Default::default() }
    }
}
