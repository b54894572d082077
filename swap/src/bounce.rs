//! Memory that the pages of large writes are gathered in first.

use std::sync::{Mutex, PoisonError};

use crate::large::Large;
use crate::page::{PAGE_BYTES, PageBytes};
use crate::piece::Piece;

/// Room for the pages of one write.
pub struct Bounce {
    memory: Large,
    pages: usize,
}

impl Bounce {
    /// `None`: there is no memory for it.
    fn new(pages: usize) -> Option<Self> {
        Large::new(pages).map(|memory| Self { memory, pages })
    }

    /// Its places.
    pub fn places(&mut self) -> &mut [PageBytes] {
        // SAFETY: the memory is this value's own, zeros at first, and borrowed as the value is.
        unsafe { std::slice::from_raw_parts_mut(self.memory.first(), self.pages) }
    }

    /// Its first `count` places, a piece each.
    pub fn pieces(&mut self, count: usize) -> Vec<Piece<'_>> {
        let places = self.places()[..count].as_mut_ptr();
        // SAFETY: there are so many places, and they are borrowed for as long as the pieces live.
        (0..count).map(|at| unsafe { Piece::new(places.add(at).cast(), PAGE_BYTES) }).collect()
    }
}

/// The bounce buffers of the threads of one store, used again and again.
pub struct Bounces {
    pages: usize,
    free: Mutex<Vec<Bounce>>,
}

impl Bounces {
    /// For up to so many pages at a time each.
    pub fn new(pages: usize) -> Self {
        Self { pages, free: Mutex::default() }
    }

    pub fn take(&self) -> Option<Bounce> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.or_else(|| Bounce::new(self.pages))
    }

    pub fn give_back(&self, bounce: Bounce) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(bounce);
    }
}
