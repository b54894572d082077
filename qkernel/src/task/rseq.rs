//! Restartable sequences (`rseq(2)`): a thread's word in its own memory that says on which CPU it runs, and short stretches of
//! code that are not to be interrupted. A thread that has lost the CPU in such a stretch, or gets a signal there, goes on at
//! the stretch's abort handler.
//!
//! What is registered is here; [`super::sequences`] carries it out, on the way back to user code, and only for a thread that
//! has been off its CPU since. A thread that never was costs one look at a flag.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use machine::time;

/// Bytes of the first `struct rseq`, which is also how it is aligned.
pub const ORIGINAL_BYTES: u32 = 32;
/// Bytes of the fields that the kernel keeps (`AT_RSEQ_FEATURE_SIZE`).
pub const FEATURE_BYTES: u32 = 28;
/// Not registered (`RSEQ_CPU_ID_UNINITIALIZED`).
pub const NO_CPU: u32 = u32::MAX;

/// A thread that computes for so long without a break loses its sequence as if it had lost the CPU: on Linux, whose own threads
/// take the CPU now and then, nobody stays in one for ever either.
const BREAK_NS: u64 = 100_000_000;

/// The area that a thread has registered (`rseq(2)`). Written by the thread itself alone, but for the flag.
#[derive(Debug)]
pub struct Rseq {
    /// Where its `struct rseq` is; 0: nowhere.
    addr: AtomicU64,
    len: AtomicU32,
    signature: AtomicU32,
    /// The CPU that it was told.
    told: AtomicU32,
    /// It has been off its CPU since it was looked at.
    is_stale: AtomicBool,
    /// When a break is due (monotonic; `u64::MAX`: never).
    break_ns: AtomicU64,
}

impl Rseq {
    /// Nothing is registered.
    pub const fn new() -> Self {
        Self {
            addr: AtomicU64::new(0),
            len: AtomicU32::new(0),
            signature: AtomicU32::new(0),
            told: AtomicU32::new(NO_CPU),
            is_stale: AtomicBool::new(false),
            break_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Where the thread's word is.
    pub fn addr(&self) -> Option<u64> {
        self.registered().map(|(addr, ..)| addr)
    }

    /// Returns the address, length and signature that are registered; `None`: nothing is.
    pub fn registered(&self) -> Option<(u64, u32, u32)> {
        let addr = self.addr.load(Ordering::Relaxed);
        let (len, signature) = (self.len.load(Ordering::Relaxed), self.signature.load(Ordering::Relaxed));
        (addr != 0).then_some((addr, len, signature))
    }

    /// The thread has registered this.
    pub fn register(&self, addr: u64, len: u32, signature: u32) {
        self.len.store(len, Ordering::Relaxed);
        self.signature.store(signature, Ordering::Relaxed);
        self.told.store(NO_CPU, Ordering::Relaxed);
        self.addr.store(addr, Ordering::Relaxed);
        self.is_stale.store(true, Ordering::Relaxed);
        self.break_ns.store(time::monotonic_ns().saturating_add(BREAK_NS), Ordering::Relaxed);
    }

    /// When its user code is to be interrupted at the latest (monotonic).
    pub fn break_ns(&self) -> u64 {
        self.break_ns.load(Ordering::Relaxed)
    }

    /// Its user code was interrupted: if a break was due, this is one.
    pub fn interrupted(&self) {
        let due_ns = self.break_ns();
        if due_ns == u64::MAX {
            return;
        }
        let now_ns = time::monotonic_ns();
        if now_ns >= due_ns {
            self.is_stale.store(true, Ordering::Relaxed);
            self.break_ns.store(now_ns.saturating_add(BREAK_NS), Ordering::Relaxed);
        }
    }

    /// Nothing is registered any more.
    pub fn forget(&self) {
        self.addr.store(0, Ordering::Relaxed);
        self.is_stale.store(false, Ordering::Relaxed);
        self.break_ns.store(u64::MAX, Ordering::Relaxed);
    }

    /// The copy of a thread in another process has what the thread had.
    pub fn inherit(&self, other: &Self) {
        if let Some((addr, len, signature)) = other.registered() {
            self.register(addr, len, signature);
            self.told.store(other.told.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// The thread comes on a CPU. Called by the scheduler.
    pub fn came_on_cpu(&self) {
        if self.addr.load(Ordering::Relaxed) != 0 {
            self.is_stale.store(true, Ordering::Relaxed);
        }
    }

    /// It is looked at: what comes from now on counts again.
    pub fn set_stale(&self, is_stale: bool) {
        self.is_stale.store(is_stale, Ordering::Relaxed);
    }

    /// The CPU that the thread was told.
    pub fn told(&self) -> u32 {
        self.told.load(Ordering::Relaxed)
    }

    /// It was told this one.
    pub fn set_told(&self, cpu: u32) {
        self.told.store(cpu, Ordering::Relaxed);
    }

    /// Whether it has to be looked at before user code runs.
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }
}

impl Default for Rseq {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_what_was_registered_and_is_looked_at() {
        let (parent, child) = (Rseq::new(), Rseq::new());
        child.inherit(&parent);
        assert!(child.registered().is_none() && !child.is_stale());
        parent.came_on_cpu();
        assert!(!parent.is_stale());
        parent.register(64, 32, 7);
        child.inherit(&parent);
        assert_eq!(child.registered(), Some((64, 32, 7)));
        assert!(child.is_stale());
        child.forget();
        child.came_on_cpu();
        assert!(!child.is_stale());
    }
}
