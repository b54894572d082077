use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::base::{BaseTables, FileBase};
use crate::diff::index::BaseIndex;
use crate::testing::{Memory, sealed};

const PAGES: PageId = 300;

/// Text-like content, another one for each seed.
fn content(seed: u64, page: &mut PageBytes) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in page.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
}

fn reference(sums: impl Fn(PageId, u32) -> u32) -> Reference {
    let mut bytes = vec![[0; PAGE_BYTES]; PAGES as usize];
    (0..).zip(&mut bytes).for_each(|(seed, page)| content(seed, page));
    let present: Bits = (0..PAGES).collect();
    let of = |(id, page): (PageId, &PageBytes)| sums(id, crc32c::crc32c(page));
    let tables =
        BaseTables { present, sums: Some((0..).zip(&bytes).map(of).collect()), packed: Box::default() };
    let base = Arc::new(FileBase::reopen(sealed(bytes.as_flattened()), tables).unwrap());
    let ids: Vec<PageId> = (0..PAGES).collect();
    let index = BaseIndex::build(&ids, &|id| base.mapped(id), &[0; 32]).unwrap();
    Reference::new(base, Some(BaseIndex::open(index, None).unwrap())).unwrap()
}

fn home(limit_bytes: u64) -> MemoryHome {
    MemoryHome::new(Some(reference(|_, sum| sum)), limit_bytes)
}

fn stat(home: &MemoryHome, name: &str) -> u64 {
    home.stats().iter().find(|stat| stat.name == name).unwrap().value
}

fn comes_back(home: &MemoryHome, memory: &Memory, ids: impl IntoIterator<Item = PageId>) {
    let ids: Vec<PageId> = ids.into_iter().collect();
    let mut fetched = Memory::new(memory.0.len());
    home.fetch(&fetched.pages(ids.iter().copied())).unwrap();
    for id in ids {
        assert!(fetched.0[id as usize].0 == memory.0[id as usize].0, "page {id}");
    }
}

/// Memory with pages of every kind: of each style so many.
fn of_all_kinds(each: PageId) -> Memory {
    let mut memory = Memory::new(7 * each as usize);
    for id in 0..7 * each {
        let page = &mut memory.0[id as usize].0;
        match id / each {
            0 => {}
            1 => page.as_chunks_mut().0.fill(u64::from(id).to_le_bytes()),
            2 => content(id.into(), page),
            3 => content(u64::from(id) + 30, page),
            4 => {
                content(u64::from(id) + 50, page);
                page[100..130].fill(0xee);
            }
            5 => page
                .iter_mut()
                .enumerate()
                .for_each(|(at, byte)| *byte = u8::try_from(at / 50 * id as usize % 256).unwrap()),
            _ => content(u64::from(id) + 100_000, page),
        }
    }
    memory
}

#[test]
fn pages_of_every_kind_come_back_and_are_counted() {
    let each = 20;
    let (mut home, mut memory) = (home(u64::MAX), of_all_kinds(each));
    let (set, rest) = (memory.pages(0..50), memory.pages(50..7 * each));
    let stored = home.store(&set, &rest).unwrap();
    assert_eq!(stored.memory_pages, u64::from(7 * each));
    comes_back(&home, &memory, 0..7 * each);
    for name in ["zero", "word", "same", "elsewhere", "xor", "packed", "raw"] {
        let name = format!("memory_{name}_pages");
        assert_eq!(stat(&home, &name), u64::from(each), "{name}");
    }
    assert_eq!(stat(&home, "memory_raw_bytes"), u64::from(each) * 4096);
    assert!(stat(&home, "memory_xor_bytes") < u64::from(each) * 80);
    let (listed, of_set) = home.listed();
    assert_eq!((of_set, listed.len(), listed[49].0, listed[139].0), (50, 140, 49, 139));
    // What came back to stay costs nothing any more.
    home.forget(&(0..7 * each).collect::<Vec<_>>());
    home.rest();
    assert_eq!((home.len(), home.stored_bytes(), stat(&home, "memory_raw_bytes")), (0, 0, 0));
    assert!(home.fetch(&memory.pages([3])).is_err());
}

#[test]
fn neighbours_come_along() {
    let (mut home, mut memory) = (home(u64::MAX), of_all_kinds(20));
    home.store(&[], &memory.pages(0..100)).unwrap();
    let mut around = memory.pages([60, 40, 50, 70, 99, 139, 77, 76]);
    home.fetch_around(&mut around).unwrap();
    assert_eq!(around.iter().map(|page| page.id).collect::<Vec<_>>(), [60, 50, 70, 76]);
    assert!(home.fetch_around(&mut memory.pages([139])).is_err());
}

#[test]
fn a_store_without_room_changes_nothing() {
    let (mut home, mut memory) = (home(60_000), of_all_kinds(20));
    home.store(&[], &memory.pages(0..125)).unwrap();
    let before = home.stats();
    let error = home.store(&memory.pages(0..10), &memory.pages(10..140)).unwrap_err();
    assert!(matches!(error, SwapError::Limit { limit_bytes: 60_000 }));
    assert_eq!(home.stats(), before);
    comes_back(&home, &memory, 0..125);
    home.limit(u64::MAX);
    home.store(&memory.pages(0..10), &memory.pages(10..140)).unwrap();
    comes_back(&home, &memory, 0..140);
}

#[test]
fn a_damaged_base_is_found_out() {
    let mut memory = of_all_kinds(20);
    let wrong = |id: PageId, sum: u32| if id == 45 { !sum } else { sum };
    let mut home = MemoryHome::new(Some(reference(wrong)), u64::MAX);
    home.store(&[], &memory.pages(0..140)).unwrap();
    let error = home.fetch(&memory.pages([45])).unwrap_err();
    assert!(error.to_string().contains("page 45 came back"), "{error}");
    comes_back(&home, &memory, 46..140);
    // The base that a difference was taken of is another one.
    home.reference = Some(reference(|_, sum| sum));
    let other = of_all_kinds(20);
    let mut bytes: Vec<PageBytes> = other.0.iter().map(|page| page.0).collect();
    bytes.resize(PAGES as usize, [1; PAGE_BYTES]);
    let present: Bits = (0..PAGES).collect();
    let sums = Some(bytes.iter().map(|page| crc32c::crc32c(page)).collect());
    let tables = BaseTables { present, sums, packed: Box::default() };
    let base = FileBase::reopen(sealed(bytes.as_flattened()), tables).unwrap();
    home.reference = Reference::new(Arc::new(base), None);
    for id in 80..100 {
        let error = home.fetch(&memory.pages([id])).unwrap_err();
        assert!(matches!(error, SwapError::Damaged { file: "memory", .. }), "{error}");
    }
}

#[test]
fn without_a_base_pages_are_packed() {
    let (mut home, mut memory) = (MemoryHome::new(None, u64::MAX), of_all_kinds(20));
    home.store(&[], &memory.pages(0..140)).unwrap();
    comes_back(&home, &memory, 0..140);
    assert_eq!((stat(&home, "memory_xor_pages"), stat(&home, "memory_raw_pages")), (0, 80));
    assert!(home.persist(&mut Vec::new()).is_err());
}

#[test]
fn many_fetch_at_once_while_others_are_forgotten() {
    let (mut home, mut memory) = (home(u64::MAX), of_all_kinds(40));
    home.store(&[], &memory.pages(0..280)).unwrap();
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (home, memory) = (&home, &memory);
            scope.spawn(move || {
                for id in (part..280).step_by(4) {
                    comes_back(home, memory, [id]);
                    home.forget(&[id]);
                }
            });
        }
    });
    assert!(home.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn stores_and_wakes_in_any_order_lose_nothing(
        steps in proptest::collection::vec((0..5_u8, 0..140_u32, 1..90_u32, any::<u64>()), 1..25),
    ) {
        let (mut home, mut memory) = (home(u64::MAX), of_all_kinds(20));
        let mut stored = Bits::default();
        for (what, first, count, seed) in steps {
            let ids: Vec<PageId> = (first..(first + count).min(140)).collect();
            match what {
                0 | 1 => {
                    for id in &ids {
                        let page = &mut memory.0[*id as usize].0;
                        match seed % 3 {
                            0 => page[usize::try_from(seed % PAGE_BYTES as u64).unwrap()] ^= 1,
                            1 => content(seed ^ u64::from(*id), page),
                            _ => content(seed % 400, page),
                        }
                    }
                    let (set, rest) = ids.split_at(ids.len() / 2);
                    home.store(&memory.pages(set.iter().copied()), &memory.pages(rest.iter().copied())).unwrap();
                    ids.iter().for_each(|id| stored.set(*id));
                }
                2 => {
                    home.forget(&ids);
                    ids.iter().for_each(|id| stored.clear(*id));
                }
                3 => {
                    home.retain(&mut |id| !ids.contains(&id));
                    ids.iter().for_each(|id| stored.clear(*id));
                }
                _ => home.rest(),
            }
            prop_assert_eq!(home.pages().ids().collect::<Vec<_>>(), stored.ids().collect::<Vec<_>>());
            comes_back(&home, &memory, stored.ids());
            let live: u64 = home.stored_bytes();
            prop_assert!(live <= stored.len() * 4200 + (600 << 10));
        }
    }
}
