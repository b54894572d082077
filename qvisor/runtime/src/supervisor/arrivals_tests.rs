use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use abi::hostcall::{EVENT_SIGNAL, EVENT_WAKE};
use abi::mount::{Handles, HostKind};
use testdir::TempDir;
use vmm::boot::{BootSpec, Mount};
use vmm::hibernate::Hibernation;
use vmm::hostcall::events::EventQueue;

use super::super::peers::Attached;
use super::super::restored::tests::head;
use super::*;
use crate::control::{Answer, Order, Restores};
use crate::status::Status;

const FIRST: ContainerId = ContainerId::FIRST;
const APP: ContainerId = ContainerId(2);
const DB: ContainerId = ContainerId(4);

/// A pod that begins with a snapshot in which it had these two further containers. The kernel's part is played here.
struct World {
    supervisor: Arc<Supervisor>,
    events: Arc<EventQueue>,
    front: BufReader<std::os::unix::net::UnixStream>,
    dir: TempDir,
}

type Line = BufReader<std::os::unix::net::UnixStream>;

fn read<T: serde::de::DeserializeOwned>(from: &mut Line) -> T {
    let mut line = String::new();
    from.get_ref().set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    from.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

impl World {
    fn new() -> Self {
        let events = Arc::new(EventQueue::new());
        let (channel, front) = std::os::unix::net::UnixStream::pair().unwrap();
        let made = Supervisor::new(Arc::new(channel), None, Arc::clone(&events), Hibernation::none(), false)
            .unwrap();
        let supervisor = made.of_a_pod(true).of_a_snapshot(&head(), &[APP.0, DB.0], None);
        let world = Self {
            supervisor: Arc::new(supervisor),
            events,
            front: BufReader::new(front),
            dir: TempDir::new(),
        };
        // What stands for it on the host is not played here, so it is taken to be a keeper's.
        let (line, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let keeper = Keeper { line: crate::control::Lines::new(line), listener: world.listener("first") };
        world.supervisor.lock().containers.get_mut(FIRST).unwrap().keeper = Some(keeper);
        world
    }

    fn listener(&self, name: &str) -> UnixListener {
        let path = self.dir.path().join(name);
        let _ = std::fs::remove_file(&path);
        UnixListener::bind(path).unwrap()
    }

    /// A container comes; result: its keeper's line.
    fn comes(&self, restores: Option<ContainerId>) -> Line {
        self.comes_as(restores.map(|ContainerId(number)| Restores { number, or_begins: false }))
    }

    fn comes_as(&self, restores: Option<Restores>) -> Line {
        let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        let root = Mount::of_host(HostKind::Root, Handles { root: 0, lower: None }, "/".into(), 0);
        let spec = BootSpec { args: vec![b"sh".to_vec()], mounts: vec![root], ..BootSpec::default() };
        let view: OwnedFd = std::fs::File::open("/").unwrap().into();
        let descriptors = vec![self.listener("further").into(), view];
        let attached = Attached { body: spec.container_records(), descriptors };
        self.supervisor.create(theirs, FIRST, attached, restores);
        BufReader::new(ours)
    }

    fn ask(&self, of: ContainerId, order: Order) -> Line {
        let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        self.supervisor.obey_peer(theirs, of, order);
        BufReader::new(ours)
    }

    fn answer(&self, of: ContainerId, order: Order) -> Answer {
        read(&mut self.ask(of, order))
    }

    fn kinds(&self) -> Vec<u32> {
        self.events.take(16).iter().map(|event| event.kind).collect()
    }

    /// The VMM's thread that would run the kernel.
    fn runner(&self) -> thread::JoinHandle<()> {
        let supervisor = Arc::clone(&self.supervisor);
        thread::spawn(move || supervisor.wait_for_containers())
    }
}

fn created(id: ContainerId) -> Report {
    Report::Created { number: id.0 }
}

#[test]
fn a_pod_goes_on_once_all_its_containers_have_come_and_are_started() {
    let mut world = World::new();
    let runner = world.runner();
    assert_eq!(read::<Report>(&mut world.front), created(FIRST));
    // The first one is started before the others come, as engines do.
    assert_eq!(world.answer(FIRST, Order::Start).error, None);
    let state = world.answer(FIRST, Order::State);
    assert_eq!(state.status, Some(Status::Running));
    let mut app = world.comes(Some(APP));
    assert_eq!(read::<Report>(&mut app), created(APP));
    assert_eq!(world.answer(APP, Order::Start).error, None);
    assert!(!runner.is_finished() && world.kinds().is_empty(), "one has not come");
    let mut db = world.comes(Some(DB));
    runner.join().unwrap();
    assert!(
        vmm::process::receive_now(db.get_ref(), &mut [0]).is_none(),
        "the kernel has not said that it can go on"
    );
    world.supervisor.report(&abi::report::Report::ContainerReady { container: FIRST });
    assert_eq!(read::<Report>(&mut db), created(DB));
    assert!(!world.kinds().contains(&EVENT_WAKE), "one is not started");
    assert_eq!(world.answer(DB, Order::State).status, Some(Status::Created));
    let mut start = world.ask(DB, Order::Start);
    assert_eq!(world.kinds().last(), Some(&EVENT_WAKE));
    assert!(vmm::process::receive_now(start.get_ref(), &mut [0]).is_none(), "it does not go on yet");
    world.supervisor.report(&abi::report::Report::Resumed { request: 2 });
    assert_eq!(read::<Answer>(&mut start).error, None);
    for line in [&mut world.front, &mut app, &mut db] {
        assert_eq!(read::<Report>(line), Report::Started);
    }
    // From here on it is a pod like any other, in which one that has ended begins anew.
    let anew = Some(Restores { number: APP.0, or_begins: true });
    for mut later in [world.comes(None), world.comes_as(anew)] {
        assert!(vmm::process::receive_now(later.get_mut(), &mut [0]).is_none(), "the kernel makes it");
    }
    assert!(read::<Answer>(&mut world.comes(Some(APP))).error.is_some());
}

#[test]
fn nobody_comes_to_such_a_pod_but_those_whom_it_had_each_once() {
    let world = World::new();
    let refused = |restores| read::<Answer>(&mut world.comes(restores)).error.unwrap();
    assert!(refused(None).contains("restore and start"));
    assert!(refused(Some(ContainerId(3))).contains("that snapshot"));
    assert!(refused(Some(FIRST)).contains("that snapshot"));
    let mut app = world.comes(Some(APP));
    assert_eq!(read::<Report>(&mut app), created(APP));
    assert!(refused(Some(APP)).contains("has that container"));
    // A pod that began without one.
    let (channel, _front) = std::os::unix::net::UnixStream::pair().unwrap();
    let events = Arc::new(EventQueue::new());
    let plain = Supervisor::new(Arc::new(channel), None, events, Hibernation::none(), false).unwrap();
    let world = World { supervisor: Arc::new(plain.of_a_pod(true)), ..World::new() };
    assert!(read::<Answer>(&mut world.comes(Some(APP))).error.unwrap().contains("that snapshot"));
}

#[test]
fn one_that_goes_or_is_killed_before_all_have_come_may_come_again() {
    let world = World::new();
    let runner = world.runner();
    let mut app = world.comes(Some(APP));
    assert_eq!(read::<Report>(&mut app), created(APP));
    // What comes for it goes with it.
    world.answer(APP, Order::Kill { signal: libc::SIGTERM, foreground: false, all: false });
    assert!(world.answer(APP, Order::Pause).error.is_some());
    assert_eq!(
        world.answer(APP, Order::Kill { signal: libc::SIGKILL, foreground: false, all: true }).error,
        None
    );
    assert_eq!(read::<Report>(&mut app), Report::Exited { status: libc::SIGKILL });
    assert!(world.supervisor.lock().containers.get(APP).is_none());
    assert!(world.kinds().is_empty(), "the kernel does not know of it");
    let app = world.comes(Some(APP));
    drop(app);
    world.supervisor.hear_keeper(APP);
    let mut app = world.comes(Some(APP));
    assert_eq!(read::<Report>(&mut app), created(APP));
    world.answer(APP, Order::Kill { signal: libc::SIGUSR1, foreground: false, all: false });
    let _db = world.comes(Some(DB));
    runner.join().unwrap();
    let told = world.events.take(16);
    let signals: Vec<_> = told.iter().map(|event| (event.kind, event.token, event.value)).collect();
    assert_eq!(signals, [(EVENT_SIGNAL, APP.0, i64::from(libc::SIGUSR1))]);
    // From here on the kernel has it, and ends it; the others go on without it.
    world.supervisor.report(&abi::report::Report::ContainerReady { container: FIRST });
    world.kinds();
    drop(app);
    world.supervisor.coming.drop_request(APP);
    let _starts = [FIRST, DB].map(|id| world.ask(id, Order::Start));
    assert!(!world.kinds().contains(&EVENT_WAKE), "one is neither started nor gone");
    world.supervisor.hear_keeper(APP);
    let kinds = world.kinds();
    assert!(kinds.contains(&EVENT_SIGNAL) && kinds.contains(&EVENT_WAKE), "{kinds:?}");
}

#[test]
fn why_a_pod_cannot_go_on_is_told_to_all_of_it() {
    let world = World::new();
    let (mut app, mut db) = (world.comes(Some(APP)), world.comes(Some(DB)));
    assert_eq!(read::<Report>(&mut app), created(APP));
    world.supervisor.wait_for_containers();
    let why = b"a file /a has changed";
    world.supervisor.report(&abi::report::Report::ContainerFailed { container: FIRST, status: 256, why });
    for line in [&mut app, &mut db] {
        let Report::Failed { message, .. } = read(line) else { panic!("it failed") };
        assert_eq!(message.as_bytes(), why);
    }
}
