use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::staging::{BOUNCED_PARTS, WRITE_PAGES};
use crate::testing::{Faulty, Handle, Memory, home};

#[test]
fn what_was_stored_comes_back() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(100));
    (0..100).for_each(|id| memory.set(id, u64::from(id)));
    let set: Vec<Page> = (10..20).rev().map(|id| memory.page(id)).collect();
    let rest: Vec<Page> = (0..10).chain(20..100).map(|id| memory.page(id)).collect();
    let stored = home.store(&set, &rest).unwrap();
    assert_eq!(stored, Stored { swap_pages: 86, reap_pages: 10, word_pages: 4, ..Stored::default() });
    let before = memory.clone();
    (0..100).for_each(|id| memory.wipe(id));
    // Slots between wanted ones are read along.
    let set: Vec<Page> = (10..20).filter(|id| *id != 15).map(|id| memory.page(id)).collect();
    assert_eq!(home.fetch(&set).unwrap(), 10 * PAGE_BYTES as u64);
    let rest: Vec<Page> = (0..10).chain([15]).chain(20..100).map(|id| memory.page(id)).collect();
    home.fetch(&rest).unwrap();
    for (id, (a, b)) in memory.0.iter().zip(&before.0).enumerate() {
        assert!(a.0 == b.0, "page {id}");
    }
}

#[test]
fn what_is_stored_while_all_of_its_file_moves_to_the_other_is_not_emptied_with_it() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(20));
    (0..20).for_each(|id| memory.set(id, 4 + u64::from(id)));
    let before = memory.clone();
    let [first, second] = [0..10, 10..20].map(|ids: std::ops::Range<PageId>| memory.pages(ids));
    for (set, rest) in [(&[][..], &first), (&first, &second), (&second, &first)] {
        home.store(set, rest).unwrap();
        let known = [set, rest].concat();
        known.iter().for_each(|page| memory.wipe(page.id));
        home.fetch(&known).unwrap();
        assert!(memory.0.iter().zip(&before.0).all(|(a, b)| a.0 == b.0));
    }
}

#[test]
fn a_file_of_which_nothing_is_used_is_emptied() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(4));
    (0..4).for_each(|id| memory.set(id, 4 + u64::from(id)));
    let all = memory.pages(0..4);
    home.store(&[], &all).unwrap();
    assert!(swap.bytes.lock().unwrap().iter().any(|byte| *byte != 0));
    home.retain(&mut |_| false);
    assert!(swap.bytes.lock().unwrap().iter().all(|byte| *byte == 0));
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
    let swap_pages = u64::from(count) - words;
    assert_eq!(stored, Stored { swap_pages, word_pages: words, ..Stored::default() });
    (0..count).for_each(|id| memory.wipe(id));
    home.fetch(&memory.pages(0..count)).unwrap();
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
    assert!(damaged(home.fetch(&[pages[1]]).unwrap_err()));
    assert!(damaged(home.fetch(&[pages[0]]).unwrap_err()));
    reap.bytes.lock().unwrap().truncate(100);
    assert!(matches!(home.fetch(&[pages[0]]).unwrap_err(), SwapError::Read { .. }));
}

#[test]
fn short_transfers_go_on() {
    let (swap, reap) = (
        Arc::new(Faulty { calls_left: u64::MAX.into(), at_most: 5000, ..Faulty::default() }),
        Faulty::good(),
    );
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(50));
    (0..50).for_each(|id| memory.set(id, 100 + u64::from(id)));
    let pages: Vec<Page> = (0..50).map(|id| memory.page(id)).collect();
    home.store(&[], &pages).unwrap();
    let before: Vec<[u8; PAGE_BYTES]> = memory.0.iter().map(|page| page.0).collect();
    (0..50).for_each(|id| memory.wipe(id));
    home.fetch(&pages).unwrap();
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
    assert!(matches!(home.fetch(&[pages[1]]), Err(SwapError::Unknown { id: 1 })));
}

#[test]
fn pages_are_counted_by_class() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(6));
    (0..6).for_each(|id| memory.set(id, u64::from(id) * 3));
    let classes = [Class::File, Class::File, Class::Anonymous, Class::Store, Class::Kernel, Class::Kernel];
    let pages = memory.pages(0..6);
    let pages: Vec<Page> =
        pages.into_iter().zip(classes).map(|(page, class)| page.with_class(class)).collect();
    home.store(&pages[..2], &pages[2..]).unwrap();
    let count = |home: &SwapHome| home.stats().iter().skip(2).map(|stat| stat.value).collect::<Vec<_>>();
    assert_eq!(count(&home), [2, 1, 1, 2]);
    home.store(&[], &[pages[0].with_class(Class::Anonymous)]).unwrap();
    home.retain(&mut |id| id != 5);
    assert_eq!(count(&home), [1, 2, 1, 1]);
    let used = home.stats()[..2].iter().map(|stat| stat.value).sum::<u64>();
    assert_eq!(used, home.stored_bytes());
}

#[test]
fn several_threads_fetch_at_once() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let (mut home, mut memory) = (home(&swap, &reap), Memory::new(256));
    (0..256).for_each(|id| memory.set(id, 9 + u64::from(id)));
    let pages = memory.pages(0..256);
    home.store(&pages[..128], &pages[128..]).unwrap();
    let before = memory.clone();
    (0..256).for_each(|id| memory.wipe(id));
    let pages = memory.pages(0..256);
    let (home, all_there) = (&home, &Barrier::new(4));
    thread::scope(|scope| {
        for part in pages.chunks(64) {
            scope.spawn(move || {
                all_there.wait();
                for page in part {
                    home.fetch(&[*page]).unwrap();
                }
            });
        }
    });
    assert!(memory.0.iter().zip(&before.0).all(|(page, before)| page.0 == before.0));
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
        let failing = || Arc::new(Faulty { calls_left: u64::MAX.into(), errno: libc::EIO, at_most: usize::MAX, ..Faulty::default() });
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
                        let result = home.fetch(&[memory.page(id)]);
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
                    let pages: Vec<Page> = wanted.iter().map(|id| memory.page(*id)).collect();
                    prop_assert!(home.fetch(&pages).is_ok());
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
