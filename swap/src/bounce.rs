//! Memory that the pages of large writes are gathered in first.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::large::Large;
use crate::page::{PAGE_BYTES, Page, PageBytes, PageId};
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

    /// Its first places as pages with these numbers, of which there are no more than places. They are to be used before the bounce
    /// buffer is used otherwise, or dropped.
    pub fn pages(&mut self, ids: &[PageId]) -> Vec<Page> {
        let places = self.places()[..ids.len()].as_mut_ptr();
        let page = |(at, id): (usize, &PageId)| {
            // SAFETY: there are so many places.
            let place = NonNull::new(unsafe { places.add(at) }.cast())?;
            // SAFETY: places are pages of a mapping; the caller keeps them as long as it uses the page.
            Some(unsafe { Page::new(*id, place) })
        };
        ids.iter().enumerate().filter_map(page).collect()
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
