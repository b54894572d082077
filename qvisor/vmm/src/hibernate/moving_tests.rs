use std::sync::{Mutex, mpsc};

use swap::{Packing, PageId};

use super::super::tests::{begin_with, sleep, swap_in};
use super::super::{HomePolicy, SwapPlan};
use super::*;
use crate::memory::SandboxMemory;
use abi::hostcall::SWAP_IN_ALL;

const IDS: std::ops::Range<PageId> = 3..900;

fn in_memory(policy: HomePolicy) -> (SandboxMemory, Arc<Hibernation>) {
    let plan = SwapPlan { dir: Some(std::env::temp_dir()), home: policy, ..SwapPlan::default() };
    let (memory, hibernation) = begin_with(plan);
    (memory, Arc::new(hibernation))
}

const STAYS: HomePolicy = HomePolicy { tier: Tier::Memory, disk_after: None };

fn told(hibernation: &Hibernation) -> mpsc::Receiver<Told> {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    hibernation.when_told(move |news| tell.lock().unwrap().send(news).unwrap());
    told
}

fn moved(told: &mpsc::Receiver<Told>) -> Moved {
    loop {
        match told.recv_timeout(Duration::from_secs(20)).unwrap() {
            Told::Moved(Ok(moved)) => return moved,
            Told::Packed(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn fall_asleep(memory: &SandboxMemory, hibernation: &Arc<Hibernation>) {
    sleep(memory, hibernation, &IDS.collect::<Vec<_>>());
    Hibernation::settle(hibernation);
}

fn wakes_right(memory: &SandboxMemory, hibernation: &Hibernation) {
    let ids: Vec<PageId> = IDS.collect();
    assert_eq!(swap_in(memory, hibernation, &ids, SWAP_IN_ALL).0, 0);
    assert!(ids.iter().all(|id| memory.read(super::super::tests::phys(*id)) == Some(*id)));
}

fn settled(hibernation: &Hibernation) -> HomeState {
    for _ in 0..2000 {
        let state = hibernation.home_state().unwrap();
        if !state.is_moving {
            return state;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("it moves for ever");
}

#[test]
fn a_sleeper_in_memory_has_nothing_on_the_disk_and_nothing_twice() {
    let (memory, hibernation) = in_memory(STAYS);
    assert_eq!(hibernation.wake_mode() & abi::hostcall::REAP_AT_ONCE.cast_signed(), 0);
    fall_asleep(&memory, &hibernation);
    let state = hibernation.home_state().unwrap();
    assert_eq!((state.home.as_str(), state.memory_pages, state.disk_bytes), ("memory", 897, 0));
    assert_ne!(hibernation.wake_mode() & abi::hostcall::REAP_AT_ONCE.cast_signed(), 0);
    wakes_right(&memory, &hibernation);
    let state = hibernation.home_state().unwrap();
    assert_eq!((state.memory_pages, state.memory_bytes), (0, state.memory_bytes.min(4096)));
}

#[test]
fn it_goes_to_the_disk_after_its_time_and_is_in_memory_the_next_time() {
    let policy = HomePolicy { tier: Tier::Memory, disk_after: Some(Duration::from_millis(30)) };
    let (memory, hibernation) = in_memory(policy);
    let told = told(&hibernation);
    for _ in 0..2 {
        fall_asleep(&memory, &hibernation);
        let moved = moved(&told);
        assert_eq!((moved.to.as_str(), moved.why, moved.moved_pages), ("disk", MoveCause::Time, 897));
        hibernation.begin_wake(None);
        wakes_right(&memory, &hibernation);
    }
    // Who wakes before is not moved.
    let policy = HomePolicy { tier: Tier::Memory, disk_after: Some(Duration::from_secs(60)) };
    let (memory, hibernation) = in_memory(policy);
    let told = self::told(&hibernation);
    fall_asleep(&memory, &hibernation);
    hibernation.begin_wake(None);
    wakes_right(&memory, &hibernation);
    while let Ok(told) = told.recv_timeout(Duration::from_millis(200)) {
        assert!(matches!(told, Told::Packed(_)), "{told:?}");
    }
}

#[test]
fn it_moves_by_order_there_and_back() {
    let (memory, hibernation) = in_memory(HomePolicy::default());
    let told = told(&hibernation);
    fall_asleep(&memory, &hibernation);
    assert_eq!(hibernation.home_state().unwrap().memory_pages, 0);
    for tier in [Tier::Memory, Tier::Disk, Tier::Memory] {
        Hibernation::order_home(&hibernation, tier).unwrap();
        let state = settled(&hibernation);
        assert_eq!((state.home.as_str(), state.error), (name(tier), None));
        assert_eq!(state.memory_pages > 0, tier == Tier::Memory);
        assert_eq!((moved(&told).why, state.disk_bytes > 0), (MoveCause::Order, tier == Tier::Disk));
        // Once more is nothing.
        Hibernation::order_home(&hibernation, tier).unwrap();
    }
    wakes_right(&memory, &hibernation);
}

#[test]
fn awake_an_order_moves_nothing_and_the_next_sleep_follows_it() {
    let (memory, hibernation) = in_memory(HomePolicy::default());
    let told = told(&hibernation);
    fall_asleep(&memory, &hibernation);
    hibernation.begin_wake(None);
    wakes_right(&memory, &hibernation);
    // The files have what came back still.
    Hibernation::order_home(&hibernation, Tier::Memory).unwrap();
    let state = settled(&hibernation);
    assert_eq!((state.home.as_str(), state.memory_pages), ("memory", 0));
    assert!(told.try_recv().is_err());
    fall_asleep(&memory, &hibernation);
    let state = hibernation.home_state().unwrap();
    assert_eq!((state.memory_pages, state.disk_bytes), (897, 0));
}

#[test]
fn an_order_leaves_the_time_in_memory_to_end() {
    for tier in [Tier::Disk, Tier::Memory] {
        let policy = HomePolicy { tier, disk_after: Some(Duration::from_millis(200)) };
        let (memory, hibernation) = in_memory(policy);
        let told = told(&hibernation);
        fall_asleep(&memory, &hibernation);
        Hibernation::order_home(&hibernation, Tier::Memory).unwrap();
        settled(&hibernation);
        if tier == Tier::Disk {
            assert_eq!(moved(&told).why, MoveCause::Order);
        }
        assert_eq!(moved(&told).why, MoveCause::Time);
        wakes_right(&memory, &hibernation);
    }
}

#[test]
fn without_room_it_falls_to_the_disk_and_says_so() {
    let (memory, hibernation) = in_memory(STAYS);
    let told = told(&hibernation);
    hibernation.home.as_ref().unwrap().write().tiers_mut().memory_mut().unwrap().limit(100);
    fall_asleep(&memory, &hibernation);
    let moved = moved(&told);
    assert_eq!((moved.why, moved.moved_pages), (MoveCause::NoRoom, 897));
    let state = hibernation.home_state().unwrap();
    assert_eq!((state.home.as_str(), state.memory_pages), ("memory", 0));
    // It is not tried again in this sleep.
    thread::sleep(Duration::from_millis(50));
    assert!(!settled(&hibernation).is_moving && hibernation.home_state().unwrap().memory_pages == 0);
    wakes_right(&memory, &hibernation);
}

#[test]
fn what_is_encrypted_is_not_kept_in_memory() {
    let packing = Packing { encrypt: true, ..Packing::default() };
    let plan = SwapPlan { dir: Some(std::env::temp_dir()), packing, ..SwapPlan::default() };
    let host = crate::host_paths::HostPaths::of_new_process();
    let asked = SwapPlan { home: STAYS, ..plan.clone() };
    let error = Hibernation::open(&host, asked).unwrap_err();
    assert!(matches!(error, HomeError::Sealed), "{error}");
    let hibernation = Arc::new(Hibernation::open(&host, plan).unwrap());
    let error = Hibernation::order_home(&hibernation, Tier::Memory).unwrap_err();
    assert!(error.contains("encrypted"), "{error}");
    Hibernation::order_home(&hibernation, Tier::Disk).unwrap();
    assert!(Hibernation::none().home_state().is_none());
}

#[test]
fn an_image_that_is_written_meanwhile_has_all_pages() {
    let (memory, hibernation) = in_memory(STAYS);
    fall_asleep(&memory, &hibernation);
    let files: Vec<File> =
        (0..2).map(|_| File::from(crate::memory::memory_file(c"image").unwrap())).collect();
    let pages = hibernation.begin_pages(&files[0]).unwrap();
    hibernation.write_begun_pages(&memory, &pages, (&files[0], &files[1]), None).unwrap();
    assert_eq!(pages.len(), 897);
    wakes_right(&memory, &hibernation);
}
