//! The kernel heap: buddy pages and slabs over the kernel memory the VMM left free.

use alloc::vec::Vec;
use allocator::buddy::{Ledger, LockedHeap};
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

use crate::errno::{Errno, Result};
use crate::owner::{self, Owner};
use crate::platform;
use crate::rank::Rank;
use crate::spin::SpinLock;

/// Whose the heap's pages are.
static LEDGER: Ledger = Ledger::new(|| owner::current().number());
/// The heap. The image makes it the global allocator.
pub static HEAP: LockedHeap<SpinLock<()>> = LockedHeap::with_ledger(SpinLock::new(Rank::Heap, ()), &LEDGER);

/// Gives the heap its memory.
///
/// # Safety
/// Called once; `[start, end)` (guest-physical) is zero-filled kernel memory nobody else uses.
pub unsafe fn init(start: u64, end: u64) {
    if let (Some(pointer), Ok(len)) =
        (NonNull::new(platform::ptr::<u8>(start)), usize::try_from(end.saturating_sub(start)))
    {
        // SAFETY: the caller vouches for the range.
        unsafe { HEAP.init(pointer, len) };
    }
}

fn order_of(bytes: usize) -> u32 {
    bytes.div_ceil(4096).next_power_of_two().trailing_zeros()
}

/// Pages for `bytes` (rounded up to a power of two of pages); their linear address. Content is anything.
pub fn alloc_pages(bytes: usize) -> Option<u64> {
    HEAP.alloc_pages(order_of(bytes)).map(|pointer| pointer.as_ptr() as u64)
}

/// One page of zeros; its linear address.
pub fn alloc_zeroed_page() -> Option<u64> {
    HEAP.alloc_zeroed_pages(0).map(|pointer| pointer.as_ptr() as u64)
}

/// Words that zeros are values of.
///
/// # Safety
/// All bits 0 are a value of the type, which has a size.
pub unsafe trait Zeros {}
// SAFETY: integers.
unsafe impl Zeros for u64 {}
// SAFETY: integers.
unsafe impl Zeros for AtomicU64 {}

/// So many zeros; large ones take up none of the host's memory before they are written.
pub fn zeroed<T: Zeros>(len: usize) -> Result<Vec<T>> {
    let layout = Layout::array::<T>(len).map_err(|_| Errno::ENOMEM)?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout is not empty.
    let start = unsafe { alloc::alloc::alloc_zeroed(layout) };
    if start.is_null() {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: the global allocator gave it for just this layout, and zeros are values.
    Ok(unsafe { Vec::from_raw_parts(start.cast(), len, len) })
}

/// Frees what [`alloc_pages`] or [`alloc_zeroed_page`] gave.
pub fn free_pages(linear: u64, bytes: usize) {
    if let Some(pointer) = NonNull::new(linear as *mut u8) {
        // SAFETY: the pages came from this heap with the same size, and their user is done with them.
        let freed = unsafe { HEAP.free_pages(pointer, order_of(bytes)) };
        debug_assert!(freed.is_ok());
    }
}

/// Bytes of the pages that an owner has.
pub fn owned_bytes(owner: Owner) -> usize {
    LEDGER.bytes(owner.number())
}

/// Makes the pages that start there another owner's.
pub fn give_pages(linear: u64, owner: Owner) {
    if let Some(pointer) = NonNull::new(linear as *mut u8) {
        HEAP.give_pages(pointer, owner.number());
    }
}

/// Makes all pages of `from`, who takes none meanwhile, those of `to`.
pub fn give_all(from: Owner, to: Owner) {
    HEAP.give_all(from.number(), to.number());
}

fn release(start: NonNull<u8>, len: usize) -> bool {
    platform::release(platform::phys_of(start.as_ptr()), len as u64).is_ok()
}

/// Gives free pages back to the host; result: bytes.
pub fn trim() -> usize {
    // SAFETY: released kernel memory reads as zeros.
    unsafe { HEAP.trim(release) }
}

/// Gives up to `most_bytes` of the free pages from page `from` on back to the host; where to go on, and the bytes. `None`:
/// there are none.
pub fn trim_step(from: usize, most_bytes: usize) -> Option<(usize, usize)> {
    // The largest power of two that is not more.
    let most = most_bytes.checked_ilog2().map_or(0, |order| 1 << order);
    // SAFETY: as above.
    unsafe { HEAP.trim_step(from, most, release) }
}
