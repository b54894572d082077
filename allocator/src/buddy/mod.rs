//! The kernel heap: pages by binary buddies, small objects by slabs (Hibernate Container, section 3.3, item
//! 2).
//!
//! The heap lives in one virtual range that may be far larger than what is used. Only touched pages cost
//! memory, so bookkeeping stands in a table at the start of the range, of which zeros mean "nothing here",
//! and free pages hold no header: [`LockedHeap::trim`] can give every free page back to the host.

mod heap;
mod ledger;
#[cfg(test)]
mod ledger_tests;
mod pages;
mod slab;
#[cfg(test)]
mod tests;

pub use heap::LockedHeap;
pub use ledger::{Ledger, OWNERS};
pub use pages::{FreeError, MAX_ORDER, PAGE_BYTES};

/// Sizes of a heap, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeapStats {
    /// All that can be allocated: the range without the bookkeeping table.
    pub total_bytes: usize,
    /// In pages that are allocated, slabs included.
    pub used_bytes: usize,
    /// In free pages.
    pub free_bytes: usize,
    /// The part of `free_bytes` in blocks that may hold host memory: at most what `trim` gives back.
    pub dirty_free_bytes: usize,
    /// In pages that slabs occupy.
    pub slab_bytes: usize,
    /// In objects allocated from slabs, each counted with the size of its class.
    pub object_bytes: usize,
}
