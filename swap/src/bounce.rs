//! Memory in one piece: a disk takes pages from it by far fewer requests than from scattered places, each by itself.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::page::{PAGE_BYTES, Page};

/// Room for the pages of one write.
pub struct Bounce {
    start: NonNull<u8>,
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

    /// Copies the page to place `at`; returns the copy's address. `None`: there is no such place.
    pub fn put(&mut self, at: usize, page: &Page) -> Option<*mut u8> {
        if at >= self.pages {
            return None;
        }
        // SAFETY: the place was checked, and is nobody else's.
        unsafe {
            let to = self.start.as_ptr().add(at * PAGE_BYTES);
            to.copy_from_nonoverlapping(page.bytes().as_ptr(), PAGE_BYTES);
            Some(to)
        }
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
