use std::collections::BTreeMap;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;

/// A file in memory that fails when told to.
#[derive(Default)]
struct Faulty {
    bytes: Mutex<Vec<u8>>,
    /// Calls that still succeed.
    calls_left: AtomicU64,
    errno: i32,
    /// Every call moves at most so many bytes.
    at_most: usize,
}

impl Faulty {
    fn good() -> Arc<Self> {
        Arc::new(Self { calls_left: AtomicU64::new(u64::MAX), at_most: usize::MAX, ..Self::default() })
    }

    fn allowed(&self) -> io::Result<()> {
        let left = self.calls_left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(io::Error::from_raw_os_error(self.errno));
        }
        self.calls_left.store(left - 1, Ordering::Relaxed);
        Ok(())
    }
}

struct Handle(Arc<Faulty>);

impl Device for Handle {
    fn write(&self, pieces: &[libc::iovec], offset: u64) -> io::Result<usize> {
        self.0.allowed()?;
        let mut bytes = self.0.bytes.lock().unwrap();
        let mut at = usize::try_from(offset).unwrap();
        let mut left = self.0.at_most;
        for piece in pieces {
            let len = piece.iov_len.min(left);
            if bytes.len() < at + len {
                bytes.resize(at + len, 0);
            }
            // SAFETY: the piece is a page of the test's.
            let from = unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), len) };
            bytes[at..at + len].copy_from_slice(from);
            (at, left) = (at + len, left - len);
        }
        Ok(at - usize::try_from(offset).unwrap())
    }

    fn read(&self, pieces: &[libc::iovec], offset: u64) -> io::Result<usize> {
        self.0.allowed()?;
        let bytes = self.0.bytes.lock().unwrap();
        let start = usize::try_from(offset).unwrap().min(bytes.len());
        let (mut at, mut left) = (start, self.0.at_most);
        for piece in pieces {
            let len = piece.iov_len.min(bytes.len() - at).min(left);
            // SAFETY: as above.
            let to = unsafe { std::slice::from_raw_parts_mut(piece.iov_base.cast::<u8>(), len) };
            to.copy_from_slice(&bytes[at..at + len]);
            (at, left) = (at + len, left - len);
        }
        Ok(at - start)
    }

    fn discard(&self, _offset: u64, _len: u64) {}

    fn lengthen(&self, _len: u64) {}
}

/// Pages of a sandbox.
struct Memory(Vec<Box<AlignedPage>>);

impl Memory {
    fn new(pages: usize) -> Self {
        Self((0..pages).map(|_| Box::new(AlignedPage([0; PAGE_BYTES]))).collect())
    }

    fn page(&mut self, id: PageId) -> Page {
        let addr = NonNull::from(&mut self.0[id as usize].0).cast();
        // SAFETY: the page lives as long as the test uses it.
        unsafe { Page::new(id, addr) }
    }

    fn set(&mut self, id: PageId, seed: u64) {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for word in self.0[id as usize].0.as_chunks_mut::<8>().0 {
            // Seeds below 4 make pages of one word.
            if seed >= 4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            }
            *word = state.to_ne_bytes();
        }
    }

    fn wipe(&mut self, id: PageId) {
        self.0[id as usize].0.fill(0);
    }
}

fn home(swap: &Arc<Faulty>, reap: &Arc<Faulty>) -> SwapHome {
    SwapHome::new(Box::new(Handle(swap.clone())), Box::new(Handle(reap.clone())), u64::MAX)
}

#[test]
fn what_was_stored_comes_back() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(100));
    (0..100).for_each(|id| memory.set(id, u64::from(id)));
    let set: Vec<Page> = (10..20).rev().map(|id| memory.page(id)).collect();
    let rest: Vec<Page> = (0..10).chain(20..100).map(|id| memory.page(id)).collect();
    let stored = home.store(&set, &rest).unwrap();
    assert_eq!(stored, Stored { swap_pages: 86, reap_pages: 10, word_pages: 4 });
    let before = Memory(memory.0.iter().map(|page| Box::new(AlignedPage(page.0))).collect());
    (0..100).for_each(|id| memory.wipe(id));
    // Slots between wanted ones are read along.
    let mut set: Vec<Page> = (10..20).filter(|id| *id != 15).map(|id| memory.page(id)).collect();
    assert_eq!(home.fetch(&mut set).unwrap(), 10 * PAGE_BYTES as u64);
    let mut rest: Vec<Page> = (0..10).chain([15]).chain(20..100).map(|id| memory.page(id)).collect();
    home.fetch(&mut rest).unwrap();
    for (id, (a, b)) in memory.0.iter().zip(&before.0).enumerate() {
        assert!(a.0 == b.0, "page {id}");
    }
}

#[test]
fn a_store_so_large_that_pages_are_gathered_first_is_no_other() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let count = PageId::try_from(BOUNCED_PARTS * WRITE_PAGES + 5).unwrap();
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(count as usize));
    let seed = |id: PageId| u64::from(if id.is_multiple_of(7) { id % 4 } else { 4 + id });
    (0..count).for_each(|id| memory.set(id, seed(id)));
    let all: Vec<Page> = (0..count).map(|id| memory.page(id)).collect();
    let words = u64::from(count.div_ceil(7));
    let stored = home.store(&[], &all).unwrap();
    assert_eq!(stored, Stored { swap_pages: u64::from(count) - words, reap_pages: 0, word_pages: words });
    (0..count).for_each(|id| memory.wipe(id));
    home.fetch(&mut (0..count).map(|id| memory.page(id)).collect::<Vec<_>>()).unwrap();
    let mut expected = Memory::new(1);
    for id in 0..count {
        expected.set(0, seed(id));
        assert!(memory.0[id as usize].0 == expected.0[0].0, "page {id}");
    }
}

#[test]
fn around_a_page_comes_what_lies_next_to_it() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(100));
    (0..100).for_each(|id| memory.set(id, if id == 3 { 0 } else { 9 + u64::from(id) }));
    let set: Vec<Page> = [5, 6].map(|id| memory.page(id)).into();
    let rest: Vec<Page> = (0..5).chain(7..100).map(|id| memory.page(id)).collect();
    home.store(&set, &rest).unwrap();
    let mut around = |ids: &[PageId]| {
        let mut pages: Vec<Page> = ids.iter().map(|id| memory.page(*id)).collect();
        home.fetch_around(&mut pages).map(|_| {
            let mut came: Vec<PageId> = pages.iter().map(|page| page.id).collect();
            came.sort_unstable();
            came
        })
    };
    assert_eq!(around(&[1, 2, 3, 5, 30, 90]).unwrap(), [1, 2, 3, 30]);
    assert_eq!(around(&[5, 1, 6]).unwrap(), [5, 6]);
    assert_eq!(around(&[3, 1]).unwrap(), [3]);
    assert!(around(&[]).unwrap().is_empty());
}

#[test]
fn a_damaged_page_is_told() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(2));
    (0..2).for_each(|id| memory.set(id, 9 + u64::from(id)));
    let pages = [memory.page(0), memory.page(1)];
    home.store(&pages[..1], &pages[1..]).unwrap();
    swap.bytes.lock().unwrap()[77] ^= 4;
    reap.bytes.lock().unwrap()[4095] ^= 1;
    let damaged = |error| matches!(error, SwapError::Damaged { .. });
    assert!(damaged(home.fetch(&mut [pages[1]]).unwrap_err()));
    assert!(damaged(home.fetch(&mut [pages[0]]).unwrap_err()));
    reap.bytes.lock().unwrap().truncate(100);
    assert!(matches!(home.fetch(&mut [pages[0]]).unwrap_err(), SwapError::Read { .. }));
}

#[test]
fn short_transfers_go_on() {
    let (swap, reap) = (
        Arc::new(Faulty { calls_left: AtomicU64::new(u64::MAX), at_most: 5000, ..Faulty::default() }),
        Faulty::good(),
    );
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(50));
    (0..50).for_each(|id| memory.set(id, 100 + u64::from(id)));
    let mut pages: Vec<Page> = (0..50).map(|id| memory.page(id)).collect();
    home.store(&[], &pages).unwrap();
    let before: Vec<[u8; PAGE_BYTES]> = memory.0.iter().map(|page| page.0).collect();
    (0..50).for_each(|id| memory.wipe(id));
    home.fetch(&mut pages).unwrap();
    assert!(memory.0.iter().zip(before).all(|(page, before)| page.0 == before));
}

#[test]
fn the_limit_counts_both_files() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let mut memory = Memory::new(4);
    (0..4).for_each(|id| memory.set(id, 50 + u64::from(id)));
    let mut home = SwapHome::new(Box::new(Handle(swap)), Box::new(Handle(reap)), 3 * PAGE_BYTES as u64);
    let pages: Vec<Page> = (0..4).map(|id| memory.page(id)).collect();
    assert!(matches!(home.store(&pages[..2], &pages[2..]), Err(SwapError::Limit { .. })));
    home.store(&pages[..2], &pages[2..3]).unwrap();
    assert_eq!(home.stored_bytes(), 3 * PAGE_BYTES as u64);
    home.retain(&mut |id| id == 0);
    assert_eq!(home.stored_bytes(), PAGE_BYTES as u64);
    assert!(matches!(home.fetch(&mut [pages[1]]), Err(SwapError::Unknown { id: 1 })));
}

#[derive(Clone, Debug)]
enum Step {
    /// Writes pages, then stores: the first ones as the working set.
    Store {
        changed: Vec<(u8, u64)>,
        set: Vec<u8>,
        fail_after: Option<u8>,
    },
    Fetch(Vec<u8>),
    FetchAll,
    Retain(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let store = (
        prop::collection::vec((0..64_u8, 0..1000_u64), 1..40),
        prop::collection::vec(0..64_u8, 0..10),
        prop::option::weighted(0.3, 0..4_u8),
    )
        .prop_map(|(changed, set, fail_after)| Step::Store { changed, set, fail_after });
    prop_oneof![
        store,
        prop::collection::vec(0..64_u8, 1..20).prop_map(Step::Fetch),
        Just(Step::FetchAll),
        any::<u64>().prop_map(Step::Retain),
    ]
}

proptest! {
    /// Compares the home with a map of each page's content when it was last stored.
    #[test]
    fn as_a_plain_model(steps in prop::collection::vec(step(), 1..30)) {
        let failing = || Arc::new(Faulty { calls_left: AtomicU64::new(u64::MAX), errno: libc::EIO, at_most: usize::MAX, ..Faulty::default() });
        let (swap, reap) = (failing(), failing());
        let (mut home, mut memory) = (home(&swap, &reap), Memory::new(64));
        let mut model: BTreeMap<PageId, [u8; PAGE_BYTES]> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Store { changed, set, fail_after } => {
                    let mut ids: Vec<PageId> = changed.iter().map(|(id, _)| PageId::from(*id)).collect();
                    ids.sort_unstable();
                    ids.dedup();
                    for (id, seed) in changed {
                        memory.set(id.into(), seed);
                    }
                    let (set, rest): (Vec<PageId>, Vec<PageId>) =
                        ids.iter().partition(|id| set.iter().any(|wanted| PageId::from(*wanted) == **id));
                    let mut pages = |ids: &[PageId]| ids.iter().map(|id| memory.page(*id)).collect::<Vec<_>>();
                    let (set, rest) = (pages(&set), pages(&rest));
                    if let Some(calls) = fail_after {
                        swap.calls_left.store(calls.into(), Ordering::Relaxed);
                        reap.calls_left.store(calls.into(), Ordering::Relaxed);
                    }
                    if home.store(&set, &rest).is_ok() {
                        for id in ids {
                            model.insert(id, memory.0[id as usize].0);
                        }
                    } else {
                        prop_assert!(fail_after.is_some());
                    }
                    swap.calls_left.store(u64::MAX, Ordering::Relaxed);
                    reap.calls_left.store(u64::MAX, Ordering::Relaxed);
                }
                Step::Fetch(ids) => {
                    for id in ids.into_iter().map(PageId::from) {
                        memory.wipe(id);
                        let result = home.fetch(&mut [memory.page(id)]);
                        match model.get(&id) {
                            Some(stored) => {
                                prop_assert!(result.is_ok());
                                prop_assert!(memory.0[id as usize].0 == *stored);
                            }
                            None => prop_assert!(result.is_err()),
                        }
                    }
                }
                Step::FetchAll => {
                    let wanted: Vec<PageId> = model.keys().copied().collect();
                    wanted.iter().for_each(|id| memory.wipe(*id));
                    let mut pages: Vec<Page> = wanted.iter().map(|id| memory.page(*id)).collect();
                    prop_assert!(home.fetch(&mut pages).is_ok());
                    for id in wanted {
                        prop_assert!(memory.0[id as usize].0 == model[&id]);
                    }
                }
                Step::Retain(mask) => {
                    home.retain(&mut |id| mask >> id & 1 != 0);
                    model.retain(|id, _| mask >> id & 1 != 0);
                }
            }
        }
    }
}
