use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use super::*;
use crate::base::{Base, FileBase};
use crate::error::SwapError;
use crate::export::write_pages;
use crate::home::Home;
use crate::layered::Layered;
use crate::testing::{Faulty, Memory, home};

const PAGES: PageId = 600;
/// With holes, pages of zeros, and more than one batch.
const TEXT: u64 = 1000;

fn file() -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap()
}

fn has(id: PageId) -> bool {
    !id.is_multiple_of(7)
}

fn ids() -> impl Iterator<Item = PageId> {
    (0..PAGES).filter(|id| has(*id))
}

/// A home with pages, some of them zeros or of one word, and their content.
fn begin() -> (Memory, Box<dyn Home>) {
    let mut memory = Memory::new(PAGES as usize);
    for id in ids() {
        let seed = if id.is_multiple_of(5) { 0 } else { u64::from(id) + TEXT };
        memory.set(id, seed);
    }
    let mut home = home(&Faulty::good(), &Faulty::good());
    let (set, rest): (Vec<PageId>, Vec<PageId>) = ids().partition(|id| *id < 100);
    home.store(&memory.pages(set), &memory.pages(rest)).unwrap();
    (memory, Box::new(home))
}

fn all_bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// An image of the home: its pages and its table.
fn image() -> (Memory, File, File) {
    let (memory, home) = begin();
    let (pages, table) = (file(), file());
    // Whatever was there goes.
    pages.write_all_at(&[7; 9000], 8 << 20).unwrap();
    table.write_all_at(&[7; 90000], 0).unwrap();
    assert_eq!(write_pages(&*home, &pages, &table).unwrap(), ids().count() as u64);
    (memory, pages, table)
}

#[test]
fn a_home_is_written_and_lies_under_another() {
    let (mut memory, pages, table) = image();
    let sums = PageSums::read(&table, PAGES).unwrap();
    assert_eq!(*sums.present(), ids().collect());
    assert_eq!(pages.metadata().unwrap().len(), offset_of(PAGES));
    sums.verify(&pages).unwrap();
    let base = FileBase::with_sums(pages, sums).unwrap();
    let mut on_base = Layered::new(base.into(), home(&Faulty::good(), &Faulty::good()));
    let came_back = |home: &dyn Home, memory: &Memory| {
        let mut fetched = Memory::new(PAGES as usize);
        home.fetch(&fetched.pages(ids())).unwrap();
        ids().for_each(|id| assert!(fetched.0[id as usize].0 == memory.0[id as usize].0, "page {id}"));
    };
    came_back(&on_base, &memory);
    // What it has become is written as well, and what is gone is not.
    memory.set(3, TEXT);
    memory.set(7, TEXT);
    on_base.store(&[], &memory.pages([3, 7])).unwrap();
    on_base.retain(&mut |id| id != 4);
    let expected: Bits = ids().filter(|id| *id != 4).chain([7]).collect();
    assert_eq!(on_base.pages(), expected);
    let (pages, table) = (file(), file());
    write_pages(&on_base, &pages, &table).unwrap();
    let sums = PageSums::read(&table, PAGES).unwrap();
    assert_eq!(*sums.present(), expected);
    let mut page = [0; PAGE_BYTES];
    pages.read_exact_at(&mut page, offset_of(3)).unwrap();
    assert!(page == memory.0[3].0);
}

#[test]
fn a_page_that_is_damaged_never_comes_and_is_named() {
    let (_, pages, table) = image();
    let sums = PageSums::read(&table, PAGES).unwrap();
    for id in ids().filter(|id| id % 37 == 1) {
        let at = offset_of(id) + u64::from(id) % PAGE_BYTES as u64;
        let mut byte = [0];
        pages.read_exact_at(&mut byte, at).unwrap();
        pages.write_all_at(&[byte[0] ^ 1], at).unwrap();
        let base = FileBase::with_sums(pages.try_clone().unwrap(), sums.clone()).unwrap();
        let first = id / 7 * 7 + 1;
        let error = base.fetch(Memory::new(PAGES as usize).pages(first..first + 6)).unwrap_err();
        assert!(matches!(error, SwapError::Damaged { id: damaged, .. } if damaged == id), "{id}: {error}");
        assert!(matches!(sums.verify(&pages), Err(BaseError::Changed { id: changed }) if changed == id));
        pages.write_all_at(&byte, at).unwrap();
    }
    sums.verify(&pages).unwrap();
    // A file that ends too early.
    let base = FileBase::with_sums(pages.try_clone().unwrap(), sums.clone()).unwrap();
    pages.set_len(offset_of(10) + 5).unwrap();
    let error = base.fetch(Memory::new(PAGES as usize).pages(8..14)).unwrap_err();
    assert!(matches!(error, SwapError::ReadPage { id: 10, .. }), "{error}");
    assert!(matches!(sums.verify(&pages), Err(BaseError::Pages { .. })));
    assert!(matches!(FileBase::with_sums(pages, sums), Err(BaseError::File(_))));
}

#[test]
fn a_table_that_is_damaged_or_lies_is_refused() {
    let (_, _, table) = image();
    let table = all_bytes(&table);
    let good = PageSums::parse(&table, PAGES).unwrap();
    assert!(PageSums::parse(&table, PAGES - 1).is_err(), "its last page cannot be");
    for at in 0..table.len() {
        let mut changed = table.clone();
        changed[at] ^= 0x10;
        assert!(PageSums::parse(&changed, PAGES).is_err(), "byte {at}");
        // With the right checksum it is taken only if it can be.
        let mut content = changed[..table.len() - 4].to_vec();
        tables::seal(&mut content);
        if let Ok(sums) = PageSums::parse(&content, PAGES) {
            assert_eq!(sums.present().len(), good.present().len());
            assert!(sums.present().end() <= PAGES);
        }
        if at.is_multiple_of(50) {
            assert!(PageSums::parse(&table[..at], PAGES).is_err(), "{at} bytes");
        }
    }
    let with_count = |count: u32| {
        let mut content = table[..table.len() - 4].to_vec();
        content[12..16].copy_from_slice(&count.to_le_bytes());
        tables::seal(&mut content);
        PageSums::parse(&content, PAGES)
    };
    for count in [0, 1, u32::MAX, u32::MAX / 24] {
        assert!(with_count(count).is_err(), "{count}");
    }
    let mut twice = table[..table.len() - 4].to_vec();
    let (first, second) = twice[16..64].split_at_mut(24);
    second[..4].copy_from_slice(&first[..4]);
    tables::seal(&mut twice);
    assert!(PageSums::parse(&twice, PAGES).is_err(), "a page is there twice");
    let longer = file();
    longer.write_all_at(&[table.clone(), vec![0; 100_000]].concat(), 0).unwrap();
    assert!(PageSums::read(&longer, PAGES).is_err());
}

#[test]
fn what_cannot_be_written_leaves_the_home_as_it_was() {
    let (memory, home) = begin();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert!(write_pages(&*home, &full, &file()).is_err());
    let read_only = File::open("/dev/null").unwrap();
    assert!(write_pages(&*home, &file(), &read_only).is_err());
    let mut fetched = Memory::new(PAGES as usize);
    home.fetch(&fetched.pages(ids())).unwrap();
    ids().for_each(|id| assert!(fetched.0[id as usize].0 == memory.0[id as usize].0, "page {id}"));
}

#[test]
fn a_page_that_is_lost_is_named_and_nothing_is_said_to_be_written() {
    let mut memory = Memory::new(8);
    (0..8).for_each(|id| memory.set(id, TEXT));
    let swap = Faulty::good();
    let mut home = home(&swap, &Faulty::good());
    home.store(&[], &memory.pages(0..8)).unwrap();
    swap.bytes.lock().unwrap()[3 * PAGE_BYTES + 9] ^= 1;
    let error = write_pages(&home, &file(), &file()).unwrap_err();
    assert!(error.to_string().starts_with("page 3 came back"), "{error}");
}

#[test]
fn an_empty_home_is_an_empty_image() {
    let home = home(&Faulty::good(), &Faulty::good());
    let (pages, table) = (file(), file());
    assert_eq!(write_pages(&home, &pages, &table).unwrap(), 0);
    let sums = PageSums::read(&table, 0).unwrap();
    assert!(sums.present().is_empty());
    sums.verify(&pages).unwrap();
}
