use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use super::*;
use crate::base::{Base, FileBase};
use crate::export::write_pages;
use crate::home::Home;
use crate::layered::Layered;
use crate::page::PAGE_BYTES;
use crate::testing::{Faulty, Memory, home};

const PAGES: PageId = 700;

fn file() -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap()
}

fn ids() -> impl Iterator<Item = PageId> + Clone {
    (0..PAGES).filter(|id| !id.is_multiple_of(7))
}

/// Memory, and an image of it: text that packs well, pages of zeros, and such that do not pack.
fn image() -> (Memory, File, File) {
    let mut memory = Memory::new(PAGES as usize);
    for id in ids() {
        match id % 5 {
            0 => memory.set(id, 0),
            1 => memory.set(id, u64::from(id) + 1000),
            _ => memory.set_text(id, u64::from(id)),
        }
    }
    let mut home = home(&Faulty::good(), &Faulty::good());
    home.store(&[], &memory.pages(ids())).unwrap();
    let (pages, table) = (file(), file());
    write_pages(&home, &pages, &table).unwrap();
    (memory, pages, table)
}

/// The image packed.
fn packed(style: Style) -> (Memory, File, File) {
    let (memory, pages, table) = image();
    let (to, to_table) = (file(), file());
    to_table.write_all_at(&[7; 90_000], 0).unwrap();
    let sums = PageSums::read(&table, PAGES).unwrap();
    pack_base((&pages, &sums), (style, None), (&to, &to_table), &|| true).unwrap();
    assert!(to.metadata().unwrap().len() < pages.metadata().unwrap().len());
    (memory, to, to_table)
}

fn comes_back(home: &dyn Home, memory: &Memory, ids: impl Iterator<Item = PageId> + Clone) {
    let mut fetched = Memory::new(PAGES as usize);
    home.fetch(&fetched.pages(ids.clone())).unwrap();
    ids.for_each(|id| assert!(fetched.0[id as usize].0 == memory.0[id as usize].0, "page {id}"));
}

fn on(base: FileBase) -> Layered<FileBase, crate::disk::SwapHome> {
    Layered::new(base.into(), home(&Faulty::good(), &Faulty::good()))
}

#[test]
fn packed_pages_come_back_whatever_packed_them() {
    for style in Style::ALL.into_iter().chain([Style::Zstd(9)]) {
        let (mut memory, pages, table) = packed(style);
        let sums = PageSums::read(&table, PAGES).unwrap();
        assert!(sums.is_packed() && *sums.present() == ids().collect());
        sums.verify(&pages).unwrap();
        let base = FileBase::with_sums(pages.try_clone().unwrap(), sums).unwrap();
        assert!(base.has(8) && !base.has(7) && base.window(8).is_none());
        let mut home = on(base);
        comes_back(&home, &memory, ids());
        comes_back(&home, &memory, ids().filter(|id| id % 41 == 3));
        let mut around = Memory::new(PAGES as usize);
        let mut wanted = around.pages([99, 100, 101, 300]);
        home.fetch_around(&mut wanted).unwrap();
        assert_eq!(wanted.iter().map(|page| page.id).collect::<Vec<_>>(), [99, 100, 101]);
        assert!(around.0[100].0 == memory.0[100].0);
        // What differs is stored, and what does not is not.
        memory.set(3, 5);
        memory.set(7, 5);
        // In whatever order they come.
        let mut pages_of_sleep = memory.pages(ids().chain([7]));
        pages_of_sleep.reverse();
        pages_of_sleep.swap(5, 300);
        let stored = home.store(&[], &pages_of_sleep).unwrap();
        assert_eq!((stored.base_pages, stored.swap_pages), (ids().count() as u64 - 1, 2), "{style}");
        comes_back(&home, &memory, ids().chain([7]));
        home.rest();
        comes_back(&home, &memory, ids());
        // Under another owner.
        let tables = home.base().tables().unwrap();
        let again = on(FileBase::reopen(pages, tables).unwrap());
        let (fresh, _, _) = image();
        comes_back(&again, &fresh, ids());
        // It is written as it lies.
        let (plain, table) = (file(), file());
        write_pages(&again, &plain, &table).unwrap();
        let sums = PageSums::read(&table, PAGES).unwrap();
        assert!(!sums.is_packed());
        sums.verify(&plain).unwrap();
    }
}

#[test]
fn what_is_damaged_never_comes() {
    let (memory, pages, table) = packed(Style::Zstd(1));
    let sums = PageSums::read(&table, PAGES).unwrap();
    let len = pages.metadata().unwrap().len();
    let mut fetched = Memory::new(PAGES as usize);
    for at in (0..len).step_by(7919) {
        let mut byte = [0];
        pages.read_exact_at(&mut byte, at).unwrap();
        pages.write_all_at(&[byte[0] ^ 4], at).unwrap();
        let base = FileBase::with_sums(pages.try_clone().unwrap(), sums.clone()).unwrap();
        for id in ids() {
            if base.fetch(fetched.pages([id])).is_ok() {
                assert!(fetched.0[id as usize].0 == memory.0[id as usize].0, "page {id}");
            }
        }
        pages.write_all_at(&byte, at).unwrap();
    }
    sums.verify(&pages).unwrap();
    pages.set_len(len - PAGE_BYTES as u64).unwrap();
    assert!(sums.verify(&pages).is_err());
    assert!(FileBase::with_sums(pages, sums).is_err());
}

#[test]
fn tables_that_lie_are_refused() {
    let (_, pages, table) = packed(Style::Lz4);
    let len = usize::try_from(table.metadata().unwrap().len()).unwrap();
    let mut bytes = vec![0; len];
    table.read_exact_at(&mut bytes, 0).unwrap();
    let mut fetched = Memory::new(PAGES as usize);
    // The head, a part of the pages, and how they are packed.
    let end = 16 + 24 * ids().count();
    for at in (0..16).chain((16..end).step_by(97)).chain(end..len - 4) {
        let mut changed = bytes[..len - 4].to_vec();
        changed[at] ^= 1;
        crate::tables::seal(&mut changed);
        let Ok(sums) = PageSums::parse(&changed, PAGES) else { continue };
        let Ok(base) = FileBase::with_sums(pages.try_clone().unwrap(), sums) else { continue };
        // Whatever comes is what its checksum says.
        let _ = base.fetch(fetched.pages(ids().filter(|id| base.has(*id))));
    }
    // Sets of fewer pages, or none.
    let cut = |to: usize| {
        let mut content = bytes[..to].to_vec();
        crate::tables::seal(&mut content);
        let sums = PageSums::parse(&content, PAGES)?;
        FileBase::with_sums(pages.try_clone().unwrap(), sums)
    };
    for to in [end, end + 1, end + 16, len - 6, len - 5] {
        assert!(cut(to).is_err(), "{to} bytes");
    }
    assert!(cut(len - 4).is_ok());
}

#[test]
fn pages_that_are_not_as_their_table_says_are_not_packed() {
    let (_, pages, table) = image();
    pages.write_all_at(&[9], offset_of(100) + 5).unwrap();
    let sums = PageSums::read(&table, PAGES).unwrap();
    let error = pack_base((&pages, &sums), (Style::Lz4, None), (&file(), &file()), &|| true).unwrap_err();
    assert!(error.to_string().starts_with("page 100 came back"), "{error}");
    let full = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
    let (_, pages, _) = image();
    assert!(pack_base((&pages, &sums), (Style::Lz4, None), (&full, &file()), &|| true).is_err());
    assert!(pack_base((&pages, &sums), (Style::Lz4, None), (&file(), &full), &|| true).is_err());
    let stopped = pack_base((&pages, &sums), (Style::Lz4, None), (&file(), &file()), &|| false);
    assert!(matches!(stopped, Err(PackError::Stopped)));
}

#[test]
fn sealed_pages_come_back_by_their_key_alone() {
    let (key, other) = (PageKey::new([7; 32]), PageKey::new([8; 32]));
    for style in [Style::None, Style::Lz4] {
        let (memory, pages, table) = image();
        let (to, to_table) = (file(), file());
        let sums = PageSums::read(&table, PAGES).unwrap();
        pack_base((&pages, &sums), (style, Some(&key)), (&to, &to_table), &|| true).unwrap();
        let sums = PageSums::read(&to_table, PAGES).unwrap();
        sums.verify_sealed(&to, Some(&key)).unwrap();
        assert!(sums.verify(&to).is_err() && sums.verify_sealed(&to, Some(&other)).is_err());
        let open = |key: Option<&PageKey>| FileBase::with_key(to.try_clone().unwrap(), sums.clone(), key);
        let base = open(Some(&key)).unwrap();
        // It has no tables without the key.
        assert!(base.tables().is_err());
        let ids: Vec<PageId> = sums.present().ids().collect();
        let mut fetched = Memory::new(PAGES as usize);
        base.fetch(fetched.pages(ids.iter().copied())).unwrap();
        ids.iter().for_each(|id| assert!(fetched.0[*id as usize].0 == memory.0[*id as usize].0, "page {id}"));
        let by_other = open(Some(&other)).unwrap().fetch(fetched.pages(ids.iter().copied()));
        assert!(matches!(by_other, Err(SwapError::Forged { .. })));
        let without = open(None).map(|base| base.fetch(fetched.pages([ids[0]])));
        assert!(!matches!(without, Ok(Ok(_))), "it opens without its key");
        // No page is there in the clear.
        let mut bytes = vec![0; usize::try_from(to.metadata().unwrap().len()).unwrap()];
        to.read_exact_at(&mut bytes, 0).unwrap();
        let content = ids.iter().map(|id| &memory.0[*id as usize].0).filter(|page| page[..16] != [0; 16]);
        for page in content.take(20) {
            assert!(!bytes.windows(16).any(|window| window == &page[..16]));
        }
        // What is not sealed is not taken for it.
        assert!(FileBase::with_key(pages, PageSums::read(&table, PAGES).unwrap(), Some(&key)).is_err());
    }
}
