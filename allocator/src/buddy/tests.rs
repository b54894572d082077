use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

use proptest::prelude::*;

use super::*;
use crate::SpinLock;

/// A zero-filled range of address space of which only touched pages are resident.
struct Region {
    start: NonNull<u8>,
    len_bytes: usize,
}

impl Region {
    fn new(len_bytes: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping disturbs nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the mapping was just made.
        unsafe { libc::madvise(start, len_bytes, libc::MADV_NOHUGEPAGE) };
        Self { start: NonNull::new(start.cast()).unwrap(), len_bytes }
    }

    fn resident_pages(&self) -> usize {
        let mut pages = vec![0u8; self.len_bytes / PAGE_BYTES];
        // SAFETY: the range is mapped, and the vector has a byte for each page.
        let failed = unsafe { libc::mincore(self.start.as_ptr().cast(), self.len_bytes, pages.as_mut_ptr()) };
        assert_eq!(failed, 0);
        pages.iter().filter(|&&page| page & 1 != 0).count()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's, and the heap on it is gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}

/// A heap on a region of its own.
struct Fixture {
    heap: LockedHeap,
    region: Region,
}

impl Fixture {
    fn new(len_bytes: usize) -> Self {
        let region = Region::new(len_bytes);
        let heap = LockedHeap::new(SpinLock::new());
        // SAFETY: the region is mapped, zero-filled and this heap's alone.
        unsafe { heap.init(region.start, len_bytes) };
        Self { heap, region }
    }

    fn trim(&self) -> usize {
        // SAFETY: private anonymous memory reads as zeros after `MADV_DONTNEED`.
        unsafe {
            self.heap.trim(|start, len| libc::madvise(start.as_ptr().cast(), len, libc::MADV_DONTNEED) == 0)
        }
    }
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

#[test]
fn a_heap_without_memory_fails_and_does_not_panic() {
    let heap = LockedHeap::new(SpinLock::new());
    // SAFETY: the layout is not empty.
    assert!(unsafe { heap.alloc(layout(16, 16)) }.is_null());
    assert_eq!(heap.alloc_pages(0), None);
    assert_eq!(heap.stats(), HeapStats::default());
    let tiny = Fixture::new(PAGE_BYTES);
    assert_eq!(tiny.heap.alloc_pages(0), None);
}

#[test]
fn blocks_are_aligned_to_their_size_and_exhaustion_is_an_answer() {
    let fixture = Fixture::new(8 << 20);
    for order in (0..=MAX_ORDER + 2).rev() {
        let mut count = 0;
        while let Some(start) = fixture.heap.alloc_pages(order) {
            assert!(start.addr().get().is_multiple_of(PAGE_BYTES << order));
            count += 1;
        }
        assert!(count == 0 || order <= 10);
    }
    let stats = fixture.heap.stats();
    assert_eq!((stats.free_bytes, stats.used_bytes), (0, stats.total_bytes));
}

#[test]
fn a_range_that_is_not_aligned_is_rounded_inwards() {
    let region = Region::new(1 << 20);
    let heap = LockedHeap::new(SpinLock::new());
    // SAFETY: the range lies within the region.
    unsafe { heap.init(region.start.add(100), (1 << 20) - 200) };
    let stats = heap.stats();
    assert_eq!(stats.total_bytes, 253 * PAGE_BYTES);
    let pages: Vec<_> = std::iter::from_fn(|| heap.alloc_pages(0)).collect();
    assert_eq!(pages.len(), 253);
    let end = region.start.addr().get() + (1 << 20) - PAGE_BYTES;
    assert!(pages.iter().all(|page| page.addr().get() + PAGE_BYTES <= end));
}

#[test]
fn wrong_frees_are_refused() {
    let fixture = Fixture::new(1 << 20);
    let heap = &fixture.heap;
    let start = heap.alloc_pages(2).unwrap();
    // SAFETY: nobody uses the pages; wrong addresses and orders are what is tested.
    unsafe {
        assert_eq!(heap.free_pages(start, 1), Err(FreeError::NotAllocated));
        assert_eq!(heap.free_pages(start, 99), Err(FreeError::NotAllocated));
        assert_eq!(heap.free_pages(start.add(PAGE_BYTES), 0), Err(FreeError::NotAllocated));
        assert_eq!(heap.free_pages(start.add(1), 2), Err(FreeError::OutOfRange));
        assert_eq!(heap.free_pages(fixture.region.start, 0), Err(FreeError::OutOfRange));
        assert_eq!(heap.free_pages(fixture.region.start.add(1 << 20), 0), Err(FreeError::OutOfRange));
        assert_eq!(heap.free_pages(start, 2), Ok(()));
        assert_eq!(heap.free_pages(start, 2), Err(FreeError::NotAllocated));
    }
}

/// Allocates all pages one by one; returns two of them that are buddies.
fn two_buddies(heap: &LockedHeap) -> (NonNull<u8>, NonNull<u8>) {
    let pages: Vec<_> = std::iter::from_fn(|| heap.alloc_pages(0)).collect();
    let even = |page: &&NonNull<u8>| page.addr().get().is_multiple_of(2 * PAGE_BYTES);
    let next =
        |page: NonNull<u8>| pages.iter().copied().find(|p| p.addr().get() == page.addr().get() + PAGE_BYTES);
    pages.iter().filter(even).find_map(|&low| Some((low, next(low)?))).unwrap()
}

#[test]
fn a_double_free_is_refused_after_a_merge() {
    let fixture = Fixture::new(1 << 20);
    let (low, high) = two_buddies(&fixture.heap);
    // SAFETY: nobody uses the pages; freeing twice is what is tested.
    unsafe {
        fixture.heap.free_pages(low, 0).unwrap();
        fixture.heap.free_pages(high, 0).unwrap();
        assert_eq!(fixture.heap.free_pages(high, 0), Err(FreeError::NotAllocated));
        assert_eq!(fixture.heap.free_pages(low, 0), Err(FreeError::NotAllocated));
    }
    assert!(fixture.heap.alloc_pages(1).is_some());
}

#[test]
fn freed_buddies_merge_to_the_largest_block() {
    let fixture = Fixture::new(16 << 20);
    let largest =
        (0..=MAX_ORDER).rev().find_map(|order| Some((order, fixture.heap.alloc_pages(order)?))).unwrap();
    // SAFETY: nobody uses the pages.
    unsafe { fixture.heap.free_pages(largest.1, largest.0) }.unwrap();
    let pages: Vec<_> = std::iter::from_fn(|| fixture.heap.alloc_pages(0)).collect();
    for page in pages.iter().step_by(2).chain(pages.iter().skip(1).step_by(2)) {
        // SAFETY: nobody uses the pages.
        unsafe { fixture.heap.free_pages(*page, 0) }.unwrap();
    }
    assert!(fixture.heap.alloc_pages(largest.0).is_some());
}

#[test]
fn only_what_is_used_is_resident_and_trim_gives_it_back() {
    let fixture = Fixture::new(1 << 30);
    assert!(fixture.region.resident_pages() <= 32, "{} pages", fixture.region.resident_pages());
    let blocks: Vec<_> = (0..64).map(|_| fixture.heap.alloc_pages(4).unwrap()).collect();
    let objects: Vec<_> = (0..1000)
        .map(|k| {
            let layout = layout(16 + k % 900, 8);
            // SAFETY: the layout is not empty.
            (NonNull::new(unsafe { fixture.heap.alloc(layout) }).unwrap(), layout)
        })
        .collect();
    for block in &blocks {
        // SAFETY: the block is ours.
        unsafe { block.as_ptr().write_bytes(0xa5, PAGE_BYTES << 4) };
    }
    assert!(fixture.region.resident_pages() >= 1024);
    for block in blocks {
        // SAFETY: the block was allocated so, and is not used any more.
        unsafe { fixture.heap.free_pages(block, 4) }.unwrap();
    }
    for (object, layout) in objects {
        // SAFETY: as above.
        unsafe { fixture.heap.dealloc(object.as_ptr(), layout) };
    }
    assert!(fixture.trim() >= 1024 * PAGE_BYTES);
    let stats = fixture.heap.stats();
    assert_eq!(
        (stats.used_bytes, stats.slab_bytes, stats.object_bytes, stats.dirty_free_bytes),
        (0, 0, 0, 0)
    );
    assert!(fixture.region.resident_pages() <= 32, "{} pages", fixture.region.resident_pages());
    assert_eq!(fixture.trim(), 0);
    // Released pages need no zeroing, and are zero.
    let before = fixture.region.resident_pages();
    let block = fixture.heap.alloc_zeroed_pages(8).unwrap();
    assert!(fixture.region.resident_pages() <= before + 16);
    // SAFETY: the block is ours.
    let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), PAGE_BYTES << 8) };
    assert!(bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn what_is_being_trimmed_cannot_be_allocated() {
    let fixture = Fixture::new(1 << 20);
    let pages: Vec<_> = std::iter::from_fn(|| fixture.heap.alloc_pages(0)).collect();
    let (kept, freed) = pages.split_at(pages.len() / 2);
    for page in freed {
        // SAFETY: nobody uses the pages.
        unsafe { fixture.heap.free_pages(*page, 0) }.unwrap();
    }
    let mut ranges = 0;
    // SAFETY: nothing is released.
    let released = unsafe {
        fixture.heap.trim(|_, len| {
            ranges += 1;
            assert_eq!(len, freed.len() * PAGE_BYTES, "neighbours come as one range");
            assert_eq!(fixture.heap.alloc_pages(0), None);
            false
        })
    };
    assert_eq!((ranges, released), (1, 0));
    assert_eq!(fixture.heap.stats().dirty_free_bytes, freed.len() * PAGE_BYTES);
    assert_eq!(fixture.heap.stats().used_bytes, kept.len() * PAGE_BYTES);
}

#[test]
fn steps_are_bounded_and_leave_the_rest_to_others() {
    const ORDER: u32 = 12;
    let fixture = Fixture::new(64 << 20);
    let heap = &fixture.heap;
    let blocks: Vec<_> = std::iter::from_fn(|| heap.alloc_pages(ORDER)).collect();
    // SAFETY: the block is ours until it is freed.
    unsafe {
        blocks[0].as_ptr().write_bytes(0xff, PAGE_BYTES << ORDER);
        heap.free_pages(blocks[0], ORDER).unwrap();
    }
    let dirty = heap.stats().dirty_free_bytes;
    assert_eq!(dirty, PAGE_BYTES << ORDER, "clean blocks beside it do not count");
    let release = |start: NonNull<u8>, len: usize| {
        assert_eq!(len, 1 << 20);
        // The rest of the block stays for others.
        let other = heap.alloc_pages(ORDER - 1).unwrap();
        // SAFETY: it is ours; private anonymous memory reads as zeros afterwards.
        unsafe {
            heap.free_pages(other, ORDER - 1).unwrap();
            libc::madvise(start.as_ptr().cast(), len, libc::MADV_DONTNEED) == 0
        }
    };
    // SAFETY: as above.
    let (_, bytes) = unsafe { heap.trim_step(0, 1 << 20, release) }.unwrap();
    assert_eq!((bytes, heap.stats().dirty_free_bytes), (1 << 20, dirty - (1 << 20)));
    // Its clean and its dirty part are one block again as soon as one is wanted.
    let whole = heap.alloc_zeroed_pages(ORDER).unwrap();
    assert_eq!((whole, heap.alloc_pages(ORDER)), (blocks[0], None));
    // SAFETY: the block is ours until it is freed.
    unsafe {
        let bytes = std::slice::from_raw_parts(whole.as_ptr(), PAGE_BYTES << ORDER);
        assert!(bytes.iter().all(|&byte| byte == 0));
        heap.free_pages(whole, ORDER).unwrap();
    }
    let (mut from, mut released) = (0, 0);
    // SAFETY: private anonymous memory reads as zeros afterwards.
    let release = |start: NonNull<u8>, len| unsafe {
        libc::madvise(start.as_ptr().cast(), len, libc::MADV_DONTNEED) == 0
    };
    // SAFETY: as above.
    while let Some((next, bytes)) = unsafe { heap.trim_step(from, 1 << 20, release) } {
        assert!(next > from);
        (from, released) = (next, released + bytes);
    }
    assert_eq!((released, heap.stats().dirty_free_bytes), (dirty, 0));
}

#[test]
fn the_low_watermark_is_what_was_never_needed() {
    let fixture = Fixture::new(8 << 20);
    let heap = &fixture.heap;
    let pages: Vec<_> = std::iter::from_fn(|| heap.alloc_pages(0)).collect();
    let all = pages.len() * PAGE_BYTES;
    // SAFETY: nobody uses the pages.
    pages.into_iter().for_each(|page| unsafe { heap.free_pages(page, 0) }.unwrap());
    assert_eq!(heap.take_dirty_low_bytes(), 0);
    assert_eq!(heap.take_dirty_low_bytes(), all);
    for _ in 0..10 {
        let page = heap.alloc_pages(0).unwrap();
        // SAFETY: nobody uses the page.
        unsafe { heap.free_pages(page, 0) }.unwrap();
    }
    assert_eq!(heap.take_dirty_low_bytes(), all - PAGE_BYTES, "taken apart, the rest is not needed");
    assert_eq!(fixture.trim(), all);
    assert_eq!(heap.take_dirty_low_bytes(), 0);
}

#[test]
fn what_is_freed_during_a_trim_stays_dirty() {
    let fixture = Fixture::new(1 << 20);
    let heap = &fixture.heap;
    let (low, high) = two_buddies(heap);
    // SAFETY: the pages are ours until they are freed, one before the trim and one in it.
    unsafe {
        low.as_ptr().write_bytes(0xff, PAGE_BYTES);
        high.as_ptr().write_bytes(0xff, PAGE_BYTES);
        heap.free_pages(low, 0).unwrap();
        heap.trim(|start, len| {
            if start == low {
                heap.free_pages(high, 0).unwrap();
            }
            start.as_ptr().write_bytes(0, len);
            true
        });
        let pair = heap.alloc_zeroed_pages(1).unwrap();
        assert!(std::slice::from_raw_parts(pair.as_ptr(), 2 * PAGE_BYTES).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn empty_slabs_go_back_except_one() {
    let fixture = Fixture::new(4 << 20);
    let layout = layout(100, 4);
    // SAFETY: the layout is not empty.
    let objects: Vec<_> = (0..1000).map(|_| unsafe { fixture.heap.alloc(layout) }).collect();
    assert_eq!(fixture.heap.stats().object_bytes, 1000 * 128);
    for object in objects {
        // SAFETY: it was allocated so, and is not used any more.
        unsafe { fixture.heap.dealloc(object, layout) };
    }
    assert_eq!(fixture.heap.stats().slab_bytes, PAGE_BYTES);
}

#[test]
fn realloc_stays_in_place_within_its_class_and_copies_beyond() {
    let fixture = Fixture::new(4 << 20);
    // SAFETY: (1) layouts match what was allocated; (2) only as much as was allocated is read and written.
    unsafe {
        let start = fixture.heap.alloc(layout(130, 8));
        start.write_bytes(7, 130);
        assert_eq!(fixture.heap.realloc(start, layout(130, 8), 190), start);
        let moved = fixture.heap.realloc(start, layout(190, 8), 9000);
        assert_ne!(moved, start);
        assert!(std::slice::from_raw_parts(moved, 130).iter().all(|&byte| byte == 7));
        assert_eq!(fixture.heap.realloc(moved, layout(9000, 8), 16384), moved);
        // A `realloc` that cannot be served leaves the old block alone.
        assert!(fixture.heap.realloc(moved, layout(16384, 8), 1 << 30).is_null());
        assert_eq!(*moved, 7);
        fixture.heap.dealloc(moved, layout(16384, 8));
    }
    assert_eq!(fixture.heap.stats().object_bytes, 0);
}

#[test]
fn threads_use_one_heap() {
    let fixture = Fixture::new(32 << 20);
    std::thread::scope(|scope| {
        for seed in 0..4usize {
            let heap = &fixture.heap;
            scope.spawn(move || {
                let mut held: Vec<(*mut u8, Layout)> = Vec::new();
                for step in 0..20_000usize {
                    if held.len() < 50 || step % 3 == 0 {
                        let layout = layout(1 + (step * 131 + seed * 977) % 6000, 1 << (step % 8));
                        // SAFETY: the layout is not empty, and the block is written within its size.
                        unsafe {
                            let start = heap.alloc(layout);
                            assert!(!start.is_null());
                            start.write(u8::try_from(seed).unwrap());
                            held.push((start, layout));
                        }
                    } else {
                        let (start, layout) = held.swap_remove(step * 31 % held.len());
                        // SAFETY: it was allocated so, by this thread.
                        unsafe {
                            assert_eq!(start.read(), u8::try_from(seed).unwrap());
                            heap.dealloc(start, layout);
                        }
                    }
                }
                // SAFETY: as above.
                held.into_iter().for_each(|(start, layout)| unsafe { heap.dealloc(start, layout) });
            });
        }
    });
    fixture.trim();
    assert_eq!(fixture.heap.stats().used_bytes, 0);
}

/// A step of a random sequence. Indices are taken modulo the number of live allocations.
#[derive(Clone, Debug)]
enum Op {
    Alloc { size: usize, align: usize, zeroed: bool },
    Realloc { index: usize, size: usize },
    Free(usize),
    Pages { order: u32, zeroed: bool },
    Trim { refuse_pages: usize },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let size = || prop_oneof![4 => 1..300usize, 3 => 1..5000usize, 1 => 1..200_000usize];
    let op = prop_oneof![
        6 => (size(), 0..14u32, any::<bool>())
            .prop_map(|(size, align, zeroed)| Op::Alloc { size, align: 1 << align, zeroed }),
        2 => (any::<usize>(), size()).prop_map(|(index, size)| Op::Realloc { index, size }),
        5 => any::<usize>().prop_map(Op::Free),
        2 => (0..8u32, any::<bool>()).prop_map(|(order, zeroed)| Op::Pages { order, zeroed }),
        1 => (1..64usize).prop_map(|refuse_pages| Op::Trim { refuse_pages }),
    ];
    prop::collection::vec(op, 1..300)
}

/// An allocation, filled with a byte of its own.
#[derive(Clone, Copy)]
struct Live {
    start: NonNull<u8>,
    /// The layout to free it with, or the order if it came from `alloc_pages`.
    layout: Layout,
    order: Option<u32>,
    fill: u8,
}

impl Live {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the block is allocated, and was filled.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    fn is_intact(&self, len: usize) -> bool {
        self.bytes()[..len].iter().all(|&byte| byte == self.fill)
    }

    fn end(&self) -> usize {
        self.start.addr().get() + self.layout.size()
    }

    fn overlaps(&self, start: usize, end: usize) -> bool {
        self.start.addr().get() < end && start < self.end()
    }
}

/// The heap beside a plain list of the allocations.
struct HeapModel {
    fixture: Fixture,
    live: Vec<Live>,
    fills: u8,
}

impl HeapModel {
    fn add(&mut self, start: NonNull<u8>, layout: Layout, order: Option<u32>, zeroed: bool) {
        assert!(start.addr().get().is_multiple_of(layout.align()));
        self.fills = self.fills % 254 + 1;
        let new = Live { start, layout, order, fill: self.fills };
        let range = &self.fixture.region;
        assert!(start >= range.start && new.end() <= range.start.addr().get() + range.len_bytes);
        assert!(self.live.iter().all(|old| !old.overlaps(start.addr().get(), new.end())));
        assert!(!zeroed || new.bytes().iter().all(|&byte| byte == 0));
        // SAFETY: the block is ours and that large.
        unsafe { start.as_ptr().write_bytes(new.fill, layout.size()) };
        self.live.push(new);
    }

    fn free(&mut self, index: usize) {
        let old = self.live.swap_remove(index);
        assert!(old.is_intact(old.layout.size()));
        // SAFETY: it was allocated so, and is forgotten now.
        unsafe {
            match old.order {
                Some(order) => self.fixture.heap.free_pages(old.start, order).unwrap(),
                None => self.fixture.heap.dealloc(old.start.as_ptr(), old.layout),
            }
        }
    }

    fn realloc(&mut self, index: usize, size: usize) {
        let old = self.live[index];
        if old.order.is_some() {
            return;
        }
        // SAFETY: it was allocated so; on success the old block is forgotten.
        let moved = unsafe { self.fixture.heap.realloc(old.start.as_ptr(), old.layout, size) };
        if let Some(start) = NonNull::new(moved) {
            self.live.swap_remove(index);
            let new = Live { start, layout: layout(size, old.layout.align()), ..old };
            assert!(new.is_intact(size.min(old.layout.size())));
            self.add(start, new.layout, None, false);
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Alloc { size, align, zeroed } => {
                let layout = layout(size, align);
                let heap = &self.fixture.heap;
                // SAFETY: the layout is not empty.
                let start = unsafe { if zeroed { heap.alloc_zeroed(layout) } else { heap.alloc(layout) } };
                if let Some(start) = NonNull::new(start) {
                    self.add(start, layout, None, zeroed);
                }
            }
            Op::Realloc { index, size } if !self.live.is_empty() => {
                self.realloc(index % self.live.len(), size)
            }
            Op::Free(index) if !self.live.is_empty() => self.free(index % self.live.len()),
            Op::Realloc { .. } | Op::Free(_) => {}
            Op::Pages { order, zeroed } => {
                let heap = &self.fixture.heap;
                let start = if zeroed { heap.alloc_zeroed_pages(order) } else { heap.alloc_pages(order) };
                if let Some(start) = start {
                    self.add(start, layout(PAGE_BYTES << order, PAGE_BYTES << order), Some(order), zeroed);
                }
            }
            Op::Trim { refuse_pages } => {
                let live = &self.live;
                // SAFETY: a range that is not refused is filled with zeros.
                unsafe {
                    self.fixture.heap.trim(|start, len| {
                        let addr = start.addr().get();
                        assert!(live.iter().all(|old| !old.overlaps(addr, addr + len)));
                        if len / PAGE_BYTES == refuse_pages {
                            return false;
                        }
                        start.as_ptr().write_bytes(0, len);
                        true
                    })
                };
            }
        }
    }
}

/// The free bytes, and the largest blocks in turn until nothing is left.
fn shape(heap: &LockedHeap) -> (usize, Vec<u32>) {
    let free = heap.stats().free_bytes;
    let mut taken = Vec::new();
    for order in (0..=MAX_ORDER).rev() {
        taken.extend(std::iter::from_fn(|| heap.alloc_pages(order)).map(|start| (order, start)));
    }
    for &(order, start) in &taken {
        // SAFETY: the block was just allocated.
        unsafe { heap.free_pages(start, order) }.unwrap();
    }
    (free, taken.into_iter().map(|(order, _)| order).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_sequences_never_overlap_and_lose_nothing(ops in ops(), pages in 300..1500usize) {
        let fixture = Fixture::new(pages * PAGE_BYTES);
        let whole = if ops.len() % 2 == 0 { Some(shape(&fixture.heap)) } else { None };
        let mut model = HeapModel { fixture, live: Vec::new(), fills: 0 };
        for op in &ops {
            model.apply(op);
            let stats = model.fixture.heap.stats();
            prop_assert_eq!(stats.used_bytes + stats.free_bytes, stats.total_bytes);
            prop_assert!(stats.dirty_free_bytes <= stats.free_bytes);
            prop_assert!(stats.object_bytes <= stats.slab_bytes && stats.slab_bytes <= stats.used_bytes);
        }
        while !model.live.is_empty() {
            model.free(0);
        }
        model.fixture.trim();
        let stats = model.fixture.heap.stats();
        prop_assert_eq!((stats.used_bytes, stats.dirty_free_bytes), (0, 0));
        if let Some(whole) = whole {
            prop_assert_eq!(shape(&model.fixture.heap), whole);
        }
    }
}
