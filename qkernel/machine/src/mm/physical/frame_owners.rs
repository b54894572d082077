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
/// Frames that are left to the sandbox at a time.
const CHUNK_FRAMES: usize = 4096;
/// Freed frames that are counted together.
const TALLY_FRAMES: usize = 64;

/// Takes the table, all of it 0.
pub(in crate::mm) fn init(table: &'static [AtomicU8]) {
    TABLE.call_once(|| table);
}

fn entry(frame: Frame) -> Option<&'static AtomicU8> {
    TABLE.get()?.get(frames::index(frame)? as usize)
}

/// Notes whose `count` frames from `first` on are, which were just allocated, and charged before.
pub(in crate::mm) fn note(first: Frame, count: usize, owner: Owner) {
    let Some((table, index)) = TABLE.get().zip(frames::index(first)) else { return };
    let entries = table.iter().skip(index as usize).take(count);
    entries.for_each(|entry| entry.store(owner.number() + 1, Ordering::Relaxed));
}

/// Gives all frames of an owner that has no tasks any more to the sandbox.
pub(in crate::mm) fn leave_to_sandbox(owner: Owner) {
    let Some(table) = TABLE.get() else { return };
    let (from, to) = (owner.number() + 1, Owner::SANDBOX.number() + 1);
    for entries in table[..frames::reach().min(table.len())].chunks(CHUNK_FRAMES) {
        if owners::frames(owner) == 0 {
            return;
        }
        frames::exclusively(|| {
            for entry in entries.iter().filter(|entry| entry.load(Ordering::Relaxed) == from) {
                owners::give_frame(owner, Owner::SANDBOX);
                entry.store(to, Ordering::Relaxed);
            }
        });
    }
}

/// Uncharges frames, some at a time.
pub(in crate::mm) struct Tally {
    owner: Owner,
    count: usize,
}

impl Tally {
    pub(in crate::mm) const fn new() -> Self {
        Self { owner: Owner::SANDBOX, count: 0 }
    }

    /// The frame's last reference went, and it is not free yet. The allocator's lock is held, so its owner does not leave it
    /// to the sandbox just now.
    pub(in crate::mm) fn add(&mut self, frame: Frame) {
        let Some(entry) = entry(frame) else { return };
        let Some(number) = entry.load(Ordering::Relaxed).checked_sub(1) else { return };
        entry.store(0, Ordering::Relaxed);
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
