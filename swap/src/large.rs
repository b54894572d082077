//! Memory in one piece, of large pages where the host has any: a disk takes it by far fewer requests than scattered pages,
//! each by itself.

use std::ptr::NonNull;

use crate::page::{PAGE_BYTES, PageBytes};

/// Bytes of a large page on x86-64.
pub const LARGE_BYTES: usize = 2 << 20;

/// Pages of zeros at first, which begin where a large page does.
pub struct Large {
    mapping: NonNull<libc::c_void>,
    mapped: usize,
    first: NonNull<PageBytes>,
    pages: usize,
}

// SAFETY: the memory is the value's own; whoever reads or writes it says why that may be.
unsafe impl Send for Large {}
// SAFETY: as above.
unsafe impl Sync for Large {}

impl Large {
    /// `None`: there is no memory for it.
    pub fn new(pages: usize) -> Option<Self> {
        Self::mapped(pages, libc::MAP_PRIVATE, Some(libc::MADV_HUGEPAGE))
    }

    /// Memory of which only what is written counts.
    pub fn small(pages: usize) -> Option<Self> {
        Self::mapped(pages, libc::MAP_PRIVATE, Some(libc::MADV_NOHUGEPAGE))
    }

    /// Memory as that of a sandbox is on systrap: shared, and of small pages unless the host is set up to give it large ones.
    pub fn shared(pages: usize) -> Option<Self> {
        Self::mapped(pages, libc::MAP_SHARED, None)
    }

    fn mapped(pages: usize, kind: libc::c_int, advice: Option<libc::c_int>) -> Option<Self> {
        let (len, access) = (pages * PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE);
        let mapped = len + LARGE_BYTES;
        let flags = kind | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping, wherever there is room.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), mapped, access, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return None;
        }
        let first = mapping.wrapping_byte_add(mapping.align_offset(LARGE_BYTES));
        if let Some(advice) = advice {
            // SAFETY: the range lies in the mapping. Where there are no large pages, small ones do.
            unsafe { libc::madvise(first, len, advice) };
        }
        Some(Self { mapping: NonNull::new(mapping)?, mapped, first: NonNull::new(first.cast())?, pages })
    }

    /// Gives the host so many of its pages back, from `first` on: they are zeros again.
    pub fn give_back(&mut self, first: usize, pages: usize) {
        let behind = self.pages.min(first.saturating_add(pages));
        if first < behind {
            let (start, len) = (self.first.as_ptr().wrapping_add(first), (behind - first) * PAGE_BYTES);
            // SAFETY: the range lies in the mapping, which is this value's own, to be changed.
            unsafe { libc::madvise(start.cast(), len, libc::MADV_DONTNEED) };
        }
    }

    /// The first page; so many as were asked for follow each other.
    pub fn first(&self) -> *mut PageBytes {
        self.first.as_ptr()
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nobody uses it any more.
        unsafe { libc::munmap(self.mapping.as_ptr(), self.mapped) };
    }
}
