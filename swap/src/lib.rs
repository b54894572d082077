//! Homes for the pages of a sleeping sandbox. Knows nothing of containers, of KVM, or of page tables: a page is 4 KiB at
//! an address, named by a number that its owner gives it (a frame number).
//!
//! A [`Home`] takes a batch of pages, all or nothing, and gives single pages or whole sets back. [`SwapHome`] is the first one: the two files of *Hibernate Container* (section 3.4), a swap file
//! for single pages and a REAP file for the working set. Every page carries a checksum that is verified on its way in.
//! The files' format is in `docs/swap-format.md`.

mod bounce;
mod file;
mod home;
pub mod io;
mod pool;
mod table;

pub use file::{SwapFileError, open_unnamed};
pub use home::{Stored, SwapHome};

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

// SAFETY: an address and a number; what is done with the memory behind it is bound by the promise of `Page::new`.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

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
    /// Stores pages: `working_set` to come back together, in this order, and `rest` to come back one by one. Replaces what was stored under the same numbers. After an error nothing has changed.
    fn store(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError>;
    /// Brings pages back, one or a whole set, in any order; neighbours in the file are read together. The pages stay
    /// stored. After an error the content of the pages is undefined. Result: bytes read.
    fn fetch(&mut self, pages: &mut [Page]) -> Result<u64, SwapError>;
    /// Brings the first of `pages` back, and those of the others that lie next to it in the file: reading them along costs
    /// next to nothing. Others are left out of `pages`, whose order changes. Otherwise as [`Self::fetch`].
    fn fetch_around(&mut self, pages: &mut Vec<Page>) -> Result<u64, SwapError>;
    /// Forgets pages that are not `kept`.
    fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool);
    /// Bytes of disk in use.
    fn stored_bytes(&self) -> u64;
}
