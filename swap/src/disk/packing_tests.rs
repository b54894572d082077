use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::*;
use crate::packing::Packing;
use crate::testing::{Faulty, Handle, Memory, home};

pub const PAGES: PageId = 400;

/// A home, its files, and memory whose pages are of all sorts: words, text, and noise.
pub struct World {
    pub home: SwapHome,
    pub files: [Arc<Faulty>; 3],
    pub memory: Memory,
}

pub fn world(packing: Packing, limit_bytes: u64) -> World {
    let files = [Faulty::good(), Faulty::good(), Faulty::good()];
    let [swap, reap, packed] = files.clone();
    let mut home = home(&swap, &reap).with_packing(Box::new(Handle(packed)), packing);
    home.limit_bytes = limit_bytes;
    let mut memory = Memory::new(PAGES as usize);
    (0..PAGES).for_each(|id| fill(&mut memory, id, u64::from(id)));
    World { home, files, memory }
}

pub fn fill(memory: &mut Memory, id: PageId, seed: u64) {
    match seed % 8 {
        0 => memory.set(id, seed / 8 % 4),
        1 => memory.set(id, seed + 4),
        _ => memory.set_text(id, seed),
    }
}

fn styles() -> impl Iterator<Item = Packing> {
    let codecs = Style::ALL.into_iter().map(Codec::Style).chain([Codec::Auto, Codec::Iaa]);
    codecs.flat_map(|codec| [false, true].map(|encrypt| Packing { codec, encrypt, cpus: None }))
}

fn of(codec: Style) -> Packing {
    Packing { codec: Codec::Style(codec), ..Packing::default() }
}

impl World {
    pub fn store_all(&mut self) {
        let (set, rest) = (self.memory.pages(50..200), self.memory.pages((0..50).chain(200..PAGES)));
        self.home.store(&set, &rest).unwrap();
    }

    pub fn pack(&mut self) -> bool {
        let packed = self.home.pack(&|| true).unwrap();
        packed.is_some_and(|packed| self.home.adopt(packed, true))
    }

    /// All pages come back, together and one by one, as they were.
    pub fn comes_back(&mut self) {
        let mut fetched = Memory::new(PAGES as usize);
        self.home.fetch(&fetched.pages(0..PAGES)).unwrap();
        assert!(self.memory.0.iter().zip(&fetched.0).all(|(a, b)| a.0 == b.0));
        let mut fetched = Memory::new(PAGES as usize);
        for id in (0..PAGES).step_by(7) {
            let mut pages = fetched.pages([id].into_iter().chain((0..PAGES).filter(|other| *other != id)));
            self.home.fetch_around(&mut pages).unwrap();
            assert!(pages.iter().any(|page| page.id == id));
            let same = |page: &Page| self.memory.0[page.id as usize].0 == fetched.0[page.id as usize].0;
            assert!(pages.iter().all(same));
        }
    }

    pub fn stat(&self, name: &str) -> u64 {
        self.home.stats().iter().find(|stat| stat.name == name).unwrap().value
    }
}

#[test]
fn what_was_packed_comes_back() {
    for packing in styles() {
        let mut world = world(packing.clone(), u64::MAX);
        world.store_all();
        world.comes_back();
        let before = world.home.stored_bytes();
        let is_packed = world.pack();
        world.comes_back();
        // What `auto` chooses depends on the machine.
        if packing.codec == Codec::Auto {
            continue;
        }
        assert_eq!(is_packed, packing.codec != Codec::Style(Style::None), "{packing:?}");
        if !is_packed {
            continue;
        }
        // Nothing is left as it was, and a second look finds nothing to do.
        assert_eq!((world.stat("swap_file_bytes"), world.stat("reap_file_bytes")), (0, 0));
        assert!(world.home.stored_bytes() < before / 2, "{packing:?}");
        assert!(!world.pack());
        // Changed pages, and fewer than before.
        for id in (0..PAGES).step_by(3) {
            fill(&mut world.memory, id, u64::from(id) * 7 + 1);
        }
        let set = world.memory.pages((0..PAGES).step_by(3));
        world.home.store(&set, &[]).unwrap();
        world.comes_back();
        assert!(world.pack());
        world.comes_back();
        let sets = world.stat("packed_file_bytes");
        world.home.retain(&mut |id| id < 10);
        assert!(world.stat("packed_file_bytes") <= sets && world.stat("packed_pages") < 10);
        assert!(world.pack());
        assert!(world.home.stored_bytes() < 9 * 4096);
        let mut fetched = Memory::new(PAGES as usize);
        world.home.fetch(&fetched.pages(0..10)).unwrap();
        assert!((0..10).all(|id| fetched.0[id].0 == world.memory.0[id].0));
        assert!(world.home.fetch(&fetched.pages([10])).is_err());
    }
}

#[test]
fn what_changed_meanwhile_is_not_overwritten() {
    let mut world = world(of(Style::Lz4), u64::MAX);
    world.store_all();
    let stale = world.home.pack(&|| true).unwrap().unwrap();
    fill(&mut world.memory, 60, 9999);
    let page = world.memory.pages([60]);
    world.home.store(&[], &page).unwrap();
    assert!(!world.home.adopt(stale, true));
    world.comes_back();
    let stale = world.home.pack(&|| true).unwrap().unwrap();
    assert!(world.pack());
    assert!(!world.home.adopt(stale, true));
    world.comes_back();
}

#[test]
fn packing_ends_when_it_is_told_to() {
    for stop in 0..8 {
        let mut world = world(of(Style::DeflateCanned), u64::MAX);
        world.store_all();
        let before = world.home.stored_bytes();
        let asked = Cell::new(0);
        let goes_on = || {
            asked.set(asked.get() + 1);
            asked.get() <= stop
        };
        let packed = world.home.pack(&goes_on).unwrap();
        assert_eq!(packed.is_none(), asked.get() > stop, "{stop}");
        assert_eq!((world.home.stored_bytes(), world.stat("packed_pages")), (before, 0));
        assert_eq!(world.stat("packings_cancelled"), u64::from(packed.is_none()));
        world.comes_back();
    }
}

/// A thread that runs in idle time alone may take long for what is little work.
#[test]
fn packing_asks_before_each_partition_whether_it_goes_on() {
    let mut world = world(of(Style::Zstd(1)), u64::MAX);
    world.store_all();
    let asked = Cell::new(0);
    let packed = world.home.pack(&|| asked.replace(asked.get() + 1) < u32::MAX).unwrap();
    assert!(packed.is_some() && asked.get() > PAGES / 16, "{}", asked.get());
}

#[test]
fn a_disk_that_fails_changes_nothing() {
    for packing in [of(Style::DeflateCanned), Packing { encrypt: true, ..of(Style::Lz4) }] {
        for (file, calls) in (0..3).flat_map(|file| (0..8).map(move |calls| (file, calls))) {
            let mut world = world(packing.clone(), u64::MAX);
            world.store_all();
            let before = world.home.stored_bytes();
            world.files[file].calls_left.store(calls, Ordering::Relaxed);
            let packed = world.home.pack(&|| true);
            assert!(packed.is_err() || calls > 1 || world.stat("reap_file_bytes") == 0 || file == 2);
            world.files[file].calls_left.store(u64::MAX, Ordering::Relaxed);
            assert_eq!(world.home.stored_bytes(), before);
            world.comes_back();
            assert!(world.pack());
            world.comes_back();
        }
    }
}

#[test]
fn a_flipped_bit_is_never_taken_for_data() {
    let sealed = [Style::None, Style::Lz4].map(|style| Packing { encrypt: true, ..of(style) });
    for packing in Style::ALL.into_iter().skip(1).map(of).chain(sealed) {
        let files = [Faulty::good(), Faulty::good(), Faulty::good()];
        let [swap, reap, packed] = files.clone();
        let mut home = home(&swap, &reap).with_packing(Box::new(Handle(packed)), packing.clone());
        let mut memory = Memory::new(5);
        (0..5).for_each(|id| memory.set_text(id, u64::from(id) + 4));
        home.store(&memory.pages(0..3), &memory.clone().pages(3..5)).unwrap();
        if let Some(packed) = home.pack(&|| true).unwrap() {
            assert!(home.adopt(packed, true));
        }
        let len = files[2].bytes.lock().unwrap().len();
        let mut refused = 0;
        for at in 0..len {
            files[2].bytes.lock().unwrap()[at] ^= 1 << (at % 8);
            let mut fetched = Memory::new(5);
            match home.fetch(&fetched.pages(0..5)) {
                Ok(_) => assert!(fetched.0.iter().zip(&memory.0).all(|(a, b)| a.0 == b.0), "byte {at}"),
                Err(_) => refused += 1,
            }
            files[2].bytes.lock().unwrap()[at] ^= 1 << (at % 8);
        }
        let used = usize::try_from(home.packing_stats()[3].value).unwrap();
        assert!(refused >= used / 8 * 7, "{packing:?}: {refused} of {used}");
    }
}

#[test]
fn the_limit_counts_packed_bytes() {
    // There are 50 pages of noise, 50 of words and 300 of text, which fit in only if they are packed.
    let limit = 130 * 4096;
    for codec in [Codec::Style(Style::Zstd(1)), Codec::Style(Style::DeflateCanned), Codec::Auto, Codec::Iaa] {
        for encrypt in [false, true] {
            let mut world = world(Packing { codec, encrypt, cpus: None }, limit);
            world.store_all();
            assert!(world.home.stored_bytes() <= limit);
            assert_eq!((world.stat("swap_file_bytes"), world.stat("reap_file_bytes")), (0, 0));
            world.comes_back();
        }
    }
    // Nothing makes noise smaller, and what was stored stays.
    for encrypt in [false, true] {
        let mut world = world(Packing { codec: Codec::Auto, encrypt, cpus: None }, limit);
        world.store_all();
        let mut noise = Memory::new(PAGES as usize);
        (0..PAGES).for_each(|id| noise.set(id, 100 + u64::from(id)));
        let before = world.home.stored_bytes();
        assert!(matches!(world.home.store(&[], &noise.pages(0..PAGES)), Err(SwapError::Limit { .. })));
        assert_eq!(world.home.stored_bytes(), before);
        world.comes_back();
    }
    let mut world = world(of(Style::None), limit);
    let all = world.memory.pages(0..PAGES);
    assert!(matches!(world.home.store(&[], &all), Err(SwapError::Limit { .. })));
}

/// Pages go cold one by one, and each cycle stores the others anew: what nobody needs any more keeps neither room nor numbers.
#[test]
fn sets_do_not_pile_up() {
    let sealed = [Codec::Style(Style::None), Codec::Auto].map(|codec| (codec, true, u64::MAX));
    for (codec, encrypt, limit) in
        sealed.into_iter().chain([(Codec::Style(Style::Zstd(1)), false, 250 * 4096)])
    {
        let mut world = world(Packing { codec, encrypt, cpus: None }, limit);
        (0..PAGES).for_each(|id| world.memory.set_text(id, u64::from(id)));
        world.store_all();
        for cycle in 0..350 {
            let warm = world.memory.pages(cycle + 1..PAGES);
            world.home.store(&warm, &[]).unwrap_or_else(|error| panic!("{codec} {cycle}: {error}"));
            assert!(world.home.stored_bytes() <= limit.min(4 * u64::from(PAGES) * 4096), "{cycle}");
        }
        assert!(world.stat("packed_file_bytes") <= 3 * u64::from(PAGES) * 4096);
        world.comes_back();
    }
}

/// Blocks of a file that are not given back.
fn blocks(file: &Faulty) -> usize {
    let bytes = file.bytes.lock().unwrap();
    bytes.chunks(4096).filter(|page| page.iter().any(|byte| *byte != 0)).count()
}

#[test]
fn what_is_packed_in_vain_takes_no_room() {
    let mut world = world(of(Style::Lz4), u64::MAX);
    world.store_all();
    let packed = world.home.pack(&|| true).unwrap().unwrap();
    assert!(blocks(&world.files[2]) > 50);
    assert!(!world.home.adopt(packed, false));
    assert_eq!(blocks(&world.files[2]), 0);
    let stale = world.home.pack(&|| true).unwrap().unwrap();
    world.home.retain(&mut |_| true);
    assert!(!world.home.adopt(stale, true));
    assert_eq!(blocks(&world.files[2]), 0);
    // A disk that fails late.
    for calls in 1..12 {
        world.files[1].calls_left.store(calls, Ordering::Relaxed);
        let is_failed = world.home.pack(&|| true).is_err();
        world.files[1].calls_left.store(u64::MAX, Ordering::Relaxed);
        assert!(!is_failed || blocks(&world.files[2]) == 0, "{calls}");
    }
    world.comes_back();
}

#[test]
fn noise_grows_by_half_a_percent_at_most() {
    for packing in styles() {
        let mut world = world(packing.clone(), u64::MAX);
        let mut noise = Memory::new(PAGES as usize);
        (0..PAGES).for_each(|id| noise.set(id, 100 + u64::from(id)));
        let pages = noise.pages(0..PAGES);
        world.home.store(&pages[..200], &pages[200..]).unwrap();
        world.memory = noise;
        let bytes = u64::from(PAGES) * 4096;
        for _ in 0..2 {
            assert!(world.home.stored_bytes() <= bytes + bytes / 200, "{packing:?}");
            world.comes_back();
            world.pack();
        }
    }
}

#[test]
fn nothing_is_stored_in_the_clear() {
    let mut world = world(Packing { encrypt: true, ..of(Style::Lz4) }, u64::MAX);
    world.store_all();
    for _ in 0..2 {
        for file in &world.files {
            let bytes = file.bytes.lock().unwrap();
            assert!(!bytes.windows(9).any(|part| part == b"dormouse "));
            // Noise has all bytes about equally often, but for what fills the last page of a set.
            let pages = bytes.chunks(4096).map(|page| page.iter().filter(|byte| **byte == 0).count());
            let mixed = pages.filter(|zeros| (64..4096).contains(zeros)).count();
            assert!(mixed <= 2, "{mixed} pages are no noise");
        }
        assert!(world.files[..2].iter().all(|file| file.bytes.lock().unwrap().is_empty()));
        world.comes_back();
        world.pack();
    }
    let tables = world.home.persist(&mut Vec::new());
    assert!(tables.unwrap_err().to_string().contains("sealed"));
}

#[test]
fn equal_pages_are_not_equal_when_sealed() {
    let mut world = world(Packing { encrypt: true, ..of(Style::None) }, u64::MAX);
    let mut same = Memory::new(64);
    (0..64).for_each(|id| same.set_text(id, 7));
    world.home.store(&[], &same.pages(0..32)).unwrap();
    world.home.store(&[], &same.pages(32..64)).unwrap();
    let bytes = world.files[2].bytes.lock().unwrap().clone();
    let mut blocks: Vec<&[u8]> = bytes.chunks_exact(16).filter(|block| **block != [0; 16]).collect();
    let count = blocks.len();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), count);
}

#[test]
fn names_are_read_as_they_are_written() {
    for codec in [Codec::Auto, Codec::Iaa, Codec::Style(Style::Zstd(7)), Codec::Style(Style::None)] {
        assert_eq!(codec.to_string().parse(), Ok(codec));
    }
    let error = "snappy".parse::<Codec>().unwrap_err().to_string();
    assert!(
        error.starts_with("cannot use the codec \"snappy\": ") && error.ends_with(", or auto"),
        "{error}"
    );
}

/// A step in the life of a home under test.
#[derive(Clone, Debug)]
enum Step {
    /// Pages from here on, so many, with contents of this seed; the first so many are the working set.
    Store(PageId, PageId, PageId, u64),
    Retain(PageId),
    Pack,
    /// Something is packed, and then other pages are stored.
    PackLate,
}

fn step() -> impl Strategy<Value = Step> {
    let store = (0..PAGES, 1..120_u32, 0..60_u32, 0..1000_u64);
    prop_oneof![
        4 => store.prop_map(|(first, count, set, seed)| Step::Store(first, count, set, seed)),
        1 => (2..30_u32).prop_map(Step::Retain),
        3 => Just(Step::Pack),
        1 => Just(Step::PackLate),
    ]
}

fn packing() -> impl Strategy<Value = Packing> {
    prop::sample::select(styles().collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever is stored, forgotten and packed, what was stored last comes back.
    #[test]
    fn a_home_is_a_map(
        packing in packing(),
        steps in prop::collection::vec(step(), 1..25),
        limit in prop::option::of(100_u64..500),
    ) {
        let limit_bytes = limit.map_or(u64::MAX, |pages| pages * 4096);
        let mut world = world(packing, limit_bytes);
        let mut model: BTreeMap<PageId, Box<AlignedPage>> = BTreeMap::new();
        let mut late: Option<Repacked> = None;
        for step in steps {
            match step {
                Step::Store(first, count, set, seed) => {
                    let ids: Vec<PageId> = (first..(first + count).min(PAGES)).collect();
                    let before = world.memory.clone();
                    ids.iter().for_each(|id| fill(&mut world.memory, *id, seed + u64::from(*id)));
                    let pages = world.memory.pages(ids.iter().copied());
                    let (set, rest) = pages.split_at(pages.len().min(set as usize));
                    match world.home.store(set, rest) {
                        Ok(_) => for id in ids {
                            model.insert(id, world.memory.0[id as usize].clone());
                        },
                        Err(SwapError::Limit { .. }) if limit.is_some() => world.memory = before,
                        Err(error) => panic!("{error}"),
                    }
                }
                Step::Retain(modulus) => {
                    world.home.retain(&mut |id| !id.is_multiple_of(modulus));
                    model.retain(|id, _| !id.is_multiple_of(modulus));
                }
                Step::Pack => {
                    if let Some(packed) = world.home.pack(&|| true).unwrap() {
                        prop_assert!(world.home.adopt(packed, true));
                    }
                }
                Step::PackLate => {
                    let next = world.home.pack(&|| true).unwrap();
                    if let Some(packed) = std::mem::replace(&mut late, next) {
                        world.home.adopt(packed, true);
                    }
                }
            }
            prop_assert!(world.home.stored_bytes() <= limit_bytes);
            let mut fetched = Memory::new(PAGES as usize);
            world.home.fetch(&fetched.pages(model.keys().copied())).unwrap();
            prop_assert!(model.iter().all(|(id, page)| fetched.0[*id as usize].0 == page.0));
        }
    }
}

#[test]
fn what_a_store_replaced_is_given_back_when_there_is_time() {
    let mut world = world(of(Style::Lz4), u64::MAX);
    world.store_all();
    (0..PAGES).for_each(|id| fill(&mut world.memory, id, u64::from(id) + 1000));
    world.store_all();
    let [swap, reap, _] = world.files.clone();
    let first = |file: &Faulty| file.bytes.lock().unwrap()[..100 * PAGE_BYTES].iter().any(|byte| *byte != 0);
    assert!(first(&swap) && first(&reap));
    // A wake comes first.
    assert!(world.home.pack(&|| false).unwrap().is_none());
    assert!(first(&swap) && first(&reap));
    // Also where there is no room to pack.
    world.home.limit_bytes = 0;
    assert!(world.home.pack(&|| true).unwrap().is_none());
    assert!(!first(&swap) && !first(&reap));
    world.comes_back();
}
