//! When a task first waited for a deadline.
//!
//! A wait that is interrupted begins anew for what is left of its time: a call is restarted after a signal, an event loop serves a
//! request and then waits for its next timer again. The deadline was set when the task first waited for it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Deadlines that are remembered of each task: an event loop waits for its nearest one, and comes back to a later one.
const DEADLINES: usize = 4;
/// A deadline this near to another one is the same: programs compute what is left in whole milliseconds.
const NEAR_NS: u64 = 20_000_000;

/// Whether anybody wants to know.
static ARE_KEPT: AtomicBool = AtomicBool::new(false);

/// From now on it is kept when deadlines were set.
pub fn keep() {
    ARE_KEPT.store(true, Ordering::Relaxed);
}

/// Whether it is.
pub fn are_kept() -> bool {
    ARE_KEPT.load(Ordering::Relaxed)
}

/// The latest deadlines of a task, and when each was set. Written by the task itself.
#[derive(Default)]
pub struct SetTimes([Slot; DEADLINES]);

#[derive(Default)]
struct Slot {
    due_ns: AtomicU64,
    set_ns: AtomicU64,
}

impl SetTimes {
    /// When the deadline was set for which the task waits from now on.
    pub(super) fn since(&self, due_ns: u64, now_ns: u64) -> u64 {
        let due_of = |slot: &Slot| slot.due_ns.load(Ordering::Relaxed);
        let is_same = |slot: &&Slot| due_of(slot) > now_ns && due_of(slot).abs_diff(due_ns) < NEAR_NS;
        if let Some(slot) = self.0.iter().find(is_same) {
            // Its time stays: deadlines that each are near to the one before are not all the same.
            return slot.set_ns.load(Ordering::Relaxed);
        }
        // What is past comes first, and then what is nearest.
        if let Some(slot) = self.0.iter().min_by_key(|slot| due_of(slot)) {
            slot.due_ns.store(due_ns, Ordering::Relaxed);
            slot.set_ns.store(now_ns, Ordering::Relaxed);
        }
        now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_deadline_is_set_when_it_is_first_waited_for() {
        let times = SetTimes::default();
        assert_eq!(times.since(60_000 * MS, 5 * MS), 5 * MS);
        // Nearer ones come in between.
        for at in 1..100 {
            assert_eq!(times.since((at + 10) * MS * 50, at * MS * 50), at * MS * 50);
        }
        assert_eq!(times.since(60_001 * MS, 45_000 * MS), 5 * MS);
        // Once it is past, another one that is near is new.
        assert_eq!(times.since(60_010 * MS, 60_002 * MS), 60_002 * MS);
    }

    #[test]
    fn many_short_waits_do_not_become_a_long_one() {
        let times = SetTimes::default();
        for at in 0..10_000 {
            let (now_ns, due_ns) = (at * 5 * MS, (at * 5 + 30) * MS);
            assert!(due_ns - times.since(due_ns, now_ns) <= 30 * MS + NEAR_NS);
        }
    }
}
