//! Containers with limits of memory, and what is left of the sandbox's when one of them takes all that it gets.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::limits::{ContainerLimit, NO_LIMIT, event_flags};
use abi::run::PF_WRITE;

use crate::container::{limits, usage};
use crate::fs::path::Path;
use crate::harness::containers::make;
use crate::harness::host::{feed_process, results};
use crate::harness::rounds::{run_all, run_checked};
use crate::harness::script::{ACCESS, FORK, MKDIR, PAUSE, call, has, sleep, text, turn};
use crate::harness::steps::{SCRATCH, Step};
use crate::harness::world::{first_container, make_leader, make_root};
use crate::signals::SIGKILL;
use crate::task::container::{Container, ContainerId, FIRST_PID};
use crate::task::core::Task;
use crate::task::signal;
use machine::mm::{account, frames, owners};
use machine::owner::Owner;
use machine::sched::timer;
use machine::time;

const SECOND: ContainerId = ContainerId(2);
const MIB: u64 = 1 << 20;
/// The limit of the second container. The sandbox has 64 MiB.
const LIMIT: u64 = 24 * MIB;
/// Where processes map their memory.
const HEAP: u64 = 0x2000_0000;
/// Often enough for a task that waits until memory comes free.
const ROUNDS: u32 = 4000;

const READ: u64 = 0;
const WRITE: u64 = 1;
const CLOSE: u64 = 3;
const MMAP: u64 = 9;
const SOCKETPAIR: u64 = 53;
const UNLINK: u64 = 87;
const FCNTL: u64 = 72;
const CREAT: u64 = 85;
const PIPE2: u64 = 293;

/// Maps and writes so much memory.
fn take(bytes: u64) -> Vec<Step> {
    let (read_write, private_anonymous_fixed_no_reserve) = (3, 0x4032);
    let mapped = call(MMAP, &[HEAP, bytes, read_write, private_anonymous_fixed_no_reserve, u64::MAX, 0]);
    let faults = (HEAP..HEAP + bytes).step_by(4096).map(|addr| Step::Fault { addr, error: PF_WRITE });
    core::iter::once(mapped).chain(faults).collect()
}

/// Runs everybody, and those that wait for a moment as well.
fn run_on() {
    (0..ROUNDS).for_each(|_| run_all());
}

fn kills(container: &Container) -> u64 {
    container.events.oom_kills.load(Ordering::Relaxed)
}

fn used(container: &Container) -> u64 {
    owners::used(container.memory().owner())
}

/// The first container with a process that holds some memory, and a second container.
struct Pod {
    first: Arc<Container>,
    second: Arc<Container>,
    root: Path,
    neighbour: Arc<Task>,
}

impl Pod {
    fn new(limit: u64) -> Self {
        let (first, second) = (first_container(), make(SECOND));
        second.limits.set(ContainerLimit::TasksMax, NO_LIMIT);
        second.memory().begin_with_limit(limit);
        let root = make_root();
        let neighbour = make_leader(&first, &root, 0);
        let steps = take(4 * MIB).into_iter().chain([call(PAUSE, &[])]);
        feed_process(ContainerId::FIRST, neighbour.process.pid, steps);
        neighbour.start();
        run_all();
        Self { first, second, root, neighbour }
    }

    /// Runs the second container's first process with these steps; it goes on to the end of them.
    fn run(&self, steps: impl IntoIterator<Item = Step>) -> Arc<Task> {
        let charged = self.second.charge();
        let leader = make_leader(&self.second, &make_root(), 0);
        drop(charged);
        feed_process(SECOND, FIRST_PID, steps.into_iter().chain([call(PAUSE, &[])]));
        leader.start();
        run_on();
        leader
    }

    /// The first container's process has lost nothing, and the container gets all it asks for.
    fn check_neighbour(&self, frames_before: usize) {
        assert_eq!(owners::frames(Owner::SANDBOX), frames_before, "the first container's frames");
        assert_eq!(kills(&self.first), 0, "processes of the first container that were killed");
        assert!(!self.neighbour.process.is_exiting(), "the first container's process ends");
        let tasks = self.first.tasks().len();
        let next = make_leader(&self.first, &self.root, 0);
        let steps = [text(SCRATCH, b"/after\0"), call(MKDIR, &[SCRATCH, 0o755]), call(FORK, &[])];
        let steps = steps.into_iter().chain(take(2 * MIB)).chain([call(PAUSE, &[])]);
        feed_process(ContainerId::FIRST, next.process.pid, steps);
        feed_process(ContainerId::FIRST, next.process.pid + 1, [call(PAUSE, &[])]);
        next.start();
        run_on();
        assert!(has(&self.root, b"after"), "the first container gets no directory");
        assert_eq!(self.first.tasks().len(), tasks + 2, "processes that the first container gets");
        assert!(next.aspace().is_some_and(|aspace| aspace.sizes().1 > 2 * MIB), "it gets no memory");
    }
}

/// A container that reaches its limit has its own process killed, again and again, and never has more than its limit.
///
/// # Panics
///
/// When it is not so.
pub fn only_its_own_are_killed(trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let pod = Pod::new(LIMIT);
        let frames_before = owners::frames(Owner::SANDBOX);
        for pid in [2, 3] {
            feed_process(SECOND, pid, take(2 * LIMIT));
        }
        let leader = pod.run([call(FORK, &[]), call(FORK, &[])]);
        assert_eq!(kills(&pod.second), 2, "processes of the second container that were killed");
        assert!(owners::peak(pod.second.memory().owner()) <= LIMIT, "more than the limit");
        assert!(owners::peak(pod.second.memory().owner()) > LIMIT - MIB, "the limit was not reached");
        assert!(!leader.process.is_exiting(), "the container's first process was killed");
        let shown = usage::of(&pod.second);
        assert_eq!((shown.oom_kills, shown.tasks, shown.limit_bytes), (2, 1, LIMIT), "{shown:?}");
        pod.check_neighbour(frames_before);
    });
}

/// Where the sandbox's own limit is reached, the largest process goes, whosever it is; here it is the container's first.
///
/// # Panics
///
/// When it is not so.
pub fn the_largest_is_killed_at_the_sandboxes_limit(trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let pod = Pod::new(NO_LIMIT);
        let frames_before = owners::frames(Owner::SANDBOX);
        let leader = pod.run(take(80 * MIB));
        assert!(leader.process.is_exiting(), "the largest process goes on");
        drop(leader);
        assert_eq!(kills(&pod.second), 1, "processes of the second container that were killed");
        pod.check_neighbour(frames_before);
    });
}

/// A container that makes as many processes, or as much for the kernel to keep, as it can leaves the others theirs.
///
/// # Panics
///
/// When it does not.
pub fn hoarders_take_nothing_from_others(trace: Option<fn(&str)>) {
    let bomb = (0..300).map(|_| call(FORK, &[])).collect::<Vec<_>>();
    let nonblocking = 0o4000;
    let pipes = (0..400).flat_map(|at| {
        let (write_end, set_size) = (2 * at + 1, 1031);
        [
            call(PIPE2, &[SCRATCH, nonblocking]),
            call(FCNTL, &[write_end, set_size, MIB]),
            call(WRITE, &[write_end, SCRATCH, 0x1_0000]),
            call(WRITE, &[write_end, SCRATCH, 0x1_0000]),
            call(WRITE, &[write_end, SCRATCH, 0x1_0000]),
        ]
    });
    let (unix, datagram) = (1, 2);
    let sockets = (0..400).flat_map(|at| {
        let pair = call(SOCKETPAIR, &[unix, datagram | nonblocking, 0, SCRATCH]);
        let sends = (0..40).map(move |_| call(WRITE, &[2 * at, SCRATCH, 4000]));
        core::iter::once(pair).chain(sends)
    });
    let files = (0..20_000_u32).flat_map(|at| {
        let name = alloc::format!("/{at:0240}\0");
        [text(SCRATCH, name.as_bytes()), call(CREAT, &[SCRATCH, 0o644]), call(CLOSE, &[0])]
    });
    for steps in [bomb, pipes.collect(), sockets.collect(), files.collect()] {
        run_checked(trace, || {
            let pod = Pod::new(LIMIT);
            let frames_before = owners::frames(Owner::SANDBOX);
            (2..400).for_each(|pid| feed_process(SECOND, pid, [call(PAUSE, &[])]));
            let before = used(&pod.second);
            let leader = pod.run(steps);
            let (now, kernel) = (used(&pod.second), owners::kernel(pod.second.memory().owner()) as u64);
            assert!(now > before + 4 * MIB || kernel > 10 * MIB, "{now} and {kernel} bytes are no hoard");
            assert!(now <= LIMIT && kernel <= LIMIT / 4 + 12 * MIB, "{now} and {kernel} bytes");
            drop(leader);
            pod.check_neighbour(frames_before);
        });
    }
}

/// Checks that files which a container leaves in a file system that another one sees become the sandbox's, and that its
/// number is free for the next.
///
/// # Panics
///
/// When it is not so.
pub fn files_outlive_their_container(trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let root = make_root();
        let frames_before = owners::frames(Owner::SANDBOX);
        let owner = {
            let second = make(SECOND);
            second.memory().begin_with_limit(LIMIT);
            let leader = make_leader(&second, &root, 0);
            let mut steps = alloc::vec![text(SCRATCH, b"/left\0"), call(CREAT, &[SCRATCH, 0o644])];
            steps.extend((0..16).map(|_| call(WRITE, &[0, SCRATCH, 0x1_0000])));
            feed_process(SECOND, FIRST_PID, steps);
            leader.start();
            drop(leader);
            run_on();
            second.memory().owner()
        };
        let left = owners::frames(Owner::SANDBOX) - frames_before;
        assert!((256..300).contains(&left), "{left} frames are left");
        assert_eq!((owners::frames(owner), owners::kernel(owner)), (0, 0), "the container has something");
        let next = make(SECOND);
        assert_eq!(next.memory().owner(), owner, "the next one's number");
        assert_eq!(owners::limit(owner), None, "the next one's limit");
        next.give_up();
    });
}

/// A limit below what a container holds is refused, and one above it holds from then on.
///
/// # Panics
///
/// When it is not so.
pub fn limits_change_while_it_runs(trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let pod = Pod::new(NO_LIMIT);
        let frames_before = owners::frames(Owner::SANDBOX);
        let leader = pod.run(take(16 * MIB));
        let set = |bytes| {
            limits::change(SECOND.0, event_flags(ContainerLimit::MemoryMax, 1), bytes);
            (owners::limit(pod.second.memory().owner()), pod.second.limits.get(ContainerLimit::MemoryMax))
        };
        assert_eq!(set(8 * MIB), (None, None), "less than it holds");
        assert_eq!(set(LIMIT), (Some(LIMIT), Some(LIMIT)));
        assert_eq!(set(12 * MIB), (Some(LIMIT), Some(LIMIT)), "less than it holds");
        assert_eq!(set(NO_LIMIT), (None, None));
        drop(leader);
        pod.check_neighbour(frames_before);
    });
}

/// A process from outside gets into a container that is full, without a limit of its own being touched.
///
/// # Panics
///
/// When it does not.
pub fn there_is_room_to_look_into_a_full_container(trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let pod = Pod::new(LIMIT);
        let frames_before = owners::frames(Owner::SANDBOX);
        let leader = pod.run(sleep());
        let charged = pod.second.charge();
        let visitor = make_leader(&pod.second, &pod.root, 0);
        drop(charged);
        visitor.thread.sched.allow_reserve();
        feed_process(SECOND, visitor.process.pid, sleep());
        visitor.start();
        run_all();
        let mut steps = alloc::vec![text(SCRATCH, b"/tmp/full\0"), call(CREAT, &[SCRATCH, 0o644])];
        steps.extend((0..500).map(|_| call(WRITE, &[0, SCRATCH, 0x1_0000])));
        turn(&leader.process, steps);
        assert!(used(&pod.second) > LIMIT - MIB, "it is not full");
        let charged = pod.second.charge();
        assert_eq!(frames::available(), 0, "frames of a full container");
        drop(charged);
        turn(&visitor.process, take(MIB));
        assert_eq!(kills(&pod.second), 0, "processes of the full container that were killed");
        assert!(used(&pod.second) > LIMIT, "the reserve was not used");
        assert!(visitor.aspace().is_some_and(|aspace| aspace.sizes().1 > MIB), "it has no memory");
        signal::kill_process(&leader.process, SIGKILL);
        run_on();
        drop((leader, visitor));
        pod.check_neighbour(frames_before);
        assert!(account::check(0).is_ok());
    });
}

/// Files can be removed while kernel memory is full of what they are not to blame for, be their names in the cache or not.
///
/// # Panics
///
/// When they cannot.
pub fn files_are_removed_while_kernel_memory_is_full(trace: Option<fn(&str)>) {
    const FILES: usize = 3000;
    let name = |at: usize| text(SCRATCH, alloc::format!("/tmp/{at:0100}\0").as_bytes());
    run_checked(trace, || {
        let pod = Pod::new(LIMIT);
        let frames_before = owners::frames(Owner::SANDBOX);
        let leader = pod.run(sleep());
        let made = (0..FILES).flat_map(|at| [name(at), call(CREAT, &[SCRATCH, 0o644]), call(CLOSE, &[0])]);
        assert!(turn(&leader.process, made).iter().all(|result| *result == 0), "files are not made");
        crate::fs::dentry::shrink();
        let charged = pod.second.charge();
        let mut hoard = Vec::new();
        while account::check(1).is_ok() {
            hoard.push(alloc::vec![0_u8; 4096]);
        }
        drop(charged);
        let removed = (0..FILES).flat_map(|at| [name(at), call(UNLINK, &[SCRATCH])]);
        let results = turn(&leader.process, removed);
        let refused = results.iter().filter(|result| **result != 0).count();
        assert_eq!((results.len(), refused), (FILES, 0), "files that are not removed");
        // Names that are only looked for take no more than their share.
        let looked_for = (0..FILES).flat_map(|at| [name(at), call(ACCESS, &[SCRATCH, 0])]);
        turn(&leader.process, looked_for);
        let kernel = owners::kernel(pod.second.memory().owner()) as u64;
        assert!(kernel <= LIMIT / 4 + 12 * MIB, "{kernel} bytes of kernel memory");
        drop((leader, hoard));
        pod.check_neighbour(frames_before);
    });
}

/// A process that finds no memory to wait for a pipe with still hears that nobody will write any more.
///
/// # Panics
///
/// When it does not.
pub fn a_reader_without_memory_reads_to_the_end(trace: Option<fn(&str)>) {
    let (reader, close) = (2, |fd| call(CLOSE, &[fd]));
    run_checked(trace, || {
        let pod = Pod::new(LIMIT);
        let frames_before = owners::frames(Owner::SANDBOX);
        feed_process(SECOND, reader, core::iter::once(close(1)).chain(sleep()));
        let leader = pod.run([call(PIPE2, &[SCRATCH, 0]), call(FORK, &[])].into_iter().chain(sleep()));
        let child = pod.second.tasks().into_iter().find(|task| task.process.pid == reader);
        let child = child.expect("the reader").process.clone();
        let charged = pod.second.charge();
        let mut hoard = Vec::new();
        while account::check(1).is_ok() {
            hoard.push(alloc::vec![0_u8; 4096]);
        }
        drop(charged);
        assert!(turn(&child, [call(READ, &[0, SCRATCH, 1])]).is_empty(), "it reads before there is anything");
        assert_eq!(turn(&leader.process, [close(1)]), [0]);
        let has_read = || results(SECOND, reader).first().copied();
        // It looks now and then; each look at the host's clock takes a moment.
        for _ in (0..100_000).take_while(|_| has_read().is_none()) {
            time::hold();
            time::release();
            timer::run_expired();
            run_all();
        }
        assert_eq!(has_read(), Some(0), "what it has read");
        drop((leader, child, hoard));
        pod.check_neighbour(frames_before);
    });
}
