//! Pages: memory and a number.

use std::ptr::NonNull;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// A page's number: its owner's, dense enough to index a table with.
pub type PageId = u32;

/// A page of memory and its number.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub id: PageId,
    addr: NonNull<u8>,
}

// SAFETY: an address and a number; the promise of `Page::new` bounds the use of the memory behind it.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// The page at `addr`.
    ///
    /// # Safety
    /// `addr` is page-aligned, and the page stays mapped, readable and writable as long as the value is used. Nobody
    /// relies on it not being written meanwhile: a write by others only spoils its own content or checksum.
    #[must_use]
    pub unsafe fn new(id: PageId, addr: NonNull<u8>) -> Self {
        Self { id, addr }
    }

    pub(crate) fn addr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8; PAGE_BYTES] {
        // SAFETY: the page is mapped and readable (`new`); its owner does not write it while it is stored or fetched.
        unsafe { &*self.addr.as_ptr().cast() }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; PAGE_BYTES] {
        // SAFETY: as above, and writable.
        unsafe { &mut *self.addr.as_ptr().cast() }
    }
}
