use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use codec::Style;
use proptest::prelude::*;

use super::*;
use crate::below::BELOW_MAX;
use crate::export::{make_room, write_set};
use crate::pack::pack_base;
use crate::page::PAGE_BYTES;
use crate::parent::Parent;
use crate::regions::Regions;
use crate::sums::PageSums;
use crate::tables;
use crate::testing::Memory;

const PAGES: PageId = 300;

fn file() -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap()
}

/// An image: its files, and those of others that have pages of it.
struct Image {
    pages: File,
    table: File,
    below: Vec<(File, File)>,
}

impl Image {
    /// That of these pages of a memory, on a parent if there is one.
    fn of(memory: &Memory, ids: &Bits, on: Option<&Self>) -> Self {
        let mut parent = on.map(|on| Parent::new(on.tables()).unwrap());
        let (pages, table) = (file(), file());
        make_room(&pages, ids).unwrap();
        let fetch = |wanted: &[Page]| {
            wanted.iter().for_each(|page| page.copy_in(&memory.0[page.id as usize].0));
            Ok(())
        };
        write_set(ids, &Regions::default(), (&pages, &table), parent.as_mut(), &fetch).unwrap();
        let used: Vec<usize> = parent.iter().flat_map(Parent::used).map(|(place, _)| place).collect();
        let files: Vec<(&File, &File)> = on.iter().flat_map(|on| on.all()).collect();
        let clone = |file: &File| file.try_clone().unwrap();
        let below = used.iter().map(|place| (clone(files[*place].0), clone(files[*place].1))).collect();
        Self { pages, table, below }
    }

    fn all(&self) -> Vec<(&File, &File)> {
        let below = self.below.iter().map(|(pages, table)| (pages, table));
        [(&self.pages, &self.table)].into_iter().chain(below).collect()
    }

    fn tables(&self) -> Vec<PageSums> {
        self.all().iter().map(|(_, table)| PageSums::read(table, PAGES).unwrap()).collect()
    }

    /// It packed, the files of others being as they are.
    fn packed(self) -> Self {
        let (pages, table) = (file(), file());
        pack_base((&self.pages, &self.tables()[0]), (Style::Lz4, None), (&pages, &table), &|| true).unwrap();
        Self { pages, table, ..self }
    }

    fn base(&self) -> StackedBase {
        let sums = self.tables();
        let below = self.below.iter().zip(sums[0].below()).zip(&sums[1..]);
        let open = |pages: &File, sums: &PageSums| {
            FileBase::with_sums(pages.try_clone().unwrap(), sums.clone()).unwrap()
        };
        let below = below.map(|(((pages, _), used), sums)| (open(pages, sums), used.clone())).collect();
        StackedBase::new(open(&self.pages, &sums[0]), below).unwrap()
    }

    fn own(&self) -> u64 {
        self.tables()[0].present().len()
    }
}

/// All pages come as they are in memory, and only they.
fn check(base: &StackedBase, memory: &Memory, ids: &Bits) {
    assert_eq!((0..PAGES + 9).filter(|id| base.has(*id)).collect::<Bits>(), ids.ids().collect());
    assert_eq!(base.end(), ids.end());
    let mut fetched = Memory::new(PAGES as usize);
    let bytes = base.fetch(fetched.pages(ids.ids())).unwrap();
    assert!(bytes > 0 || ids.is_empty());
    ids.ids().for_each(|id| assert!(fetched.0[id as usize].0 == memory.0[id as usize].0, "page {id}"));
    let others = (0..PAGES).filter(|id| !ids.has(*id));
    for id in others.take(3) {
        let error = base.fetch(fetched.pages([id])).unwrap_err();
        assert!(matches!(error, SwapError::Unknown { .. }), "{error}");
    }
    base.rest();
    // What equals them, and what does not.
    let mut other = Memory::new(PAGES as usize);
    for id in 0..PAGES {
        other.0[id as usize].0 = memory.0[id as usize].0;
        if id.is_multiple_of(3) {
            other.0[id as usize].0[17] ^= 1;
        }
    }
    let same = base.equals(&other.pages((0..PAGES).rev()));
    let expected: Vec<bool> = (0..PAGES).rev().map(|id| ids.has(id) && !id.is_multiple_of(3)).collect();
    assert_eq!(same, expected);
}

fn begin() -> (Memory, Bits) {
    let mut memory = Memory::new(PAGES as usize);
    (0..PAGES).for_each(|id| memory.set(id, u64::from(id % 50)));
    (memory, (0..PAGES).filter(|id| id % 7 != 0).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Chains that are longer than a base may have files, some of which are packed: each has all pages of its moment.
    #[test]
    fn a_chain_of_images_has_every_page(
        steps in prop::collection::vec(
            (prop::collection::vec((0..PAGES, 0..90_u64), 0..40), prop::collection::vec(0..PAGES, 0..30), any::<bool>()),
            1..14,
        ),
    ) {
        let (mut memory, mut ids) = begin();
        let mut image = Image::of(&memory, &ids, None);
        check(&image.base(), &memory, &ids);
        for (changes, gone, is_packed) in steps {
            changes.iter().for_each(|(id, seed)| {
                memory.set(*id, *seed);
                ids.set(*id);
            });
            gone.iter().for_each(|id| ids.clear(*id));
            let before = image.below.len();
            image = Image::of(&memory, &ids, Some(&image));
            prop_assert!(image.below.len() <= BELOW_MAX);
            prop_assert!(before == BELOW_MAX || image.own() <= changes.len() as u64);
            if is_packed && image.own() > 0 {
                image = image.packed();
            }
            check(&image.base(), &memory, &ids);
            for ((pages, _), sums) in image.all().iter().zip(image.tables()) {
                sums.verify(pages).unwrap();
            }
        }
    }
}

#[test]
fn what_is_the_same_is_written_once() {
    let (mut memory, ids) = begin();
    let first = Image::of(&memory, &ids, None);
    memory.set(8, 1000);
    memory.set(9, 0);
    let second = Image::of(&memory, &ids, Some(&first));
    assert_eq!((second.own(), second.below.len()), (2, 1));
    // It is as it was before: the first has it, which is below.
    memory.set(8, 8);
    let third = Image::of(&memory, &ids, Some(&second));
    assert_eq!((third.own(), third.below.len()), (1, 2));
    let same = Image::of(&memory, &ids, Some(&third));
    assert_eq!((same.own(), same.below.len()), (0, 3));
    check(&same.base(), &memory, &ids);
    let other = Memory::new(PAGES as usize);
    let none = Image::of(&other, &[70].into_iter().collect(), Some(&same));
    assert_eq!((none.own(), none.below.len()), (1, 0));
    assert_eq!(none.tables()[0].count(), 1);
}

#[test]
fn pages_that_are_known_to_be_the_same_are_not_read() {
    let (mut memory, ids) = begin();
    let first = Image::of(&memory, &ids, None);
    memory.set(8, 1000);
    let second = Image::of(&memory, &ids, Some(&first));
    let mut parent = Parent::new(second.tables()).unwrap();
    // Page 8 is in the parent's own file, 9 in the one below, and 7 in none.
    assert!(parent.leave_to(0, 8) && parent.leave_to(1, 9));
    assert!(
        !parent.leave_to(1, 8) && !parent.leave_to(0, 9) && !parent.leave_to(0, 7) && !parent.leave_to(2, 9)
    );
    assert_eq!(parent.left(), [8, 9].into_iter().collect());
    let (pages, table) = (file(), file());
    let none = Regions::default();
    write_set(&Bits::default(), &none, (&pages, &table), Some(&mut parent), &|_| panic!("it is read"))
        .unwrap();
    let sums = PageSums::read(&table, PAGES).unwrap();
    assert_eq!((sums.count(), sums.present().len(), sums.below().len()), (2, 0, 2));
}

#[test]
fn tables_that_lie_about_other_files_are_refused() {
    let (mut memory, ids) = begin();
    let first = Image::of(&memory, &ids, None);
    memory.set(8, 1000);
    let image = Image::of(&memory, &ids, Some(&first));
    let len = usize::try_from(image.table.metadata().unwrap().len()).unwrap();
    let mut good = vec![0; len];
    std::os::unix::fs::FileExt::read_exact_at(&image.table, &mut good, 0).unwrap();
    good.truncate(len - 4);
    let parse = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        tables::seal(&mut bytes);
        PageSums::parse(&bytes, PAGES)
    };
    const AT: usize = 16 + 24;
    assert_eq!(parse(&|_| ()).unwrap().below(), image.tables()[0].below());
    type Change = dyn Fn(&mut Vec<u8>);
    let cases: [(&str, &Change); 7] = [
        ("no file", &|bytes| bytes[AT..AT + 4].fill(0)),
        ("too many files", &|bytes| bytes[AT] = 9),
        ("another file, which is missing", &|bytes| bytes[AT] = 2),
        ("more words than there are", &|bytes| bytes[AT + 4] = 200),
        ("words without end", &|bytes| bytes[AT + 4..AT + 8].fill(0xff)),
        ("its own page in another file", &|bytes| bytes[AT + 9] |= 1),
        ("a page that cannot be", &|bytes| bytes[AT + 8 + 8 * 4 + 7] |= 0x80),
    ];
    for (what, change) in cases {
        assert!(parse(change).is_err(), "{what}");
    }
    // Bits behind the last page.
    assert!(
        PageSums::parse(
            &{
                let mut all = good.clone();
                tables::seal(&mut all);
                all
            },
            PAGES - 1
        )
        .is_err()
    );
    // Another file's, which lacks a page.
    let few = Image::of(&memory, &(0..5).collect(), None);
    let sums = || vec![image.tables().remove(0), few.tables().remove(0)];
    assert!(Parent::new(sums()).is_err());
    assert!(Parent::new(sums().into_iter().take(1).collect()).is_err());
    let open = |of: &Image, at: usize| {
        FileBase::with_sums(of.pages.try_clone().unwrap(), of.tables().remove(at)).unwrap()
    };
    let used = image.tables()[0].below()[0].clone();
    assert!(StackedBase::new(open(&image, 0), vec![(open(&few, 0), used.clone())]).is_err());
    assert!(
        StackedBase::new(open(&image, 0), vec![(open(&first, 0), used.clone()), (open(&first, 0), used)])
            .is_err()
    );
}

#[test]
fn a_damaged_page_of_another_file_is_named() {
    let (mut memory, ids) = begin();
    let first = Image::of(&memory, &ids, None);
    memory.set(8, 1000);
    let image = Image::of(&memory, &ids, Some(&first));
    std::os::unix::fs::FileExt::write_all_at(&first.pages, &[1], 100 * PAGE_BYTES as u64 + 5).unwrap();
    let error = image.base().fetch(Memory::new(PAGES as usize).pages([99, 100])).unwrap_err();
    assert!(matches!(error, SwapError::Damaged { id: 100, .. }), "{error}");
    assert!(image.base().fetch(Memory::new(PAGES as usize).pages([8, 99])).is_ok());
}
