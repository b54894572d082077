//! Counters of the sandbox's memory, in a place where the VMM can read them without asking.

use abi::hostcall as hc;
use abi::stats::KernelStats;
use core::sync::atomic::Ordering;

use super::give_back;
use super::physical::{frames, residency};
use crate::heap;
use crate::platform;

static STATS: KernelStats = KernelStats::new();

/// Tells the VMM where to read.
pub fn init() {
    // Without it they are unknown, and nothing else is amiss.
    let _ = platform::call(hc::STATS, [platform::phys_of(&raw const STATS), 0, 0, 0, 0, 0]);
}

/// Counts a system call that the kernel does not have.
pub fn count_unknown_call() {
    STATS.unknown_calls.fetch_add(1, Ordering::Relaxed);
}

/// Counts a page that is copied to patch call sites in it.
pub(super) fn count_patched_page() {
    STATS.patched_pages.fetch_add(1, Ordering::Relaxed);
}

/// Brings them up to date.
pub fn refresh() {
    STATS.set(frames::in_use() as u64, residency::swapped(), heap::HEAP.used_bytes() as u64);
    STATS.returned_pages.store(give_back::given_pages(), Ordering::Relaxed);
}
