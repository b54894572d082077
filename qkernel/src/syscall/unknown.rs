//! Calls that the kernel does not have.

use core::sync::atomic::{AtomicBool, Ordering};

use machine::errno::Errno;
use machine::mm::stats;

use crate::seccomp::filter::NUMBERS;
use crate::syscall::context::SyscallResult;

/// Which calls were logged already: each is once.
static LOGGED: [AtomicBool; NUMBERS] = [const { AtomicBool::new(false) }; NUMBERS];

/// Counts and refuses a call. `dormouse stats` shows the count, the log the first of each number.
pub(super) fn unknown(number: u64) -> SyscallResult {
    stats::count_unknown_call();
    if let Some(is_logged) = usize::try_from(number).ok().and_then(|number| LOGGED.get(number))
        && !is_logged.swap(true, Ordering::Relaxed)
    {
        machine::warn!("system call {number} is not implemented (ENOSYS)");
    }
    Err(Errno::ENOSYS)
}
