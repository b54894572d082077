//! Counts the objects of each kind: a container's end gives back all that was its own.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::fs::{leases, locks, mount, notify};
use crate::harness::containers::{make, take_ended};
use crate::harness::host::{feed_process, results};
use crate::harness::rounds::run_all;
use crate::harness::script::{EXIT_GROUP, FORK, PAUSE, call, sleep, text, turn};
use crate::harness::steps::{SCRATCH, Step};
use crate::harness::world::{first_container, make_leader, make_root};
use crate::ipc::IpcNamespace;
use crate::keys::space::KeySpace;
use crate::net::{passing, registry, unix_names};
use crate::task::container::{self, Container, ContainerId, FIRST_PID};
use machine::errno::Errno;
use machine::mm::{AddressSpace, frames, owners};
use machine::sched::timer;
use machine::{handles, testing};

pub const SCENARIOS: &[fn()] = &[
    an_end_gives_all_back,
    messages_are_counted_by_container,
    what_is_reached_stays,
    garbage_goes_while_the_container_lives,
];

const SECOND: ContainerId = ContainerId(2);

const CLOSE: u64 = 3;
const SHMGET: u64 = 29;
const SHMAT: u64 = 30;
const SOCKET: u64 = 41;
const CONNECT: u64 = 42;
const ACCEPT: u64 = 43;
const SENDMSG: u64 = 46;
const RECVMSG: u64 = 47;
const BIND: u64 = 49;
const LISTEN: u64 = 50;
const SOCKETPAIR: u64 = 53;
const SEMGET: u64 = 64;
const MSGGET: u64 = 68;
const FCNTL: u64 = 72;
const FLOCK: u64 = 73;
const CREAT: u64 = 85;
const WRITE: u64 = 1;
const MMAP: u64 = 9;
const TIMER_CREATE: u64 = 222;
const TIMER_SETTIME: u64 = 223;
const EPOLL_CTL: u64 = 233;
const MQ_OPEN: u64 = 240;
const ADD_KEY: u64 = 248;
const INOTIFY_ADD_WATCH: u64 = 254;
const TIMERFD_CREATE: u64 = 283;
const TIMERFD_SETTIME: u64 = 286;
const SIGNALFD4: u64 = 289;
const EVENTFD2: u64 = 290;
const EPOLL_CREATE1: u64 = 291;
const PIPE2: u64 = 293;
const INOTIFY_INIT1: u64 = 294;
const MEMFD_CREATE: u64 = 319;
const PIDFD_OPEN: u64 = 434;

const UNIX: u64 = 1;
const INTERNET: u64 = 2;
const STREAM: u64 = 1;
const DATAGRAM: u64 = 2;
const NONBLOCK: u64 = 0o4000;

/// How many there are of each kind.
#[derive(PartialEq, Eq, Debug)]
struct Census([(&'static str, usize); 13]);

impl Census {
    /// Counts what there is once caches are dropped.
    fn take() -> Self {
        (0..16).for_each(|_| crate::fs::dentry::shrink());
        let (sockets_in_messages, files_to_drop) = passing::census();
        Self([
            ("containers", container::all().len()),
            ("frames", frames::in_use()),
            ("handles", handles::in_use()),
            ("address spaces", AddressSpace::all().len()),
            ("mounts", mount::list().len()),
            ("sockets", registry::list().len()),
            ("abstract names", unix_names::count()),
            ("sockets in messages", sockets_in_messages),
            ("files that are to be dropped", files_to_drop),
            ("watches", notify::count()),
            ("locks", locks::count()),
            ("leases", leases::count()),
            ("timers", timer::count()),
        ])
    }
}

/// The parts of a container that go with it.
struct Parts {
    container: Weak<Container>,
    ipc: Weak<IpcNamespace>,
    keys: Weak<KeySpace>,
    passing: Weak<passing::Passing>,
}

impl Parts {
    fn of(container: &Arc<Container>) -> Self {
        Self {
            container: Arc::downgrade(container),
            ipc: Arc::downgrade(&container.ipc()),
            keys: Arc::downgrade(&container.keys),
            passing: Arc::downgrade(&container.passing),
        }
    }

    fn left(&self) -> [usize; 4] {
        let (ipc, keys) = (self.ipc.strong_count(), self.keys.strong_count());
        [self.container.strong_count(), ipc, keys, self.passing.strong_count()]
    }
}

/// Writes calls down, and the descriptors that they will return.
struct Program {
    steps: Vec<Step>,
    next: u64,
}

impl Program {
    fn new() -> Self {
        Self { steps: Vec::new(), next: 0 }
    }

    fn call(&mut self, number: u64, args: &[u64]) {
        self.steps.push(call(number, args));
    }

    fn text(&mut self, bytes: &[u8]) -> u64 {
        self.steps.push(text(SCRATCH, bytes));
        SCRATCH
    }

    /// A call that returns a descriptor.
    fn open(&mut self, number: u64, args: &[u64]) -> u64 {
        self.call(number, args);
        self.next += 1;
        self.next - 1
    }

    fn pair(&mut self, kind: u64) -> [u64; 2] {
        self.call(SOCKETPAIR, &[UNIX, kind, 0, SCRATCH]);
        self.next += 2;
        [self.next - 2, self.next - 1]
    }

    /// Sends files in a message of one byte.
    fn send(&mut self, to: u64, files: &[u64]) {
        let at = self.message(files.len());
        let fds = files.iter().flat_map(|fd| u32::try_from(*fd).expect("a descriptor").to_ne_bytes());
        self.steps.push(text(at + 0x210, &fds.collect::<Vec<u8>>()));
        self.call(SENDMSG, &[to, at, 0]);
    }

    /// Receives a message with so many files.
    fn receive(&mut self, from: u64, files: usize) {
        let at = self.message(files);
        self.call(RECVMSG, &[from, at, 0]);
        self.next += files as u64;
    }

    /// A `struct msghdr` with room for so many files.
    fn message(&mut self, files: usize) -> u64 {
        let at = SCRATCH + 0x1000;
        let control = (16 + 4 * files) as u64;
        let header = [0, 0, at + 0x100, 1, at + 0x200, control.next_multiple_of(8), 0];
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let rights = 1 | 1 << 32;
        self.steps.push(text(at, &words(&header)));
        self.steps.push(text(at + 0x100, &words(&[at + 0x180, 1])));
        self.steps.push(text(at + 0x200, &words(&[control, rights])));
        at
    }

    fn close(&mut self, fds: &[u64]) {
        fds.iter().for_each(|fd| self.call(CLOSE, &[*fd]));
    }
}

/// Cycles of sockets, with memory and a set of epoll in them. `closes`: nobody has a descriptor afterwards.
fn cycles(program: &mut Program, closes: bool) {
    let memory = program.open(MEMFD_CREATE, &[SCRATCH, 0]);
    program.call(WRITE, &[memory, SCRATCH, 0x8000]);
    let set = program.open(EPOLL_CREATE1, &[0]);
    let own = program.pair(STREAM);
    program.send(own[0], &[own[0], own[1], memory, set]);
    let (one, other) = (program.pair(DATAGRAM), program.pair(STREAM));
    program.send(one[0], &[other[0], other[1], memory]);
    program.send(other[0], &[one[0], one[1]]);
    // A listener that only a connection which it has not accepted holds.
    let name = program.text(b"\x01\0\0census");
    let listener = program.open(SOCKET, &[UNIX, STREAM, 0]);
    program.call(BIND, &[listener, name, 9]);
    program.call(LISTEN, &[listener, 8]);
    let client = program.open(SOCKET, &[UNIX, STREAM, 0]);
    program.call(CONNECT, &[client, name, 9]);
    program.send(client, &[listener, client, set, memory]);
    let event = program.text(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    program.call(EPOLL_CTL, &[set, 1, own[0], event]);
    program.call(EPOLL_CTL, &[set, 1, listener, event]);
    if closes {
        program.close(&[memory, set, own[0], own[1], one[0], one[1], other[0], other[1], listener, client]);
    }
}

/// One of each kind of object.
fn objects(program: &mut Program) {
    let name = program.text(b"/tmp/file\0");
    let file = program.open(CREAT, &[name, 0o644]);
    program.call(WRITE, &[file, SCRATCH, 0x4000]);
    program.call(FLOCK, &[file, 2]);
    let write_lease = 1;
    program.call(FCNTL, &[file, 1024, write_lease]);
    program.call(MMAP, &[0x3000_0000, 0x10000, 3, 0x8032, u64::MAX, 0]);
    let watcher = program.open(INOTIFY_INIT1, &[0]);
    let place = program.text(b"/tmp\0");
    program.call(INOTIFY_ADD_WATCH, &[watcher, place, 0xfff]);
    program.open(EVENTFD2, &[1, 0]);
    program.open(SIGNALFD4, &[u64::MAX, SCRATCH, 8, 0]);
    program.call(PIPE2, &[SCRATCH, NONBLOCK]);
    program.next += 2;
    program.call(WRITE, &[program.next - 1, SCRATCH, 0x2000]);
    let clock = program.open(TIMERFD_CREATE, &[1, 0]);
    let hour = program.text(&[0_u64, 0, 3600, 0].map(u64::to_ne_bytes).concat());
    program.call(TIMERFD_SETTIME, &[clock, 0, hour, 0]);
    program.call(TIMER_CREATE, &[1, 0, SCRATCH + 0x800]);
    program.call(TIMER_SETTIME, &[0, 0, hour, 0]);
    program.open(SOCKET, &[INTERNET, DATAGRAM, 0]);
    program.open(PIDFD_OPEN, &[FIRST_PID.into(), 0]);
    program.call(SHMGET, &[0, 0x4000, 0o1600]);
    program.call(SHMAT, &[0, 0, 0]);
    program.call(SEMGET, &[0, 4, 0o1600]);
    program.call(MSGGET, &[0, 0o1600]);
    let queue = program.text(b"queue\0");
    program.open(MQ_OPEN, &[queue, 0o102, 0o600, 0]);
    let key = program.text(b"user\0census\0content");
    let session_keyring = u64::from(u32::MAX - 2);
    program.call(ADD_KEY, &[key, key + 5, key + 12, 7, session_keyring]);
}

/// Runs a program in a new container that ends with it; the parts of the container.
fn run_and_end(program: Program) -> Parts {
    testing::set_sockets(1 << 20);
    let second = make(SECOND);
    let parts = Parts::of(&second);
    let root = make_root();
    // Its mounts go with it.
    second.root.call_once(|| root.clone());
    let leader = make_leader(&second, &root, 0);
    drop(root);
    let count = program.steps.iter().filter(|step| matches!(step, Step::Call { .. })).count();
    let last = [call(FORK, &[]), call(EXIT_GROUP, &[0])];
    feed_process(SECOND, FIRST_PID + 1, [call(PAUSE, &[])]);
    feed_process(SECOND, FIRST_PID, program.steps.into_iter().chain(last));
    leader.start();
    drop(leader);
    run_all();
    testing::set_sockets(0);
    let results = results(SECOND, FIRST_PID);
    let failed = results.iter().position(|result| *result < 0);
    assert_eq!(failed, None, "calls that fail: {results:?}");
    assert!(results.len() > count, "calls that were made: {results:?}");
    drop(second);
    parts
}

fn an_end_gives_all_back() {
    let program = || {
        let mut program = Program::new();
        objects(&mut program);
        cycles(&mut program, false);
        program
    };
    // Once, so that caches have what they will have.
    run_and_end(program());
    for _ in 0..3 {
        take_ended();
        let before = Census::take();
        let parts = run_and_end(program());
        assert_eq!(take_ended(), [(SECOND, 0)], "the end of the container");
        assert_eq!(Census::take(), before);
        assert_eq!(parts.left(), [0; 4], "the container, its System V objects, its keys, and its counts");
        owners::check_settled();
    }
}

fn messages_are_counted_by_container() {
    let fill = || {
        let mut program = Program::new();
        let ends = program.pair(DATAGRAM);
        let most = [ends[1]; 200];
        (0..8).for_each(|_| program.send(ends[0], &most));
        program.steps.into_iter().chain(sleep())
    };
    let refused = |id: ContainerId, pid: u32| {
        let results = results(id, pid);
        results[1..9].iter().filter(|result| **result == -i64::from(Errno::ETOOMANYREFS.0)).count()
    };
    let second = make(SECOND);
    let parts = Parts::of(&second);
    let leader = make_leader(&second, &make_root(), 0);
    feed_process(SECOND, FIRST_PID, fill());
    leader.start();
    run_all();
    let has_been = refused(SECOND, FIRST_PID);
    assert!((1..8).contains(&has_been), "{has_been} messages of the first to come are refused");
    let counted = second.passing.files_of(0);
    assert_eq!(counted, 200 * (8 - has_been as u64));
    let first = first_container();
    let neighbour = make_leader(&first, &make_root(), 0);
    feed_process(first.id, neighbour.process.pid, fill());
    neighbour.start();
    run_all();
    assert_eq!(refused(first.id, neighbour.process.pid), has_been, "the other container's messages");
    turn(&leader.process, [call(EXIT_GROUP, &[0])]);
    assert!(container::find(SECOND).is_none(), "the container goes on");
    drop((leader, second));
    assert_eq!(parts.left(), [0; 4], "what is left of the container");
    assert_eq!(first.passing.files_of(0), counted, "files of the one that goes on");
}

fn what_is_reached_stays() {
    let first = first_container();
    let leader = make_leader(&first, &make_root(), 0);
    feed_process(first.id, leader.process.pid, sleep());
    leader.start();
    run_all();
    let mut program = Program::new();
    let door = program.pair(STREAM);
    let (one, other) = (program.pair(DATAGRAM), program.pair(STREAM));
    let name = program.text(b"\x01\0\0lives!");
    let listener = program.open(SOCKET, &[UNIX, STREAM, 0]);
    program.call(BIND, &[listener, name, 9]);
    program.call(LISTEN, &[listener, 8]);
    let client = program.open(SOCKET, &[UNIX, STREAM, 0]);
    program.call(CONNECT, &[client, name, 9]);
    program.send(one[0], &[other[1], listener]);
    program.send(other[0], &[one[1]]);
    program.send(client, &[one[1], client]);
    program.send(door[0], &[one[1]]);
    program.close(&[one[0], one[1], other[0], other[1], listener, client]);
    let results = turn(&leader.process, program.steps);
    assert!(results.iter().all(|result| *result >= 0), "{results:?}");
    let before = passing::census();
    assert_eq!(before, (4, 0), "sockets in messages");
    (0..3).for_each(|_| passing::collect_all());
    assert_eq!(passing::census(), before, "sockets in messages that can be received");
    // Through the door to the first, to the listener in it, and to the connection in that.
    let mut program = Program { steps: Vec::new(), next: 2 };
    program.receive(door[1], 1);
    program.receive(2, 2);
    let accepted = program.open(ACCEPT, &[4, 0, 0]);
    program.receive(accepted, 2);
    let results = turn(&leader.process, program.steps);
    assert_eq!(results, [1, 1, 5, 1], "what is received");
    turn(&leader.process, (0..8).map(|fd| call(CLOSE, &[fd])));
    passing::collect_all();
    assert_eq!(passing::census(), (0, 0), "sockets in messages once all is closed");
}

fn garbage_goes_while_the_container_lives() {
    let first = first_container();
    let leader = make_leader(&first, &make_root(), 0);
    feed_process(first.id, leader.process.pid, sleep());
    leader.start();
    run_all();
    let garbage = || {
        let mut program = Program::new();
        cycles(&mut program, true);
        program.steps
    };
    turn(&leader.process, garbage());
    passing::collect_all();
    let before = Census::take();
    for _ in 0..5 {
        let results = turn(&leader.process, garbage());
        assert!(results.iter().all(|result| *result >= 0), "{results:?}");
        // Who needs something gets what nobody can reach.
        passing::collect_in_need();
        assert_eq!(Census::take(), before);
    }
}
