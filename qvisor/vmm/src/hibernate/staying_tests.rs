use abi::hostcall::{SWAP_IN_ALL, SWAP_IN_AROUND, SwapOut};
use swap::PageSums;

use super::super::tests::{begin, phys, sleep, swap_in};
use super::*;
use crate::memory::memory_file;

const LIST: u64 = 0x1000;
const REQUEST: u64 = 0x9000;

fn file() -> File {
    File::from(memory_file(c"image").unwrap())
}

/// The sandbox sleeps, and these pages, each of which begins with its number, stay.
fn stay(memory: &SandboxMemory, hibernation: &Hibernation, ids: &[PageId], kept: u64) {
    ids.iter().for_each(|id| memory.write(phys(*id), id).unwrap());
    let kept: Vec<PageId> = (0..64).filter(|id| kept >> id & 1 != 0).collect();
    stay_with(memory, hibernation, ids, &kept);
}

/// The sandbox sleeps, and these pages stay; others are kept as they are.
fn stay_with(memory: &SandboxMemory, hibernation: &Hibernation, ids: &[PageId], kept: &[PageId]) {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
    memory.copy_out(LIST, &bytes).unwrap();
    let kept: Bits = kept.iter().copied().filter(|id| !ids.contains(id)).collect();
    let words: Vec<u8> = kept.words().iter().flat_map(|word| word.to_ne_bytes()).collect();
    memory.copy_out(0xb000, &words).unwrap();
    let list = SwapOut {
        rest: LIST,
        rest_count: ids.len() as u64,
        rest_classes: 0xa000,
        kept: 0xb000,
        kept_words: kept.words().len() as u64,
        stays: 1,
        ..SwapOut::default()
    };
    memory.write(REQUEST, &list).unwrap();
    assert_eq!(hibernation.swap_out(memory, REQUEST), 0);
}

/// The first words of the pages in a file that a table was written for.
fn words(pages: &File, table: &File) -> Vec<(PageId, u32)> {
    use std::os::unix::fs::FileExt;
    let sums = PageSums::read(table, 1024).unwrap();
    sums.verify(pages).unwrap();
    let ids = sums.present().runs().flat_map(|(first, end)| first..end);
    let word = |id: PageId| {
        let mut word = [0; 4];
        pages.read_exact_at(&mut word, u64::from(id) * PAGE_SIZE).unwrap();
        (id, u32::from_ne_bytes(word))
    };
    ids.map(word).collect()
}

#[test]
fn the_image_has_every_page_as_it_was() {
    let (memory, hibernation) = begin();
    sleep(&memory, &hibernation, &[2, 3]);
    let ids: Vec<PageId> = (5..300).collect();
    stay(&memory, &hibernation, &ids, 1 << 3);
    assert_eq!(hibernation.keep(&memory, 0, 0), 1);
    assert_eq!(hibernation.staying_ranges(), vec![phys(5)..phys(300)]);
    let (pages, table) = (file(), file());
    let image = hibernation.begin_pages(&pages).unwrap();
    assert!(image.may_follow() && image.len() == 296);
    assert_eq!(hibernation.wake_mode(), abi::hostcall::REAP_IN_PLACE.cast_signed());
    // Reached, overwritten, given back, and far away.
    let wanted = [7, 8, 3, 99];
    let came = swap_in(&memory, &hibernation, &wanted, SWAP_IN_AROUND);
    assert_eq!(came, (0, vec![7, 8, abi::hostcall::NO_FRAME, 99]));
    hibernation.keep(&memory, 20, 5);
    hibernation.keep_range(&memory, phys(298), 9 * PAGE_SIZE);
    hibernation.keep(&memory, u64::MAX, u64::MAX);
    for id in [7, 8, 99, 20, 24, 298, 299] {
        memory.write(phys(id), &0xffff_u32).unwrap();
    }
    assert_eq!(swap_in(&memory, &hibernation, &[3, 9], SWAP_IN_ALL).0, 0);
    assert_eq!(hibernation.keep(&memory, 0, 0), 1);
    hibernation.write_begun_pages(&memory, &image, (&pages, &table), None).unwrap();
    let expected: Vec<(PageId, u32)> = [3].into_iter().chain(5..300).map(|id| (id, id)).collect();
    assert_eq!(words(&pages, &table), expected);
    // Nobody wants them any more, and they are where they were.
    assert_eq!(hibernation.keep(&memory, 0, 0), 0);
    assert_eq!(swap_in(&memory, &hibernation, &[30], SWAP_IN_ALL).0, 0);
    assert_eq!(memory.read(phys(30)), Some(30_u32));
    sleep(&memory, &hibernation, &[30]);
    assert_eq!(hibernation.wake_mode(), abi::hostcall::REAP_FIRST.cast_signed());
}

#[test]
fn what_is_reached_before_the_image_begins_is_the_kernels() {
    let (memory, hibernation) = begin();
    stay(&memory, &hibernation, &[5, 6, 7], 0);
    assert_eq!(swap_in(&memory, &hibernation, &[6], SWAP_IN_ALL).0, 0);
    assert_eq!(hibernation.staying_ranges(), [phys(5)..phys(6), phys(7)..phys(8)]);
    let pages = file();
    assert_eq!(hibernation.begin_pages(&pages).unwrap().len(), 2);
    assert!(hibernation.staying_ranges().is_empty());
}

#[test]
fn an_image_that_nobody_takes_or_that_is_given_up_holds_nobody_up() {
    let (memory, hibernation) = begin();
    stay(&memory, &hibernation, &[5], 0);
    hibernation.end_stay();
    assert_eq!(hibernation.keep(&memory, 0, 0), 0);
    stay(&memory, &hibernation, &[5], 0);
    let (pages, table) = (file(), file());
    let image = hibernation.begin_pages(&pages).unwrap();
    hibernation.give_up_pages();
    assert_eq!(hibernation.keep(&memory, 5, 1), 1);
    let error = hibernation.write_begun_pages(&memory, &image, (&pages, &table), None).unwrap_err();
    assert_eq!(error, ENDED);
    assert_eq!(hibernation.keep(&memory, 0, 0), 0);
    // The next one is another, of a home too.
    sleep(&memory, &hibernation, &[5]);
    let image = hibernation.begin_pages(&pages).unwrap();
    hibernation.write_begun_pages(&memory, &image, (&pages, &table), None).unwrap();
    assert_eq!(words(&pages, &table), [(5, 5)]);
}

/// An image on a parent; result: it, and how many pages it has of its own.
fn on(memory: &SandboxMemory, hibernation: &Hibernation, parent: &[(&File, &File)]) -> (File, File, u64) {
    let (pages, table) = (file(), file());
    let tables: Vec<File> = parent.iter().map(|(_, table)| table.try_clone().unwrap()).collect();
    let ids = parent.iter().map(|(pages, _)| FileId::of(pages).unwrap()).collect();
    let mut parent = KnownParent::read(&tables, ids, 1024).unwrap();
    let image = hibernation.begin_pages(&pages).unwrap();
    hibernation.write_begun_pages(memory, &image, (&pages, &table), Some(&mut parent)).unwrap();
    let own = PageSums::read(&table, 1024).unwrap().present().len();
    (pages, table, own)
}

#[test]
fn what_was_not_reached_is_left_to_the_image_before_without_being_read() {
    let (memory, hibernation) = begin();
    let ids: Vec<PageId> = (5..300).collect();
    stay(&memory, &hibernation, &ids, 0);
    let (first, first_table) = (file(), file());
    let image = hibernation.begin_pages(&first).unwrap();
    hibernation.write_begun_pages(&memory, &image, (&first, &first_table), None).unwrap();
    // Without a parent nobody is to know it.
    assert_eq!(hibernation.keep(&memory, 0, 0), 0);
    stay(&memory, &hibernation, &ids, 0);
    memory.write(phys(7), &0xffff_u32).unwrap();
    let (second, second_table, own) = on(&memory, &hibernation, &[(&first, &first_table)]);
    assert_eq!((own, hibernation.keep(&memory, 0, 0)), (1, hc::KEEP_KNOWN.cast_signed()));
    // One is reached and changed; to the kernel the others are absent still, as one of them that changes unseen would show.
    assert_eq!(swap_in(&memory, &hibernation, &[9], SWAP_IN_ALL).0, 0);
    memory.write(phys(301), &301_u32).unwrap();
    stay_with(&memory, &hibernation, &[9, 301], &ids);
    memory.write(phys(9), &0xeeee_u32).unwrap();
    memory.write(phys(20), &0xdddd_u32).unwrap();
    let chain = [(&second, &second_table), (&first, &first_table)];
    let (third, third_table, own) = on(&memory, &hibernation, &chain);
    assert_eq!(own, 2);
    let sums = PageSums::read(&third_table, 1024).unwrap();
    assert_eq!((sums.count(), sums.below().len()), (296, 2));
    assert_eq!(words(&third, &third_table), [(9, 0xeeee), (301, 301)]);
    assert!(sums.below()[0].has(7) && sums.below()[1].has(20) && !sums.below()[1].has(9));
    // A parent that has not got them has them read.
    stay_with(&memory, &hibernation, &[], &[&ids[..], &[301]].concat());
    let (_, fourth_table, own) = on(&memory, &hibernation, &[(&first, &first_table)]);
    let sums = PageSums::read(&fourth_table, 1024).unwrap();
    assert_eq!((own, sums.count()), (3, 296));
    assert!([7, 9, 301].iter().all(|id| sums.present().has(*id)));
    // A sleep ends it.
    sleep(&memory, &hibernation, &ids);
    assert_eq!(hibernation.keep(&memory, 0, 0), 0);
    stay(&memory, &hibernation, &[5], 0);
    let (.., own) = on(&memory, &hibernation, &chain);
    assert_eq!(own, 0);
}

#[test]
fn a_disk_that_takes_no_page_fails_the_image_alone() {
    let (memory, hibernation) = begin();
    stay(&memory, &hibernation, &[5, 6], 0);
    let full = File::options().read(true).write(true).open("/dev/full").unwrap();
    let (pages, table) = (file(), file());
    let image = hibernation.begin_pages(&pages).unwrap();
    {
        let mut state = hibernation.staying.state();
        let room = (1000..).map(|id| (id, Box::new([0; swap::PAGE_BYTES]))).take(SAVED);
        (state.image, state.saved) = (Some(full), room.collect());
    }
    assert_eq!(swap_in(&memory, &hibernation, &[6], SWAP_IN_ALL).0, 0);
    let error = hibernation.write_begun_pages(&memory, &image, (&pages, &table), None).unwrap_err();
    assert!(error.contains("No space left"), "{error}");
    assert_eq!(memory.read(phys(6)), Some(6_u32));
}
