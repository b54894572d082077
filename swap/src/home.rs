//! The operations of a home of pages.

use std::io::Write;
use std::os::fd::BorrowedFd;

use crate::bits::Bits;
use crate::error::{SwapError, TablesError};
use crate::page::{Page, PageId};

/// A place for the pages of one sandbox. Several threads may fetch at once.
pub trait Home: Send + Sync {
    /// Stores pages: `working_set` to come back together, in this order, and `rest` to come back one by one. Replaces
    /// the pages stored under the same numbers. After an error nothing has changed.
    fn store(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError>;
    /// Brings pages back, one or a whole set, in any order; neighbours in the file are read together. The pages stay
    /// stored. After an error the content of the pages is undefined. Result: bytes read.
    fn fetch(&self, pages: &[Page]) -> Result<u64, SwapError>;
    /// Brings the first of `pages` back, and those of the others that lie next to it in the file: reading them along costs
    /// next to nothing. Others are left out of `pages`, whose order changes. Otherwise as [`Self::fetch`].
    fn fetch_around(&self, pages: &mut Vec<Page>) -> Result<u64, SwapError>;
    /// Pages that were fetched have come to stay: a home that pays for them twice forgets them. No others are fetched by these numbers until
    /// they are stored again.
    fn forget(&self, _pages: &[PageId]) {}
    /// Forgets pages that are not `kept`.
    fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool);
    /// Nothing is fetched for a while: gives back memory that only makes it faster.
    fn rest(&self);
    /// The pages that it has.
    fn pages(&self) -> Bits;
    /// Bytes of the home's own storage in use.
    fn stored_bytes(&self) -> u64;
    /// Returns the numbers that the home counts.
    fn stats(&self) -> Vec<Stat>;
    /// Writes down what a home of the same kind needs besides the storage to be opened anew (`docs/swap-format.md`).
    fn persist(&self, to: &mut dyn Write) -> Result<(), TablesError>;
    /// The descriptors of its own storage, in the order in which a home of the same kind is opened anew with them.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;
}

/// The outcome of a [`Home::store`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Pages written to the swap file.
    pub swap_pages: u64,
    /// Pages written to the REAP file.
    pub reap_pages: u64,
    /// Pages of one repeated word, which were only recorded.
    pub word_pages: u64,
    /// Pages that equal the base's, which were only recorded.
    pub base_pages: u64,
    /// Pages that were packed at once.
    pub packed_pages: u64,
    /// Bytes that the packed pages take.
    pub packed_bytes: u64,
    /// Pages that are kept in memory.
    pub memory_pages: u64,
    /// Bytes that all pages there take.
    pub memory_bytes: u64,
    /// They are to be kept in memory, and went to the disk first since they are many.
    pub is_to_lift: bool,
    /// They were to be kept in memory, and found no room there.
    pub fell_to_disk: bool,
}

impl Stored {
    /// Pages that went to the disk.
    #[must_use]
    pub fn disk_pages(&self) -> u64 {
        self.swap_pages + self.reap_pages + self.packed_pages
    }
}

/// A number that a home counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The number's name.
    pub name: &'static str,
    /// The number itself.
    pub value: u64,
}
