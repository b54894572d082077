//! Memory in one piece: a disk takes pages from it by far fewer requests than from scattered places, each by itself.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::page::{PAGE_BYTES, PageBytes};
use crate::piece::Piece;

/// Room for the pages of one write.
pub struct Bounce {
    start: NonNull<PageBytes>,
    pages: usize,
}

// SAFETY: the memory is the value's own.
unsafe impl Send for Bounce {}

impl Bounce {
    /// `None`: there is no memory for it.
    fn new(pages: usize) -> Option<Self> {
        let (len, access) = (pages * PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a fresh mapping, wherever there is room.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the range was just mapped. Large pages make the piece one for the disk, too; it goes without.
        unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
        NonNull::new(start.cast()).map(|start| Self { start, pages })
    }

    /// Its places.
    pub fn places(&mut self) -> &mut [PageBytes] {
        // SAFETY: the mapping is this value's own, zeros at first, and borrowed as the value is.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.pages) }
    }

    /// Its first `count` places, a piece each.
    pub fn pieces(&mut self, count: usize) -> Vec<Piece<'_>> {
        let places = self.places()[..count].as_mut_ptr();
        // SAFETY: there are so many places, and they are borrowed for as long as the pieces live.
        (0..count).map(|at| unsafe { Piece::new(places.add(at).cast(), PAGE_BYTES) }).collect()
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nobody uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.pages * PAGE_BYTES) };
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
