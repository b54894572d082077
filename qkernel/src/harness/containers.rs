//! A second container beside the first one.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::harness::host::feed_process;
use crate::harness::rounds::{run_all, run_checked};
use crate::harness::script::*;
use crate::harness::steps::SCRATCH;
use crate::harness::world::{TASKS_MAX, first_container, make_leader, make_root};
use crate::signals::SIGKILL;
use crate::task::container;
use crate::task::container::{Container, ContainerId, FIRST_PID};
use abi::limits::ContainerLimit;
use machine::sync::{Rank, SpinLock};

const SECOND: ContainerId = ContainerId(2);
/// The containers that have ended, with their wait statuses.
static ENDED: SpinLock<Vec<(ContainerId, i32)>> = SpinLock::new(Rank::Leaf, Vec::new());

/// A container whose end does not end the sandbox.
pub(super) fn make(id: ContainerId) -> Arc<Container> {
    prepare(Container::new(id).expect("a container"))
}

/// A container whose end does not end the sandbox, and which shares the process ids of another one.
pub(super) fn make_joined(id: ContainerId, other: ContainerId) -> Arc<Container> {
    prepare(Container::joining(id, other).expect("a container with a process"))
}

/// The containers that have ended since the last question, with their wait statuses.
pub(super) fn take_ended() -> Vec<(ContainerId, i32)> {
    core::mem::take(&mut *ENDED.lock())
}

fn prepare(made: Arc<Container>) -> Arc<Container> {
    made.limits.set(ContainerLimit::TasksMax, TASKS_MAX);
    made.watch_end(Box::new(|id, status| ENDED.lock().push((id, status))));
    made
}

/// Two containers have an own root, names, process ids and an own end: the second one kills all it can see, changes its
/// names and its root, and ends with a process left, while a process of the first sleeps.
///
/// # Panics
///
/// When they are not apart.
pub fn second_ends_alone(trace: Option<fn(&str)>) {
    run_checked(trace, || {
        take_ended();
        let first = first_container();
        first.set_host_name(b"first".to_vec());
        let (root, second_root) = (make_root(), make_root());
        let sleeper = make_leader(&first, &root, 0);
        let second = make(SECOND);
        let leader = make_leader(&second, &second_root, 0);
        assert_eq!(leader.process.pid, FIRST_PID);
        let sleepers_pid = sleeper.process.pid;
        feed_process(ContainerId::FIRST, sleepers_pid, [call(PAUSE, &[])]);
        for pid in [2, 3] {
            feed_process(SECOND, pid, [call(PAUSE, &[])]);
        }
        let steps = [
            text(SCRATCH, b"/only-here\0second"),
            call(MKDIR, &[SCRATCH, 0o755]),
            call(SETHOSTNAME, &[SCRATCH + 11, 6]),
            call(FORK, &[]),
            call(KILL, &[EVERYBODY, SIGKILL.into()]),
            call(KILL, &[sleepers_pid.into(), SIGKILL.into()]),
            call(FORK, &[]),
            call(EXIT_GROUP, &[5]),
        ];
        feed_process(SECOND, FIRST_PID, steps);
        for task in [&sleeper, &leader] {
            task.start();
        }
        drop((sleeper, leader));
        run_all();
        assert_eq!(take_ended(), [(SECOND, 5 << 8)], "the second container's end");
        assert!(container::find(SECOND).is_none(), "the second container is listed");
        assert!(second.processes().is_empty(), "the second container has processes");
        let process = first.pids.find_process(sleepers_pid).expect("the first container's process");
        assert!(!process.is_exiting(), "the first container's process ends");
        let names = [&first, &second].map(|container| container.host_name());
        assert_eq!(names, [&b"first"[..], b"second"], "the host names");
        assert!(has(&second_root, b"only-here") && !has(&root, b"only-here"), "the roots");
    });
}

/// A call for attention that comes when its cause is seen to already ends no sleep: a thread that waits for a signal
/// waits on.
///
/// # Panics
///
/// When it does not.
pub fn late_call_wakes_nobody(trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let root = make_root();
        let waiter = make_leader(&first_container(), &root, 0);
        let steps = [
            text(SCRATCH, b"\0\0\0\0\0\0\0\0/awake\0"),
            call(SIGTIMEDWAIT, &[SCRATCH, 0, 0, 8]),
            call(MKDIR, &[SCRATCH + 8, 0o755]),
        ];
        feed_process(ContainerId::FIRST, waiter.process.pid, steps);
        waiter.start();
        run_all();
        for _ in 0..3 {
            waiter.call_attention();
            run_all();
        }
        assert!(!has(&root, b"awake"), "a wait ended by no signal");
    });
}
