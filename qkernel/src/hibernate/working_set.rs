//! The working set: which frames were touched since the last wake, in the order of touch (Hibernate Container, section
//! 3.4.2). It comes back as a whole with the next wake, before anything runs.
//!
//! A touch is seen where an entry becomes present again, neighbours included. The set adapts: frames touched since the
//! wake are the next set; those that only came along stay for [`KEEP_WAKES`] wakes.

use alloc::vec::Vec;

use crate::mm::residency;
use crate::sync::SpinLock;

/// How many wakes a frame stays in the set without being touched.
const KEEP_WAKES: u8 = 3;
/// Most touches that are written down; a set this large comes back as fast by faults.
const TOUCHED_MAX: usize = 1 << 20;

static SET: SpinLock<WorkingSet> = SpinLock::new(WorkingSet::new());

struct WorkingSet {
    /// Frames touched since the set was stored, in order, each once.
    touched: Vec<u32>,
    /// The set that is stored, with the wakes that each frame was not touched after.
    members: Vec<(u32, u8)>,
}

impl WorkingSet {
    const fn new() -> Self {
        Self { touched: Vec::new(), members: Vec::new() }
    }

    fn touch(&mut self, frame: u32) {
        if self.touched.len() < TOUCHED_MAX && self.touched.try_reserve(1).is_ok() {
            self.touched.push(frame);
        }
    }

    /// The next set, of those frames that are `here`; `is_untouched` says which of them were not touched.
    fn next(&self, here: impl Fn(u32) -> bool, is_untouched: impl Fn(u32) -> bool) -> Vec<(u32, u8)> {
        let touched = self.touched.iter().map(|frame| (*frame, 0));
        let idle = self.members.iter().map(|&(frame, wakes)| (frame, wakes + 1));
        let idle = idle.filter(|(frame, wakes)| *wakes < KEEP_WAKES && is_untouched(*frame));
        touched.chain(idle).filter(|(frame, _)| here(*frame)).collect()
    }
}

/// The content of these frames is used for the first time since it was stored.
pub fn touched(frames: impl Iterator<Item = u32>) {
    let mut set = SET.lock();
    frames.for_each(|frame| set.touch(frame));
}

/// Frames of the set that is stored.
pub fn len() -> usize {
    SET.lock().members.len()
}

/// What the next set would be, of those frames that are `here`; [`store`] makes it so.
pub fn next(here: impl Fn(u32) -> bool) -> Vec<(u32, u8)> {
    SET.lock().next(here, residency::is_untouched)
}

/// The set was stored; touches count from here on.
pub fn store(members: Vec<(u32, u8)>) {
    *SET.lock() = WorkingSet { members, ..WorkingSet::new() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_touch_comes_first_and_the_untouched_leave_after_three_wakes() {
        let mut set = WorkingSet::new();
        [7, 3, 9].into_iter().for_each(|frame| set.touch(frame));
        set.members = set.next(|frame| frame != 9, |_| false);
        assert_eq!(set.members, [(7, 0), (3, 0)]);
        for wakes in 1..KEEP_WAKES {
            set.touched = vec![3];
            set.members = set.next(|_| true, |frame| frame != 3);
            assert_eq!(set.members, [(3, 0), (7, wakes)]);
        }
        set.members = set.next(|_| true, |frame| frame != 3);
        assert_eq!(set.members, [(3, 0)]);
    }
}
