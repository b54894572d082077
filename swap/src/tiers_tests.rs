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

fn move_all(home: &mut TieredHome) -> Result<usize, SwapError> {
    let mut moved = 0;
    loop {
        match home.move_some(home.goes_to())? {
            0 => return Ok(moved),
            count => moved += count,
        }
        assert!(moved <= PAGES as usize);
    }
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
        assert_eq!(
            home.move_some(home.goes_to()).unwrap(),
            if tier == Tier::Disk { 300 } else { MOVED_PAGES }
        );
        comes_back(&home, &memory);
        assert_eq!(home.pages().len(), u64::from(PAGES));
        move_all(&mut home).unwrap();
        assert!(home.is_settled());
        comes_back(&home, &memory);
        // The working set stays one.
        let (first, of_set) = match tier {
            Tier::Disk => home.disk().first(400),
            Tier::Memory => home.memory().unwrap().first(400),
        };
        assert_eq!((of_set, first[0].0, first[299].0), (300, 600, 899));
    }
    assert!(home.persist(&mut Vec::new()).is_ok());
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
    home.move_some(home.goes_to()).unwrap();
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
    home.move_some(home.goes_to()).unwrap();
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
