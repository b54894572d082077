//! Homes for the pages of a sleeping sandbox. Knows nothing of containers, of KVM, or of page tables: a page is 4 KiB at
//! an address, named by a number that its owner gives it (a frame number).
//!
//! A [`Home`] takes a batch of pages, all or nothing, gives single pages back, and gives a whole set back in the order in
//! which it was stored. [`SwapHome`] is the first one: the two files of *Hibernate Container* (section 3.4), a swap file
//! for single pages and a REAP file for the working set. Every page carries a checksum that is verified on its way in.
//! The files' format is in `docs/swap-format.md`.

mod file;
mod home;
pub mod io;
mod table;

pub use file::{SwapFileError, open_unnamed};
pub use home::{Prefetched, Stored, SwapHome};

use std::io as stdio;
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

impl Page {
    /// The page at `addr`.
    ///
    /// # Safety
    /// `addr` is page-aligned, and the page stays mapped, readable and writable as long as the value is used. Nobody
    /// relies on it not being written meanwhile: what others write to it only spoils its own content or checksum.
    #[must_use]
    pub unsafe fn new(id: PageId, addr: NonNull<u8>) -> Self {
        Self { id, addr }
    }

    fn addr(&self) -> *mut u8 {
        self.addr.as_ptr()
    }

    /// Its bytes.
    fn bytes(&self) -> &[u8; PAGE_BYTES] {
        // SAFETY: the page is mapped and readable (`new`); its owner does not write it while it is stored or fetched.
        unsafe { &*self.addr.as_ptr().cast() }
    }

    fn bytes_mut(&mut self) -> &mut [u8; PAGE_BYTES] {
        // SAFETY: as above, and writable.
        unsafe { &mut *self.addr.as_ptr().cast() }
    }
}

/// Why pages could not be stored or fetched.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    #[error("cannot write pages to the {file}: {source}")]
    Write { file: &'static str, source: stdio::Error },
    #[error("cannot read pages from the {file}: {source}")]
    Read { file: &'static str, source: stdio::Error },
    #[error("page {id} came back from the {file} damaged: checksum {found:#010x} instead of {stored:#010x}")]
    Damaged { file: &'static str, id: PageId, stored: u32, found: u32 },
    #[error("page {id} was never stored")]
    Unknown { id: PageId },
    #[error("the swap limit of {limit_bytes} bytes is reached")]
    Limit { limit_bytes: u64 },
}

/// A place for pages. Calls are made by one thread at a time.
pub trait Home: Send {
    /// Stores pages: `working_set`, in this order, to come back together by [`Self::prefetch`], and `rest`, to come back
    /// one by one. Replaces what was stored under the same numbers. After an error nothing has changed.
    fn store(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError>;
    /// Brings pages back, in any order; neighbours in the file are read together. The pages stay stored. After an error
    /// the content of the pages is undefined.
    fn fetch(&mut self, pages: &mut [Page]) -> Result<u64, SwapError>;
    /// The numbers of the working set, in its order.
    fn working_set(&self) -> &[PageId];
    /// Brings the working set back. `page` says where each one goes, or that it is not wanted any more.
    fn prefetch(&mut self, page: &mut dyn FnMut(PageId) -> Option<Page>) -> Result<Prefetched, SwapError>;
    /// Forgets pages that are not `kept`.
    fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool);
    /// Bytes of disk in use.
    fn stored_bytes(&self) -> u64;
}
