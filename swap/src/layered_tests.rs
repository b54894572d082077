use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use proptest::prelude::*;

use super::*;
use crate::base::FileBase;
use crate::disk::SwapHome;
use crate::io::Device;
use crate::packing::Packing;
use crate::page::PAGE_BYTES;
use crate::testing::{Faulty, Handle, Memory, home};

const PAGES: PageId = 200;

/// A base of the even pages, and of all from 100 on.
fn has(id: PageId) -> bool {
    id < PAGES && (id.is_multiple_of(2) || id >= 100)
}

fn file() -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap()
}

fn seed(id: PageId) -> u64 {
    1000 + u64::from(id)
}

/// Memory as the base has it.
fn begin() -> (Memory, Arc<FileBase>) {
    let mut memory = Memory::new(PAGES as usize);
    let file = file();
    for id in (0..PAGES).filter(|id| has(*id)) {
        memory.set(id, seed(id));
        let page = &memory.0[id as usize];
        file.write_all_at(&page.0, u64::from(id) * PAGE_BYTES as u64).unwrap();
    }
    (memory, Arc::new(FileBase::new(file, (0..PAGES).filter(|id| has(*id)).collect()).unwrap()))
}

type OnBase = Layered<FileBase, SwapHome>;

fn clone_of(base: &Arc<FileBase>) -> OnBase {
    Layered::new(base.clone(), home(&Faulty::good(), &Faulty::good()))
}

fn comes_back(home: &OnBase, memory: &Memory, ids: impl IntoIterator<Item = PageId>) {
    let ids: Vec<PageId> = ids.into_iter().collect();
    let mut fetched = Memory::new(PAGES as usize);
    home.fetch(&fetched.pages(ids.iter().copied())).unwrap();
    for id in ids {
        assert!(fetched.0[id as usize].0 == memory.0[id as usize].0, "page {id}");
    }
}

fn in_use() -> impl Iterator<Item = PageId> {
    (0..PAGES).filter(|id| has(*id))
}

#[test]
fn a_clone_begins_with_its_base_and_stores_only_what_differs() {
    let (mut memory, base) = begin();
    let mut home = clone_of(&base);
    comes_back(&home, &memory, in_use());
    assert!(home.fetch(&memory.pages([1])).is_err());
    let all = |memory: &mut Memory| memory.pages(in_use());
    let stored = home.store(&[], &all(&mut memory)).unwrap();
    assert_eq!((stored.base_pages, stored.swap_pages), (150, 0));
    // The second sleep.
    [4, 150, 151].iter().for_each(|id| memory.set(*id, 5));
    memory.set(152, 0);
    memory.set(7, 5);
    let stored = home.store(&memory.pages([150, 102]), &memory.pages([4, 7, 8, 151, 152])).unwrap();
    let expected = Stored { swap_pages: 3, reap_pages: 1, word_pages: 1, base_pages: 2, ..Stored::default() };
    assert_eq!(stored, expected);
    assert_eq!(home.stored_bytes(), 4 * PAGE_BYTES as u64);
    comes_back(&home, &memory, in_use().chain([7]));
    // What becomes as it was takes no room.
    memory.set(150, seed(150));
    assert_eq!(home.store(&[], &memory.pages([150])).unwrap().base_pages, 1);
    assert_eq!(home.stored_bytes(), 3 * PAGE_BYTES as u64);
    comes_back(&home, &memory, in_use().chain([7]));
    let base_pages = home.stats().into_iter().find(|stat| stat.name == "base_pages");
    assert_eq!(base_pages.map(|stat| stat.value), Some(147));
}

#[test]
fn the_base_never_shines_through() {
    let (mut memory, base) = begin();
    let mut home = clone_of(&base);
    // Page 10 is freed: it is forgotten while the sandbox sleeps.
    home.retain(&mut |id| id != 10);
    assert!(matches!(home.fetch(&memory.pages([10])), Err(SwapError::Unknown { id: 10 })));
    // Allocated anew it holds zeros, and is stored with them, and forgotten again.
    memory.wipe(10);
    home.store(&[], &memory.pages([10])).unwrap();
    comes_back(&home, &memory, [10]);
    home.retain(&mut |id| id != 10);
    assert!(home.fetch(&memory.pages([10])).is_err());
    // Freed and allocated anew between two sleeps, without the home being told.
    memory.wipe(12);
    home.store(&memory.pages([12]), &[]).unwrap();
    comes_back(&home, &memory, [12]);
    home.retain(&mut |id| id != 12);
    assert!(home.fetch(&memory.pages([12])).is_err());
    assert!(base.has(12) && base.window(12) == Some(12 << 12) && base.window(11).is_none());
}

#[test]
fn a_store_that_fails_changes_nothing() {
    let (mut memory, base) = begin();
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let mut home = Layered::new(base, home(&swap, &reap));
    let before = memory.clone();
    swap.calls_left.store(0, std::sync::atomic::Ordering::Relaxed);
    (4..9).for_each(|id| memory.set(id, 5));
    home.store(&[], &memory.pages(4..9)).unwrap_err();
    comes_back(&home, &before, in_use());
}

#[test]
fn around_a_page_comes_what_lies_next_to_it() {
    let (mut memory, base) = begin();
    let mut home = clone_of(&base);
    memory.set(104, 5);
    home.store(&[], &memory.pages([104, 1])).unwrap();
    let mut around = |ids: &[PageId]| {
        let mut pages = memory.pages(ids.iter().copied());
        home.fetch_around(&mut pages).map(|_| {
            let mut came: Vec<PageId> = pages.iter().map(|page| page.id).collect();
            came.sort_unstable();
            came
        })
    };
    assert_eq!(around(&[100, 101, 104, 132, 133, 1]).unwrap(), [100, 101, 132]);
    assert_eq!(around(&[104, 105, 1]).unwrap(), [1, 104]);
    assert!(around(&[3, 1]).is_err());
    assert!(around(&[]).unwrap().is_empty());
}

#[test]
fn a_layered_home_is_opened_anew() {
    let (mut memory, base) = begin();
    let [swap, reap, packed] = [Faulty::good(), Faulty::good(), Faulty::good()];
    let mut home = Layered::new(base.clone(), home(&swap, &reap));
    memory.set(20, 5);
    home.store(&[], &memory.pages([20])).unwrap();
    home.retain(&mut |id| id != 30);
    let mut tables = Vec::new();
    home.persist(&mut tables).unwrap();
    let reopen = |tables: &[u8]| {
        Layered::reopen(base.clone(), tables, |own| {
            let devices =
                [&swap, &reap, &packed].map(|file| Box::new(Handle(file.clone())) as Box<dyn Device>);
            SwapHome::reopen(devices, Packing::default(), own, PAGES, u64::MAX)
        })
    };
    let again = reopen(&tables).unwrap();
    assert_eq!(again.stored_bytes(), home.stored_bytes());
    comes_back(&again, &memory, in_use().filter(|id| *id != 30));
    assert!(again.fetch(&memory.pages([30])).is_err());
    for at in 0..tables.len() {
        let mut changed = tables.clone();
        changed[at] ^= 0x10;
        assert!(reopen(&changed).is_err(), "byte {at}");
        let mut content = changed[..tables.len() - 4].to_vec();
        tables::seal(&mut content);
        let _ = reopen(&content);
        assert!(reopen(&tables[..at]).is_err(), "{at} bytes");
    }
}

#[test]
fn a_base_that_ends_too_early_is_refused() {
    let (file, mut memory) = (file(), Memory::new(4));
    file.set_len(4 * PAGE_BYTES as u64).unwrap();
    assert!(FileBase::new(file.try_clone().unwrap(), [4].into_iter().collect()).is_err());
    let base = FileBase::new(file.try_clone().unwrap(), [3].into_iter().collect()).unwrap();
    assert!(matches!(base.fetch(memory.pages(2..4)), Err(SwapError::Unknown { id: 2 })));
    file.set_len(5).unwrap();
    assert!(matches!(base.fetch(memory.pages([3])), Err(SwapError::ReadPage { id: 3, .. })));
}

#[derive(Clone, Debug)]
enum Step {
    /// The sandbox writes pages, or makes them as the base has them, and sleeps.
    Sleep(Vec<(u8, Option<u64>)>),
    /// Pages are freed.
    Free(Vec<u8>),
}

proptest! {
    /// Compares a clone with a map of its pages.
    #[test]
    fn as_a_plain_model(steps in prop::collection::vec(prop_oneof![
        prop::collection::vec((0..64_u8, prop::option::of(0..100_u64)), 1..40).prop_map(Step::Sleep),
        prop::collection::vec(0..64_u8, 1..20).prop_map(Step::Free),
    ], 1..12)) {
        let (mut memory, base) = begin();
        let mut home = clone_of(&base);
        let mut known: Bits = in_use().collect();
        for step in steps {
            match step {
                Step::Sleep(changed) => {
                    let mut ids: Vec<PageId> = changed.iter().map(|(id, _)| (*id).into()).collect();
                    ids.sort_unstable();
                    ids.dedup();
                    for (id, to) in changed {
                        memory.set(id.into(), to.unwrap_or(seed(id.into())));
                    }
                    let (set, rest) = ids.split_at(ids.len() / 3);
                    home.store(&memory.pages(set.iter().copied()), &memory.pages(rest.iter().copied())).unwrap();
                    ids.iter().for_each(|id| known.set(*id));
                }
                Step::Free(ids) => {
                    ids.iter().for_each(|id| known.clear((*id).into()));
                    home.retain(&mut |id| known.has(id));
                }
            }
            comes_back(&home, &memory, (0..PAGES).filter(|id| known.has(*id)));
            let mut room = Memory::new(PAGES as usize);
            for id in (0..PAGES).filter(|id| !known.has(*id)) {
                let result = home.fetch(&room.pages([id]));
                prop_assert!(matches!(result, Err(SwapError::Unknown { .. })), "page {}", id);
            }
        }
    }
}
