use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::thread;

use abi::hostcall::{EVENT_EXEC, EVENT_FLAG_HELD, EVENT_HIBERNATE, EVENT_WAKE};
use abi::report::{Report, WakeEvent};
use vmm::checkpoint::ImageHead;

use super::super::tests::{Asked, World};
use super::*;
use crate::control::Order;

const LEFT_RUNNING: ImageTerms =
    ImageTerms { leave_running: true, refuses_connections: false, copies_files: false, seals: false };

fn files() -> Vec<OwnedFd> {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_TMPFILE);
    (0..4).map(|_| options.open(std::env::temp_dir()).unwrap().into()).collect()
}

fn taken() -> ImageTaken {
    let head = ImageHead {
        kernel: "k".into(),
        stub: "s".into(),
        is_kvm: false,
        cpus: 1,
        memory_bytes: 1,
        memory_most_bytes: 1,
        kernel_bytes: 1,
        vmms: 1,
        handles: 3,
        last_container: 0,
        last_exec: 0,
        pages: 5,
        taken_bytes: 4096,
    };
    ImageTaken {
        head,
        pause_us: 3,
        kernel_us: 1,
        pages_us: 2,
        further: Vec::new(),
        written: Vec::new(),
        below: Vec::new(),
        left_pages: 0,
    }
}

/// Asks for one that leaves the sandbox as it was.
fn ask(world: &World) -> Asked {
    world.ask_with(|supervisor, peer| {
        supervisor.checkpoint(peer, ContainerId::FIRST, (files(), Vec::new()), LEFT_RUNNING)
    })
}

/// The kernel hibernates it by the request that it is told.
fn sleeps(world: &World) -> u64 {
    sleeps_by(world, EVENT_FLAG_HELD)
}

/// It is told to hibernate, held or not, and does.
fn sleeps_by(world: &World, held: u32) -> u64 {
    let (kind, flags, request) = world.told();
    assert_eq!((kind, flags & EVENT_FLAG_HELD), (EVENT_HIBERNATE, held));
    world.falls_asleep(request);
    request
}

/// It is told to wake, and does.
fn wakes(world: &World) {
    let (kind, _, request) = world.told();
    assert_eq!(kind, EVENT_WAKE);
    world.supervisor.report(&Report::Resumed { request });
    assert!(!world.supervisor.lock().machine.is_hibernated());
}

fn has_ended(world: &World) -> bool {
    world.supervisor.lock().checkpoint.is_none()
}

#[test]
fn one_that_was_awake_goes_on_afterwards() {
    let world = World::new(true);
    let mut asked = ask(&world);
    sleeps(&world);
    assert!(asked.is_waiting());
    world.supervisor.imaged(1, ImageNews::Done(Ok(Box::new(taken()))));
    assert_eq!(asked.answer().figures, Some(Figures::Checkpoint(Box::new(taken()))));
    wakes(&world);
    // The next one has other numbers.
    let mut asked = ask(&world);
    sleeps(&world);
    world.supervisor.imaged(1, ImageNews::Done(Ok(Box::new(taken()))));
    assert!(asked.is_waiting());
    world.supervisor.imaged(2, ImageNews::Done(Err("the disk is full".into())));
    assert_eq!(asked.error(), "the disk is full");
    wakes(&world);
}

#[test]
fn one_that_slept_sleeps_on() {
    let world = World::new(true);
    let mut hibernate = world.ask(Order::Hibernate);
    sleeps_by(&world, 0);
    assert_eq!(hibernate.answer().error, None);
    let mut asked = ask(&world);
    world.supervisor.imaged(1, ImageNews::Done(Ok(Box::new(taken()))));
    assert_eq!(asked.answer().error, None);
    assert!(world.events.is_empty() && world.supervisor.lock().machine.is_asleep());
}

#[test]
fn one_that_somebody_wants_to_sleep_meanwhile_sleeps_on() {
    let world = World::new(true);
    let mut asked = ask(&world);
    let mut hibernate = world.ask(Order::Hibernate);
    sleeps(&world);
    world.supervisor.imaged(1, ImageNews::Done(Ok(Box::new(taken()))));
    assert_eq!((asked.answer().error, hibernate.answer().error), (None, None));
    // It was held for the checkpoint, and is not for the sleep.
    let events = world.events.take(9);
    let told: Vec<_> = events.iter().map(|event| (event.kind, event.flags & EVENT_FLAG_HELD)).collect();
    assert_eq!(told, [(EVENT_HIBERNATE, 0)], "the last order alone is told");
}

#[test]
fn something_that_comes_is_served_and_then_it_sleeps_again() {
    let world = World::new(true);
    let mut asked = ask(&world);
    let request = sleeps(&world);
    // The kernel wakes it, and refuses.
    world.supervisor.report(&Report::WakeEvent { by: WakeEvent::Socket });
    world.supervisor.report(&Report::NotTaken { request: 1, why: b"it is not asleep" });
    assert!(world.events.is_empty() && asked.is_waiting());
    world.supervisor.report(&Report::Resumed { request });
    sleeps(&world);
    // A process comes in before it has refused.
    let _exec = world.exec(false);
    let kinds: Vec<u32> = world.events.take(9).iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EVENT_EXEC, EVENT_WAKE]);
    let request = world.supervisor.lock().machine.requests();
    world.supervisor.report(&Report::NotTaken { request: 2, why: b"it is not asleep" });
    world.supervisor.report(&Report::Resumed { request });
    sleeps(&world);
    world.supervisor.imaged(3, ImageNews::Done(Ok(Box::new(taken()))));
    assert_eq!(asked.answer().error, None);
    wakes(&world);
}

#[test]
fn it_is_not_tried_for_ever() {
    let world = World::new(true);
    let mut asked = ask(&world);
    sleeps(&world);
    for request in 1..=u64::from(TRIES) {
        assert!(asked.is_waiting());
        world.supervisor.report(&Report::NotTaken { request, why: b"it holds what cannot be taken along" });
    }
    assert_eq!(asked.error(), "it holds what cannot be taken along");
    wakes(&world);
}

#[test]
fn an_order_to_go_on_or_to_pause_ends_it() {
    for order in [Order::Wake { reap: None }, Order::Pause] {
        let world = World::new(true);
        let mut asked = ask(&world);
        let _other = world.ask(order);
        assert!(asked.error().ends_with("meanwhile"));
        assert!(has_ended(&world));
    }
    // While its memory is written that is written first.
    let world = World::new(true);
    let mut asked = ask(&world);
    sleeps(&world);
    let mut wake = world.ask(Order::Wake { reap: None });
    assert!(asked.is_waiting());
    world.supervisor.imaged(1, ImageNews::Done(Ok(Box::new(taken()))));
    assert_eq!(asked.answer().error, None);
    wakes(&world);
    assert_eq!(wake.answer().error, None);
}

#[test]
fn a_hibernation_that_fails_is_told() {
    let world = World::new(true);
    let mut asked = ask(&world);
    let (_, _, request) = world.told();
    world.supervisor.report(&Report::Paused { request });
    world.supervisor.hibernated(request, false);
    assert_eq!(asked.error(), "it was never asked to");
    assert!(world.events.is_empty() && !world.supervisor.lock().machine.wants_rest());
}

#[test]
fn nobody_waits_for_ever_and_it_goes_on() {
    let world = World::new(true);
    let mut asked = ask(&world);
    sleeps(&world);
    if let Some(checkpoint) = &mut world.supervisor.lock().checkpoint {
        checkpoint.deadline = Instant::now();
    }
    world.supervisor.tick();
    assert_eq!(asked.error(), "its memory was not written in time");
    wakes(&world);
    // What comes of it later is nobody's.
    world.supervisor.imaged(1, ImageNews::Done(Ok(Box::new(taken()))));
    assert!(world.events.is_empty());
}

#[test]
fn without_its_asker_it_neither_ends_nor_stays_asleep() {
    let world = World::new(true);
    drop(ask(&world));
    sleeps(&world);
    assert!(has_ended(&world), "it is not even asked");
    wakes(&world);
    let asked = world.ask_with(|supervisor, peer| {
        supervisor.checkpoint(peer, ContainerId::FIRST, (files(), Vec::new()), ImageTerms::default())
    });
    sleeps(&world);
    drop(asked);
    world.supervisor.imaged(1, ImageNews::Done(Ok(Box::new(taken()))));
    wakes(&world);
}

#[test]
fn what_cannot_be_written_is_refused() {
    let world = World::new(true);
    let refused = |of, descriptors| {
        world
            .ask_with(|supervisor, peer| {
                supervisor.checkpoint(peer, of, (descriptors, Vec::new()), LEFT_RUNNING)
            })
            .error()
    };
    assert!(refused(ContainerId(3), files()).contains("pod"));
    assert_eq!(refused(ContainerId::FIRST, files().split_off(1)), "it is written to four files");
    let null = || OpenOptions::new().write(true).open("/dev/null").unwrap();
    let read_only = || File::open("/proc/self/exe").unwrap();
    let appended = || {
        let mut options = OpenOptions::new();
        options.append(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap()
    };
    for wrong in [null(), read_only(), appended()] {
        let mut files = files();
        files[1] = wrong.into();
        assert!(refused(ContainerId::FIRST, files).contains("regular files"));
    }
    let _pending = ask(&world);
    assert!(refused(ContainerId::FIRST, files()).contains("another"));
    let _ = world.ask(Order::Pause);
    assert!(refused(ContainerId::FIRST, files()).contains("paused"));
    let without = World::new(false);
    assert!(!ask(&without).error().is_empty());
}

/// One whose asker copies its files, and whose memory is taken. The asker says this, or hangs up.
fn copies(world: &World, says: Option<&[u8]>) -> Asked {
    let terms = ImageTerms { copies_files: true, ..LEFT_RUNNING };
    let mut asked = world.ask_with(|supervisor, peer| {
        supervisor.checkpoint(peer, ContainerId::FIRST, (files(), Vec::new()), terms)
    });
    sleeps(world);
    thread::scope(|scope| {
        let imaged = scope.spawn(|| world.supervisor.imaged(1, ImageNews::Captured));
        let answer = asked.answer();
        assert_eq!((answer.error, answer.figures), (None, None));
        assert!(world.events.is_empty() && !imaged.is_finished());
        match says {
            Some(word) => asked.stream().write_all(word).unwrap(),
            None => asked.stream().shutdown(std::net::Shutdown::Both).unwrap(),
        }
        world.supervisor.hear_keeper_of_image();
    });
    asked
}

#[test]
fn nothing_runs_until_its_files_are_copied() {
    let world = World::new(true);
    let mut asked = copies(&world, Some(KEPT));
    wakes(&world);
    world.supervisor.imaged(1, ImageNews::Done(Ok(Box::new(taken()))));
    assert_eq!(asked.answer().figures, Some(Figures::Checkpoint(Box::new(taken()))));
    // One whose pages are not written behind it.
    let terms = ImageTerms { copies_files: true, ..LEFT_RUNNING };
    let mut asked = world.ask_with(|supervisor, peer| {
        supervisor.checkpoint(peer, ContainerId::FIRST, (files(), Vec::new()), terms)
    });
    sleeps(&world);
    thread::scope(|scope| {
        scope.spawn(|| world.supervisor.imaged(2, ImageNews::Done(Ok(Box::new(taken())))));
        assert_eq!(asked.answer().figures, None);
        assert!(world.events.is_empty());
        asked.stream().write_all(KEPT).unwrap();
        world.supervisor.hear_keeper_of_image();
    });
    assert_eq!(asked.answer().figures, Some(Figures::Checkpoint(Box::new(taken()))));
    wakes(&world);
}

#[test]
fn one_whose_files_are_not_copied_goes_on_and_there_is_no_snapshot() {
    for says in [Some(&b"no\n"[..]), None] {
        let world = World::new(true);
        let mut asked = copies(&world, says);
        assert!(world.events.is_empty(), "it goes on once its pages are given up");
        world.supervisor.imaged(1, ImageNews::Done(Err("it was given up meanwhile".into())));
        if says.is_some() {
            assert_eq!(asked.error(), "it was given up meanwhile");
        }
        wakes(&world);
        assert!(has_ended(&world));
    }
}
