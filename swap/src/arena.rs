//! Memory that large reads go to first: one large page, which a disk fills by far fewer requests than as many small ones.
//! What has been read there is nobody else's yet, so its checksum holds for what is then copied to its place.

use std::sync::{Arc, Mutex, PoisonError};

use crate::large::{LARGE_BYTES, Large};
use crate::page::{PAGE_BYTES, PageBytes};
use crate::piece::Piece;

/// Pages of a read, and so many reads at a time.
pub const PART_PAGES: usize = 128;
const PARTS: usize = LARGE_BYTES / PAGE_BYTES / PART_PAGES;

/// One large page, in parts for a read each.
pub struct Arena {
    memory: Large,
    /// Parts that nobody uses, by their numbers: each is one user's at a time.
    free: Mutex<Vec<usize>>,
}

impl Arena {
    /// `None`: there is no memory for it.
    fn new() -> Option<Self> {
        Some(Self { memory: Large::new(PARTS * PART_PAGES)?, free: Mutex::new((0..PARTS).collect()) })
    }

    /// A part; `None`: all are in use.
    pub fn take(&self) -> Option<Part<'_>> {
        let number = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Part { arena: self, number })
    }
}

/// A part of an arena.
pub struct Part<'a> {
    arena: &'a Arena,
    number: usize,
}

impl Part<'_> {
    fn start(&self) -> *mut PageBytes {
        // SAFETY: there are so many parts in the arena.
        unsafe { self.arena.memory.first().add(self.number * PART_PAGES) }
    }

    /// Its first `pages` pages, for a device to write.
    pub fn piece(&mut self, pages: usize) -> Piece<'_> {
        // SAFETY: the part is borrowed, and nobody has a reference to it meanwhile.
        unsafe { Piece::new(self.start().cast(), pages.min(PART_PAGES) * PAGE_BYTES) }
    }

    /// Its pages, to be changed.
    pub fn pages_mut(&mut self) -> &mut [PageBytes] {
        // SAFETY: as below, and the part is borrowed for this alone.
        unsafe { std::slice::from_raw_parts_mut(self.start(), PART_PAGES) }
    }

    /// Its pages.
    pub fn pages(&self) -> &[PageBytes] {
        // SAFETY: the part is in the mapping, zeros at first, and borrowed; nobody writes it meanwhile.
        unsafe { std::slice::from_raw_parts(self.start(), PART_PAGES) }
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.arena.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// Reads of fewer pages do as well without.
const PAGES_MIN: usize = 4;
/// After so many smaller reads in a row it is worth its memory.
const READS_MIN: u32 = 4;

/// The arena of a home: made when much is read, and kept until nothing more is to be read for a while.
#[derive(Default)]
pub struct SharedArena(Mutex<Shared>);

#[derive(Default)]
struct Shared {
    arena: Option<Arc<Arena>>,
    reads: u32,
}

impl SharedArena {
    /// The arena for a read of so many pages; `None`: it does without, as it does if there is no memory.
    pub fn get(&self, pages: usize) -> Option<Arc<Arena>> {
        if pages < PAGES_MIN {
            return None;
        }
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.reads = shared.reads.saturating_add(1);
        if shared.arena.is_none() && (pages >= PART_PAGES || shared.reads > READS_MIN) {
            shared.arena = Arena::new().map(Arc::new);
        }
        shared.arena.clone()
    }

    /// Nothing is read for a while: gives the memory back.
    pub fn trim(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Shared::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_apart_and_come_back() {
        let shared = SharedArena::default();
        assert!(shared.get(PART_PAGES - 1).is_none());
        let arena = shared.get(PART_PAGES).unwrap();
        assert!(Arc::ptr_eq(&arena, &shared.get(PAGES_MIN).unwrap()));
        let mut parts: Vec<Part<'_>> = std::iter::from_fn(|| arena.take()).collect();
        assert_eq!(parts.len(), PARTS);
        for (number, part) in (1_u64..).zip(&mut parts) {
            part.piece(PART_PAGES).fill(number);
        }
        for (number, part) in (1_u64..).zip(&parts) {
            let is_filled =
                |page: &PageBytes| page.as_chunks().0.iter().all(|word| *word == number.to_ne_bytes());
            assert!(part.pages().iter().all(is_filled));
        }
        drop(parts);
        assert!(arena.take().is_some());
        shared.trim();
        assert_eq!(Arc::strong_count(&arena), 1);
    }

    #[test]
    fn a_few_small_reads_do_without() {
        let shared = SharedArena::default();
        let has = |pages| shared.get(pages).is_some();
        assert!((0..100).all(|_| !has(PAGES_MIN - 1)));
        assert!((0..READS_MIN).all(|_| !has(PAGES_MIN)) && has(PAGES_MIN) && !has(1));
        shared.trim();
        assert!(!has(PAGES_MIN));
    }
}
