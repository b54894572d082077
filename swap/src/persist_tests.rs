use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::*;
use crate::disk::SwapHome;
use crate::home::Home;
use crate::io::Device;
use crate::packing::{Codec, Packing};
use crate::page::PAGE_BYTES;
use crate::testing::{Faulty, Handle, Memory, home};

const PAGES: PageId = 3000;

fn devices(files: &[Arc<Faulty>; 3]) -> [Box<dyn Device>; 3] {
    files.clone().map(|file| Box::new(Handle(file)) as Box<dyn Device>)
}

fn packing() -> Packing {
    Packing { codec: Codec::Style(codec::Style::DeflateCanned), ..Packing::default() }
}

fn reopen(files: &[Arc<Faulty>; 3], tables: &[u8]) -> Result<SwapHome, TablesError> {
    SwapHome::reopen(devices(files), packing(), tables, PAGES, u64::MAX)
}

fn persisted(home: &SwapHome) -> Vec<u8> {
    let mut tables = Vec::new();
    home.persist(&mut tables).unwrap();
    tables
}

/// A home with pages of all sorts, its files, and its pages' contents.
fn sample() -> (SwapHome, [Arc<Faulty>; 3], Memory, Vec<PageId>) {
    let files = [Faulty::good(), Faulty::good(), Faulty::good()];
    let home = home(&files[0], &files[1]).with_packing(Box::new(Handle(files[2].clone())), packing());
    let (mut home, mut memory) = (home, Memory::new(PAGES as usize));
    (0..PAGES).for_each(|id| memory.set(id, u64::from(if id.is_multiple_of(5) { id % 4 } else { id + 4 })));
    (100..1000_u32).filter(|id| !id.is_multiple_of(5)).for_each(|id| memory.set_text(id, u64::from(id)));
    let class = |id: PageId| Class::ALL[id as usize / 7 % 4];
    let mut pages = |ids: std::ops::Range<PageId>| {
        ids.step_by(3).map(|id| memory.page(id).with_class(class(id))).collect::<Vec<_>>()
    };
    let (set, rest) = (pages(102..201), pages(300..PAGES));
    home.store(&set, &rest[..250]).unwrap();
    let packed = home.pack(&|| true).unwrap().unwrap();
    assert!(home.adopt(packed, true));
    home.store(&[], &rest[250..]).unwrap();
    home.store(&[], &pages(120..141)).unwrap();
    home.retain(&mut |id| !(1500..1520).contains(&id));
    let ids = (102..201).step_by(3).chain((300..PAGES).step_by(3)).filter(|id| !(1500..1520).contains(id));
    (home, files, memory, ids.collect())
}

#[test]
fn a_home_opened_anew_is_the_same_one() {
    let (home, files, memory, ids) = sample();
    let tables = persisted(&home);
    let mut again = reopen(&files, &tables).unwrap();
    let pages = |home: &SwapHome| home.stats().into_iter().take(12).collect::<Vec<_>>();
    assert_eq!((pages(&again), again.stored_bytes()), (pages(&home), home.stored_bytes()));
    assert!(home.stats().iter().any(|stat| stat.name == "packed_pages" && stat.value > 100));
    assert_eq!(persisted(&again), tables);
    let mut fetched = Memory::new(PAGES as usize);
    again.fetch(&fetched.pages(ids.iter().copied())).unwrap();
    assert!(ids.iter().all(|id| fetched.0[*id as usize].0 == memory.0[*id as usize].0));
    // It goes on as a home: free slots are used again, those in use are not.
    let new: Vec<PageId> = (1..PAGES).step_by(3).collect();
    new.iter().for_each(|id| fetched.set(*id, 7000 + u64::from(*id)));
    again.store(&[], &fetched.pages(new)).unwrap();
    let mut once_more = Memory::new(PAGES as usize);
    again.fetch(&once_more.pages(ids.iter().copied())).unwrap();
    assert!(ids.iter().all(|id| once_more.0[*id as usize].0 == memory.0[*id as usize].0));
    assert!(again.fetch(&once_more.pages([1500])).is_err());
}

#[test]
fn an_empty_home_is_opened_anew() {
    let files = [Faulty::good(), Faulty::good(), Faulty::good()];
    let tables = persisted(&home(&files[0], &files[1]));
    assert_eq!(reopen(&files, &tables).unwrap().stored_bytes(), 0);
}

/// Reads tables whose checksum is right whatever they say; the pages in them by their numbers.
fn read_sealed(content: &[u8], room: [u64; 3]) -> Result<BTreeMap<PageId, PageLocation>, TablesError> {
    let mut tables = content.to_vec();
    tables::seal(&mut tables);
    let mut found = BTreeMap::new();
    read(&tables, PAGES, room, &mut |said| match said {
        Said::Set(..) => {}
        Said::Page(entry) => assert!(found.insert(entry.id, entry.at.place).is_none()),
    })?;
    Ok(found)
}

/// Tables without their checksum, and how many slots their files are long enough for.
static SAMPLE: LazyLock<(Vec<u8>, [u64; 3])> = LazyLock::new(|| {
    let (home, files, ..) = sample();
    let mut content = persisted(&home);
    content.truncate(content.len() - 4);
    (content, files.map(|file| file.bytes.lock().unwrap().len() as u64 / PAGE_BYTES as u64))
});

#[test]
fn what_contradicts_itself_or_the_files_is_refused() {
    let (content, room) = SAMPLE.clone();
    read_sealed(&content, room).unwrap();
    let error = |content: &[u8], room| read_sealed(content, room).unwrap_err().to_string();
    assert!(error(&content, [room[0] - 1, room[1], room[2]]).ends_with("a file is shorter than they say"));
    assert!(error(&content, [room[0], room[1], 1]).ends_with("a set is not where it can be"));
    assert!(error(&content[..content.len() - 1], room).ends_with("they are too short"));
    assert!(error(&[&content[..], &[0]].concat(), room).ends_with("there is more than they say"));
    let changed = |at: usize, byte: u8| {
        let mut content = content.clone();
        content[at] = byte;
        error(&content, room)
    };
    assert!(changed(0, 0).ends_with("they are of another kind"));
    assert_eq!(changed(8, 9), "the tables of a home of pages have version 9 instead of 3");
    assert!(changed(40, 1).contains("encrypted"));
    // The counts of runs and of words.
    assert!(changed(19, 255).ends_with("a count is too large") && changed(27, 255).contains("too large"));
    // The first run: its pages, its slot, its kind, its class.
    let sets = 28 + 2 * (4 + SEAL_BYTES);
    let bytes = usize::try_from(u64::from_le_bytes(content[sets..sets + 8].try_into().unwrap())).unwrap();
    let run = sets + 8 + bytes;
    // The first set: its flags, how many tables it has, its style, its first page.
    let tables = content[sets + 11];
    assert!(tables > 1);
    assert!(changed(sets + 11, 0).ends_with("the codes of a set are none"));
    assert!(changed(sets + 11, tables - 1).ends_with("the codes of a set are none"));
    assert!(changed(sets + 11, tables + 1).ends_with("they are too short"));
    assert!(changed(sets + 9, 9).ends_with("a set is out of place"));
    // An engine unpacks canned sets of one table.
    assert!(changed(sets + 9, content[sets + 9] | 4).ends_with("a set is out of place"));
    assert!(changed(sets + 12, 9).ends_with("a set is packed in an unknown way"));
    assert!(changed(sets + 12, 1).ends_with("a set has codes that it cannot use"));
    assert!(changed(sets + 18, 1).ends_with("a set is not where it can be"));
    assert!(changed(run + 3, 1).ends_with("a run of pages is out of place"));
    assert!(changed(run + 4, 0).ends_with("a run of pages is out of place"));
    assert!(changed(run + 10, 15).ends_with("a slot is behind the file's last one"));
    assert!(changed(run + 11, 1).ends_with("there is no such set"));
    assert!(changed(run + 12, 0).ends_with("a run is nowhere"));
    assert!(changed(run + 13, 4).ends_with("a class is unknown"));
    let mut unsealed = persisted(&sample().0);
    *unsealed.last_mut().unwrap() ^= 1;
    let swapped = reopen(&[Faulty::good(), Faulty::good(), Faulty::good()], &unsealed);
    assert!(swapped.err().unwrap().to_string().ends_with("their checksum is wrong"));
}

proptest! {
    /// Nothing that tables can say makes two pages of one slot, or a page out of bounds, or panics.
    #[test]
    fn hostile_tables_do_no_harm(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        len in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let (mut content, room) = SAMPLE.clone();
        for (at, byte) in changes {
            let at = at.index(content.len());
            content[at] = byte;
        }
        content.truncate(len.map_or(content.len(), |len| len.index(content.len())));
        if let Ok(found) = read_sealed(&content, room) {
            let mut slots = [Bits::default(), Bits::default(), Bits::default()];
            for (id, place) in found {
                prop_assert!(id < PAGES);
                let (slot, file) = match place {
                    PageLocation::Word => continue,
                    PageLocation::Swap(slot) => (slot, 0),
                    PageLocation::Reap(slot) => (slot, 1),
                    PageLocation::Packed(slot) => (slot, 2),
                };
                prop_assert!(file == 2 || u64::from(slot) < room[file]);
                prop_assert!(!slots[file].has(slot));
                slots[file].set(slot);
            }
        }
    }

    #[test]
    fn noise_is_no_table(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let content = [tables::begin(KIND, persist_sets::VERSION), noise].concat();
        let _ = read_sealed(&content, [10, 10, 10]);
    }
}
