//! Calls that the kernel does not have.

use core::sync::atomic::{AtomicU32, Ordering};

use machine::errno::Errno;

use crate::syscall::context::SyscallResult;

/// Calls that a program makes and the kernel doesn't have: how often, and whether it was said.
static UNKNOWN: [AtomicU32; 512] = [const { AtomicU32::new(0) }; 512];

/// Counts and refuses a call.
pub(super) fn unknown(number: u64) -> SyscallResult {
    if let Some(count) = UNKNOWN.get(number as usize)
        && count.fetch_add(1, Ordering::Relaxed) == 0
    {
        machine::warn!("system call {number} is not implemented (ENOSYS)");
    }
    Err(Errno::ENOSYS)
}

/// How often each call number without an implementation was asked for.
pub fn unknown_counts() -> impl Iterator<Item = (usize, u32)> {
    UNKNOWN.iter().map(|count| count.load(Ordering::Relaxed)).enumerate().filter(|(_, count)| *count != 0)
}
