//! Who owns the heap's pages.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::pages::PAGE_BYTES;

/// Owners that a ledger tells apart.
pub const OWNERS: usize = 256;

/// Pages allocated, by owner. A block belongs to the owner that is current when it leaves the buddies, so a slab to the
/// owner whose object opened it. Written under the heap's lock, read without it.
pub struct Ledger {
    current: fn() -> u8,
    pages: [AtomicUsize; OWNERS],
}

/// The ledger of heaps that have no owners. What it says of several is anything.
pub(super) static NOBODY: Ledger = Ledger::new(|| 0);

impl Ledger {
    /// A ledger without pages. `current` names the owner of what is allocated; it neither allocates nor waits.
    pub const fn new(current: fn() -> u8) -> Self {
        Self { current, pages: [const { AtomicUsize::new(0) }; OWNERS] }
    }

    /// Bytes in pages that an owner has. One atomic load.
    pub fn bytes(&self, owner: u8) -> usize {
        self.pages[usize::from(owner)].load(Ordering::Relaxed) * PAGE_BYTES
    }

    /// Whose the next pages are.
    pub(super) fn current(&self) -> u8 {
        (self.current)()
    }

    pub(super) fn add(&self, owner: u8, pages: usize) {
        self.set(owner, |now| now.wrapping_add(pages));
    }

    pub(super) fn remove(&self, owner: u8, pages: usize) {
        self.set(owner, |now| now.wrapping_sub(pages));
    }

    /// The heap's lock is held, so nobody else writes.
    fn set(&self, owner: u8, change: impl FnOnce(usize) -> usize) {
        let pages = &self.pages[usize::from(owner)];
        pages.store(change(pages.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}
