//! Whose pages are: charged to the owner of the moment, and uncharged whoever frees them.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::ptr::NonNull;

use super::{Ledger, LockedHeap, PAGE_BYTES};
use crate::lock::SpinLock;

const HEAP_PAGES: usize = 4096;
const OBJECT: Layout = Layout::new::<[u64; 64]>();

std::thread_local! {
    static OWNER: Cell<u8> = const { Cell::new(0) };
}

fn heap() -> (&'static Ledger, LockedHeap) {
    let ledger: &'static Ledger = Box::leak(Box::new(Ledger::new(|| OWNER.get())));
    let heap = LockedHeap::with_ledger(SpinLock::new(), ledger);
    let region = Layout::from_size_align(HEAP_PAGES * PAGE_BYTES, PAGE_BYTES).unwrap();
    // SAFETY: the layout is not empty. The region is never given back.
    let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(region) }).unwrap();
    // SAFETY: the region is zero-filled and this heap's alone.
    unsafe { heap.init(start, region.size()) };
    (ledger, heap)
}

fn all_bytes(ledger: &Ledger) -> usize {
    (0..=u8::MAX).map(|owner| ledger.bytes(owner)).sum()
}

#[test]
fn blocks_belong_to_who_took_them_whoever_frees_them() {
    let (ledger, heap) = heap();
    OWNER.set(3);
    let mine = heap.alloc_pages(2).unwrap();
    OWNER.set(200);
    let others = heap.alloc_pages(0).unwrap();
    assert_eq!([3, 200, 0].map(|owner| ledger.bytes(owner)), [4 * PAGE_BYTES, PAGE_BYTES, 0]);
    // SAFETY: nobody uses the pages.
    unsafe {
        heap.free_pages(mine, 2).unwrap();
        assert_eq!((ledger.bytes(3), ledger.bytes(200)), (0, PAGE_BYTES));
        heap.free_pages(mine, 2).unwrap_err();
        heap.free_pages(others, 0).unwrap();
    }
    assert_eq!(all_bytes(ledger), 0);
}

#[test]
fn a_slab_belongs_to_who_opened_it() {
    let (ledger, heap) = heap();
    OWNER.set(1);
    // SAFETY: the layout is not empty.
    let first = unsafe { heap.alloc(OBJECT) };
    OWNER.set(2);
    // SAFETY: as above.
    let second = unsafe { heap.alloc(OBJECT) };
    assert_eq!((ledger.bytes(1), ledger.bytes(2)), (PAGE_BYTES, 0));
    // SAFETY: both came from this heap with this layout.
    unsafe {
        heap.dealloc(first, OBJECT);
        heap.dealloc(second, OBJECT);
        // The empty slab that is kept goes with the trim.
        heap.trim(|_, _| false);
    }
    assert_eq!(all_bytes(ledger), 0);
}

#[test]
fn what_one_has_left_is_given_to_another_and_no_more() {
    let (ledger, heap) = heap();
    let mut blocks = Vec::new();
    for round in 0..1500_u32 {
        OWNER.set(if round % 3 == 0 { 7 } else { 9 });
        let order = round % 2;
        blocks.push((heap.alloc_pages(order).unwrap(), order));
    }
    let (sevens, nines) = (ledger.bytes(7), ledger.bytes(9));
    heap.give_pages(blocks[0].0, 9);
    assert_eq!((ledger.bytes(7), ledger.bytes(9)), (sevens - PAGE_BYTES, nines + PAGE_BYTES));
    heap.give_all(9, 0);
    let all = [0, 7, 9].map(|owner| ledger.bytes(owner));
    assert_eq!(all, [nines + PAGE_BYTES, sevens - PAGE_BYTES, 0]);
    assert_eq!(all_bytes(ledger), heap.used_bytes());
    // SAFETY: nobody uses the pages.
    blocks.into_iter().for_each(|(start, order)| unsafe { heap.free_pages(start, order).unwrap() });
    assert_eq!(all_bytes(ledger), 0);
}
