//! The heap behind a lock, as the kernel's global allocator.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};

use super::HeapStats;
use super::ledger::{Ledger, NOBODY};
use super::pages::{Block, FreeError, PAGE_BYTES};
use super::slab::{Fit, Heap};
use crate::lock::{Lock, RawLock, SpinLock};

/// The kernel heap. It has no memory, and every allocation fails, until [`LockedHeap::init`].
pub struct LockedHeap<L = SpinLock> {
    heap: Lock<L, Heap>,
    /// Bytes in pages that are allocated, and in free pages that may hold host memory. Written under the lock.
    used: AtomicUsize,
    dirty_free: AtomicUsize,
}

impl<L: RawLock> LockedHeap<L> {
    /// Makes a heap without memory.
    pub const fn new(lock: L) -> Self {
        Self::with_ledger(lock, &NOBODY)
    }

    /// Makes a heap without memory as [`LockedHeap::new`] does, with a ledger of its own that tells whose its pages
    /// are.
    pub const fn with_ledger(lock: L, ledger: &'static Ledger) -> Self {
        Self {
            heap: Lock::new(lock, Heap::empty(ledger)),
            used: AtomicUsize::new(0),
            dirty_free: AtomicUsize::new(0),
        }
    }

    /// Runs `f` with the lock held, and publishes the numbers that are read without it.
    fn locked<R>(&self, f: impl FnOnce(&mut Heap) -> R) -> R {
        self.heap.with(|heap| {
            let result = f(heap);
            let used = heap.buddy.total_bytes() - heap.buddy.free_bytes();
            self.used.store(used, Ordering::Relaxed);
            self.dirty_free.store(heap.buddy.dirty_free_bytes(), Ordering::Relaxed);
            result
        })
    }

    /// Gives the heap the range `start..start + len_bytes`, rounded inwards to pages. About 0.2 % of it is
    /// reserved for bookkeeping; little of either is touched now.
    ///
    /// # Safety
    /// - The range is mapped, writable and zero-filled, and the heap's alone for its whole life.
    /// - It is called once, before anything is allocated.
    pub unsafe fn init(&self, start: NonNull<u8>, len_bytes: usize) {
        // SAFETY: the caller's promise.
        self.locked(|heap| unsafe { heap.init(start, len_bytes) });
    }

    /// Allocates `1 << order` pages, aligned to as much; their content is anything. `None`: there is no such
    /// block, or `order` is above [`super::MAX_ORDER`].
    pub fn alloc_pages(&self, order: u32) -> Option<NonNull<u8>> {
        Some(self.locked(|heap| heap.buddy.alloc(order))?.start)
    }

    /// Allocates pages as [`LockedHeap::alloc_pages`] does, filled with zeros. Pages that were never used, or were
    /// released to the host, are not touched for it.
    pub fn alloc_zeroed_pages(&self, order: u32) -> Option<NonNull<u8>> {
        let block = self.locked(|heap| heap.buddy.alloc(order))?;
        // SAFETY: the block is fresh and that large.
        Some(unsafe { zeroed(block, PAGE_BYTES << order) })
    }

    /// Frees `1 << order` pages. A block that is not allocated with that order is refused.
    ///
    /// # Safety
    /// Nobody uses the pages any more, and they came from `alloc_pages` or `alloc_zeroed_pages`.
    pub unsafe fn free_pages(&self, start: NonNull<u8>, order: u32) -> Result<(), FreeError> {
        self.locked(|heap| heap.buddy.free(start, order))
    }

    /// Charges the pages that start there to another owner.
    pub fn give_pages(&self, start: NonNull<u8>, owner: u8) {
        self.locked(|heap| heap.buddy.give(start, owner));
    }

    /// Charges all that `from` still has to `to`. The lock is given away in between: nothing is allocated for `from`
    /// meanwhile.
    pub fn give_all(&self, from: u8, to: u8) {
        const BLOCKS_AT_ONCE: usize = 1024;
        let mut next = Some(0);
        while let Some(page) = next {
            next = self.locked(|heap| heap.buddy.give_all(page, BLOCKS_AT_ONCE, from, to));
        }
    }

    /// Bytes in pages that are allocated. One atomic load.
    pub fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes in free pages that may hold host memory. One atomic load.
    pub fn dirty_free_bytes(&self) -> usize {
        self.dirty_free.load(Ordering::Relaxed)
    }

    /// Sizes, all taken at one moment.
    pub fn stats(&self) -> HeapStats {
        self.heap.with(|heap| heap.stats())
    }

    /// Gives free pages that may hold host memory to `release`, range by range: start and length in bytes.
    /// Empty slabs are freed first. Free pages hold no header, so ranges are released whole.
    ///
    /// The lock is not held during `release`, and the range is set aside meanwhile, so others may allocate
    /// (`release` too). Returns the bytes released; of a range that was merged from used and unused pages
    /// only part was resident.
    ///
    /// # Safety
    /// Where `release` returns true, the range reads as zeros afterwards; it does not write to it otherwise.
    pub unsafe fn trim(&self, mut release: impl FnMut(NonNull<u8>, usize) -> bool) -> usize {
        self.locked(|heap| heap.release_empty_slabs());
        let (mut from, mut released) = (0, 0);
        // SAFETY: the caller's promise.
        while let Some((next, bytes)) = unsafe { self.trim_step(from, usize::MAX, &mut release) } {
            released += bytes;
            from = next;
        }
        released
    }

    /// One step of [`LockedHeap::trim`], for while others run: up to `most_bytes` (a power of two of pages) of the first
    /// range at or after the page `from`. Returns the page at which the next step goes on, and the bytes released; `None`:
    /// there is no such range.
    ///
    /// # Safety
    /// As for [`LockedHeap::trim`].
    pub unsafe fn trim_step(
        &self,
        from: usize,
        most_bytes: usize,
        release: impl FnOnce(NonNull<u8>, usize) -> bool,
    ) -> Option<(usize, usize)> {
        let most = (most_bytes / PAGE_BYTES).max(1);
        let (start, end) = self.locked(|heap| heap.buddy.claim_dirty(from, most))?;
        let len = (end - start) * PAGE_BYTES;
        let done = release(self.locked(|heap| heap.buddy.pointer(start)), len);
        self.locked(|heap| heap.buddy.settle(start, end, done));
        Some((end, if done { len } else { 0 }))
    }

    /// The fewest bytes in free pages with host memory there were at a time since this was asked last: so many were not
    /// needed since.
    pub fn take_dirty_low_bytes(&self) -> usize {
        self.locked(|heap| heap.buddy.take_dirty_low_bytes())
    }
}

/// Fills a block with zeros unless it holds them already.
///
/// # Safety
/// The block is the caller's, and at least `len_bytes` long.
unsafe fn zeroed(block: Block, len_bytes: usize) -> NonNull<u8> {
    if !block.clean {
        // SAFETY: the caller's promise.
        unsafe { block.start.as_ptr().write_bytes(0, len_bytes) };
    }
    block.start
}

// SAFETY: blocks are aligned, large enough, and disjoint until they are freed; nothing here unwinds.
unsafe impl<L: RawLock> GlobalAlloc for LockedHeap<L> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = Fit::of(layout).and_then(|fit| self.locked(|heap| heap.alloc(fit)));
        block.map_or(ptr::null_mut(), |block| block.start.as_ptr())
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if let (Some(start), Some(fit)) = (NonNull::new(start), Fit::of(layout)) {
            // SAFETY: the caller allocated it here with the same layout, hence the same `fit`.
            self.locked(|heap| unsafe { heap.free(start, fit) });
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(block) = Fit::of(layout).and_then(|fit| self.locked(|heap| heap.alloc(fit))) else {
            return ptr::null_mut();
        };
        // SAFETY: the block is fresh and at least as large as the layout asks for.
        unsafe { zeroed(block, layout.size()) }.as_ptr()
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(new_size, layout.align()) else {
            return ptr::null_mut();
        };
        if Fit::of(layout) == Fit::of(new) {
            return start;
        }
        // SAFETY: (1) the caller's promise for `start` and `layout`; (2) the new block is distinct, and the
        // copy is as long as the smaller of the two.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(start, layout.size().min(new_size));
                self.dealloc(start, layout);
            }
            moved
        }
    }
}
