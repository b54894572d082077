use super::*;
use crate::testing::{Faulty, Memory, home as disk_home};

const PAGES: PageId = 1300;

fn memory() -> Memory {
    let mut memory = Memory::new(PAGES as usize);
    (0..PAGES).for_each(|id| memory.set(id, id.into()));
    memory
}

fn home(limit_bytes: u64) -> (TieredHome, std::sync::Arc<Faulty>) {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let home = TieredHome::from(disk_home(&swap, &reap));
    (home.with_memory(MemoryHome::new(None, limit_bytes), Tier::Memory), swap)
}

fn comes_back(home: &TieredHome, memory: &Memory) {
    let mut fetched = Memory::new(PAGES as usize);
    home.fetch(&fetched.pages(0..PAGES)).unwrap();
    for id in 0..PAGES {
        assert!(fetched.0[id as usize].0 == memory.0[id as usize].0, "page {id}");
    }
}

fn move_all(home: &mut TieredHome) -> Result<(), SwapError> {
    home.move_all(home.goes_to())
}

/// Moves the first pages.
fn move_some(home: &mut TieredHome) -> usize {
    let mut moves = home.moves(home.goes_to());
    home.move_next(&mut moves, MOVED_PAGES).unwrap().unwrap_or(0)
}

#[test]
fn pages_move_down_and_up_and_lose_nothing() {
    let (mut home, _) = home(u64::MAX);
    let mut memory = memory();
    home.store(&memory.pages(600..900), &memory.pages((0..600).chain(900..PAGES))).unwrap();
    assert!(home.disk().is_empty() && home.is_settled());
    comes_back(&home, &memory);
    for tier in [Tier::Disk, Tier::Memory, Tier::Disk] {
        assert!(home.send_to(tier) && !home.is_settled());
        // Half on the way.
        assert_eq!(move_some(&mut home), 300);
        comes_back(&home, &memory);
        assert_eq!(home.pages().len(), u64::from(PAGES));
        move_all(&mut home).unwrap();
        assert!(home.is_settled());
        comes_back(&home, &memory);
        // The working set stays one.
        let (listed, of_set) = match tier {
            Tier::Disk => home.disk().listed(),
            Tier::Memory => home.memory().unwrap().listed(),
        };
        assert_eq!((of_set, listed[0].0, listed[299].0), (300, 600, 899));
    }
    assert!(home.persist(&mut Vec::new()).is_ok());
}

#[test]
fn many_pages_go_to_the_disk_first_unless_it_fails() {
    let (swap, reap) = (Faulty::good(), Faulty::good());
    let few = |at_once| {
        let home = TieredHome::from(disk_home(&swap, &reap))
            .with_memory(MemoryHome::new(None, u64::MAX), Tier::Memory);
        TieredHome { at_once, ..home }
    };
    let mut memory = memory();
    let mut home = few(100);
    home.store(&memory.pages(0..40), &memory.pages(40..100)).unwrap();
    assert!(home.is_settled());
    let stored = home.store(&memory.pages(0..40), &memory.pages(40..PAGES)).unwrap();
    assert!(stored.is_to_lift && !stored.fell_to_disk && stored.swap_pages > 0 && !home.is_settled());
    assert!(home.memory().unwrap().is_empty());
    comes_back(&home, &memory);
    move_all(&mut home).unwrap();
    assert!(home.is_settled());
    comes_back(&home, &memory);
    swap.calls_left.store(0, std::sync::atomic::Ordering::Relaxed);
    let mut home = few(100);
    home.store(&memory.pages(0..40), &memory.pages(40..PAGES)).unwrap();
    assert!(home.is_settled());
    comes_back(&home, &memory);
}

#[test]
fn pages_that_are_stored_or_forgotten_meanwhile_do_not_move() {
    let (mut home, _) = home(u64::MAX);
    let mut memory = memory();
    home.store(&[], &memory.pages(0..PAGES)).unwrap();
    let mut moves = home.moves(Tier::Disk);
    assert_eq!(home.move_next(&mut moves, 100).unwrap(), Some(100));
    home.forget(&(100..150).collect::<Vec<_>>());
    home.retain(&mut |id| id < 400);
    memory.set(300, 77);
    home.store(&memory.pages([300]), &[]).unwrap();
    assert_eq!(home.move_next(&mut moves, 100).unwrap(), Some(50));
    while home.move_next(&mut moves, 100).unwrap().is_some() {}
    assert!(home.memory().unwrap().is_empty());
    assert_eq!(home.pages().ids().collect::<Vec<_>>(), (0..100).chain(150..400).collect::<Vec<_>>());
    let mut fetched = Memory::new(PAGES as usize);
    home.fetch(&fetched.pages([300, 399])).unwrap();
    assert!(fetched.0[300].0 == memory.0[300].0 && fetched.0[399].0 == memory.0[399].0);
}

#[test]
fn without_room_in_memory_pages_go_to_the_disk() {
    let (mut home, _) = home(300_000);
    let mut memory = memory();
    assert!(!home.store(&[], &memory.pages(0..50)).unwrap().fell_to_disk);
    let stored = home.store(&memory.pages(0..20), &memory.pages(20..PAGES)).unwrap();
    assert!(stored.fell_to_disk && stored.swap_pages > 0);
    assert!(home.memory().unwrap().is_empty() && !home.is_settled());
    comes_back(&home, &memory);
    // Nor do they move up.
    assert!(matches!(move_all(&mut home), Err(SwapError::Limit { .. })));
    comes_back(&home, &memory);
    home.retain(&mut |id| id < 60);
    move_all(&mut home).unwrap();
    assert!(home.is_settled());
    assert_eq!(home.pages().len(), 60);
}

#[test]
fn a_disk_that_fails_leaves_pages_in_memory() {
    let (mut home, swap) = home(u64::MAX);
    let mut memory = memory();
    home.store(&[], &memory.pages(0..PAGES)).unwrap();
    home.send_to(Tier::Disk);
    swap.calls_left.store(0, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(move_all(&mut home), Err(SwapError::Write { .. })));
    comes_back(&home, &memory);
    assert!(home.persist(&mut Vec::new()).is_err());
    swap.calls_left.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    move_all(&mut home).unwrap();
    comes_back(&home, &memory);
}

#[test]
fn what_is_stored_anew_is_in_one_place() {
    let (mut home, _) = home(u64::MAX);
    let mut memory = memory();
    home.store(&[], &memory.pages(0..PAGES)).unwrap();
    home.send_to(Tier::Disk);
    move_some(&mut home);
    home.send_to(Tier::Memory);
    (0..PAGES).step_by(3).for_each(|id| memory.set(id, u64::from(id) + 5000));
    home.store(&memory.pages((0..PAGES).step_by(3)), &[]).unwrap();
    comes_back(&home, &memory);
    let in_memory = home.memory().unwrap().pages();
    assert!(home.disk().pages().ids().all(|id| !in_memory.has(id)));
    home.send_to(Tier::Disk);
    home.store(&[], &memory.pages(0..PAGES)).unwrap();
    assert!(home.is_settled());
    comes_back(&home, &memory);
    // What came from memory to stay is not there any more; what came from the disk is.
    home.send_to(Tier::Memory);
    move_some(&mut home);
    home.forget(&(0..PAGES).collect::<Vec<_>>());
    assert!(home.memory().unwrap().is_empty() && !home.disk().is_empty());
}

#[test]
fn neighbours_come_from_the_tier_of_the_first() {
    let (mut home, _) = home(u64::MAX);
    let mut memory = memory();
    home.store(&[], &memory.pages(0..20)).unwrap();
    home.send_to(Tier::Disk);
    home.store(&[], &memory.pages(20..40)).unwrap();
    for (first, expected) in [(15, 4..20), (24, 20..40)] {
        let mut around = memory.pages([first].into_iter().chain((4..40).filter(|id| *id != first)));
        home.fetch_around(&mut around).unwrap();
        let mut ids: Vec<PageId> = around.iter().map(|page| page.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, expected.collect::<Vec<_>>());
    }
}
