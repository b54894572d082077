//! Futexes, on private words and on words shared with stub processes.

use std::ptr;
use std::sync::atomic::AtomicU32;

/// The threads that may sleep on or wake a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Threads of this process.
    Private,
    /// Other processes that map the same page.
    Shared,
}

impl Scope {
    fn flag(self) -> i32 {
        match self {
            Scope::Private => libc::FUTEX_PRIVATE_FLAG,
            Scope::Shared => 0,
        }
    }
}

/// Sleeps while `word` holds `value`, at most until `deadline_ns` on the monotonic clock (`u64::MAX`: no limit). May
/// return early; the caller looks at the word again.
pub fn wait(word: &AtomicU32, value: u32, deadline_ns: u64, scope: Scope) {
    let deadline = libc::timespec {
        tv_sec: i64::try_from(deadline_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(deadline_ns % 1_000_000_000).unwrap_or(0),
    };
    let timeout = if deadline_ns == u64::MAX { ptr::null() } else { &raw const deadline };
    let operation = libc::FUTEX_WAIT_BITSET | scope.flag();
    let all = libc::FUTEX_BITSET_MATCH_ANY;
    // SAFETY: the word is live for the call; the kernel only reads it.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout, ptr::null::<u32>(), all)
    };
}

/// Wakes up to `count` sleepers on `word`.
pub fn wake(word: &AtomicU32, count: i32, scope: Scope) {
    // SAFETY: the kernel uses the address only to find sleepers.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | scope.flag(), count) };
}
