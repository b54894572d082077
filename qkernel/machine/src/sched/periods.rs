//! Periods of the limit of processor time that the host holds the sandbox to.
//!
//! The host's scheduler counts them only where the sandbox does not see it, so the kernel counts those in which some task ran. It
//! needs no clock for that but the reading that each task's own time is counted by.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{arch, time};

/// Counter ticks of a period; 0: nothing is counted.
static LENGTH: AtomicU64 = AtomicU64::new(0);
/// The end of the last period that was counted.
static END: AtomicU64 = AtomicU64::new(u64::MAX);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// A task ran from `since` ticks ago to `now`.
#[inline]
pub(super) fn ran(now: u64, since: u64) {
    if now >= END.load(Ordering::Relaxed) {
        count(now, since);
    }
}

#[cold]
fn count(now: u64, since: u64) {
    let (length, end) = (LENGTH.load(Ordering::Relaxed), END.load(Ordering::Relaxed));
    if length == 0 || now < end {
        return;
    }
    let (more, next) = further(now, since, end, length);
    // Another CPU may have counted them.
    if END.compare_exchange(end, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        COUNT.fetch_add(more, Ordering::Relaxed);
    }
}

/// How many periods after `end` a stretch up to `now` lies in, and where the last of them ends.
fn further(now: u64, since: u64, end: u64, length: u64) -> (u64, u64) {
    let number = |at: u64| at.saturating_sub(end) / length;
    let (first, last) = (number(now.saturating_sub(since)), number(now));
    (last - first + 1, end.saturating_add(last.saturating_add(1).saturating_mul(length)))
}

/// The host's limit has periods of so many nanoseconds from now on; `None`: there is no limit.
pub fn watch(period_ns: Option<u64>) {
    const UNIT: u64 = 1 << 30;
    let unit_ns = u128::from(time::ticks_to_ns(UNIT).max(1));
    let ticks = |ns: u64| u64::try_from(u128::from(ns) * u128::from(UNIT) / unit_ns).unwrap_or(u64::MAX);
    let length = period_ns.map_or(0, |ns| ticks(ns).max(1));
    if LENGTH.swap(length, Ordering::Relaxed) != length {
        END.store(if length == 0 { u64::MAX } else { arch::read_tsc() }, Ordering::Relaxed);
    }
}

/// Under another VMM the counter may be another one: what is left of a period does not count, and the limit is told anew.
pub(super) fn forget() {
    LENGTH.store(0, Ordering::Relaxed);
    END.store(u64::MAX, Ordering::Relaxed);
}

/// Periods so far in which the sandbox ran.
pub fn counted() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_counts_for_each_period_that_it_touches() {
        // Within the period that follows, and over two more.
        assert_eq!(further(105, 5, 100, 10), (1, 110));
        assert_eq!(further(125, 25, 100, 10), (3, 130));
        // A stretch that began before counts from there on.
        assert_eq!(further(101, 50, 100, 10), (1, 110));
        // What was idle meanwhile does not count.
        assert_eq!(further(1_005, 2, 100, 10), (1, 1_010));
    }
}
