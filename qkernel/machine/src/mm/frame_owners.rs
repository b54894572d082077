//! Whose each user frame is: a byte a frame, 0 for one that is free, else one more than its owner's number.
//!
//! A frame belongs to the owner that was current when it was allocated, until its last reference goes, whoever else has come
//! to use it (as with the memory controller of Linux). What an owner leaves behind becomes the sandbox's.

use core::sync::atomic::{AtomicU8, Ordering};

use super::frames::{self, Frame};
use super::owners;
use crate::owner::Owner;
use crate::spin::Once;

static TABLE: Once<&'static [AtomicU8]> = Once::new();
/// Freed frames that are counted together.
const TALLY_FRAMES: usize = 64;

/// Takes the table, all of it 0.
pub(super) fn init(table: &'static [AtomicU8]) {
    TABLE.call_once(|| table);
}

fn entry(frame: Frame) -> Option<&'static AtomicU8> {
    TABLE.get()?.get(frames::index(frame)? as usize)
}

/// Notes whose a frame is that was just allocated, and charged before.
pub(super) fn note(frame: Frame, owner: Owner) {
    if let Some(entry) = entry(frame) {
        entry.store(owner.number() + 1, Ordering::Relaxed);
    }
}

/// Gives all frames of an owner that has no tasks any more to the sandbox.
pub(super) fn leave_to_sandbox(owner: Owner) {
    let Some(table) = TABLE.get() else { return };
    let (from, to) = (owner.number() + 1, Owner::SANDBOX.number() + 1);
    for entry in table.iter().take(frames::reach()) {
        if entry.load(Ordering::Relaxed) == from
            && entry.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            owners::give_frame(owner, Owner::SANDBOX);
            if owners::frames(owner) == 0 {
                return;
            }
        }
    }
}

/// Uncharges frames, some at a time.
pub(super) struct Tally {
    owner: Owner,
    count: usize,
}

impl Tally {
    pub(super) const fn new() -> Self {
        Self { owner: Owner::SANDBOX, count: 0 }
    }

    /// The frame's last reference went, and it is not free yet.
    pub(super) fn add(&mut self, frame: Frame) {
        // A swap: its owner may be leaving it to the sandbox just now.
        let Some(number) = entry(frame).and_then(|entry| entry.swap(0, Ordering::Relaxed).checked_sub(1))
        else {
            return;
        };
        let owner = Owner::new(number);
        if owner != self.owner || self.count == TALLY_FRAMES {
            self.settle();
            self.owner = owner;
        }
        self.count += 1;
    }

    fn settle(&mut self) {
        owners::uncharge_frames(self.owner, core::mem::take(&mut self.count));
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.settle();
    }
}
