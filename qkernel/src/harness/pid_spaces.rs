//! Containers that share their process ids, beside one that does not.

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use abi::limits::ContainerLimit;

use crate::cgroupfs;
use crate::container::create::signal;
use crate::fs::file::{File, OpenFlags};
use crate::fs::inode::{Inode, NewNode};
use crate::harness::containers::{make, make_joined, take_ended};
use crate::harness::host::feed_process;
use crate::harness::pod::*;
use crate::harness::rounds::run_all;
use crate::harness::script::*;
use crate::harness::steps::SCRATCH;
use crate::signals::{SIGKILL, SIGSTOP, SIGTERM};
use crate::task::container;
use crate::task::container::{Container, FIRST_PID};
use crate::task::groups::Groups;
use crate::task::pidfd::PidFile;
use crate::task::process::Process;
use machine::errno::Errno;
use machine::mm::UserAddr;

const SIGKILLED: i32 = 9;
const ENOENT: i64 = -2;
const ESRCH: i64 = -3;
const ECHILD: i64 = -10;
const EAGAIN: i64 = -11;

pub const SCENARIOS: &[fn()] = &[
    members_see_each_other,
    process_1_reaps_the_orphans_of_all,
    one_member_ends_alone,
    all_end_with_process_1,
    what_is_of_a_container_is_its_own,
    strangers_reach_nobody,
    peers_in_another_space_have_no_id,
    nobody_keeps_process_1_from_reaping,
    nobody_joins_what_has_ended,
    nothing_is_left_of_a_fork_loop,
    control_groups_are_each_containers_own,
];

/// Processes of all members are found by their ids, in calls and in `/proc`; roots and names stay apart.
fn members_see_each_other() {
    let [pause, app, other] = pod();
    let pids = [&pause, &app, &other].map(|member| member.process.pid);
    assert_eq!(pids[0], FIRST_PID);
    assert!(pids[1] > FIRST_PID && pids[2] > pids[1], "the ids {pids:?}");
    assert!(!app.process.is_protected.load(Ordering::Relaxed), "it is no init");
    app.container.set_host_name(b"app".to_vec());
    assert_ne!(pause.container.host_name(), b"app");
    let [one, two, three] = pids.map(u64::from);
    let got = turn(
        &app.process,
        [
            text(SCRATCH, b"/only-here\0/proc/1\0/proc/3/root/d\0/proc/3/root/only-here\0"),
            call(GETPID, &[]),
            call(GETPPID, &[]),
            call(KILL, &[one, 0]),
            call(KILL, &[three, 0]),
            call(GETSID, &[three]),
            call(GETPGID, &[0]),
            call(SETPGID, &[three, 0]),
            call(MKDIR, &[SCRATCH, 0o755]),
            call(ACCESS, &[SCRATCH + 11, 0]),
            call(ACCESS, &[SCRATCH + 19, 0]),
            call(ACCESS, &[SCRATCH + 34, 0]),
        ],
    );
    let two_is = i64::from(pids[1]);
    assert_eq!(got, [two_is, 0, 0, 0, i64::from(pids[2]), two_is, ESRCH, 0, 0, 0, ENOENT]);
    assert!(has(&app.root, b"only-here") && !has(&pause.root, b"only-here"), "the roots");
    assert_eq!(turn(&pause.process, [call(KILL, &[two, 0]), call(GETPGID, &[two])]), [0, two_is]);
    // It ends as any process does by a signal that it does not handle, and the pod goes on.
    assert_eq!(turn(&pause.process, [call(KILL, &[two, SIGTERM.into()])]), [0]);
    assert_eq!(take_ended(), [(APP, SIGTERM.cast_signed())]);
    assert!(!pause.process.is_exiting() && !other.process.is_exiting());
}

/// Orphans of a member go to process 1, also when all of their container ends.
fn process_1_reaps_the_orphans_of_all() {
    let [pause, app, _other] = pod();
    let child = app.fork();
    let grandchild = child.pid + 1;
    feed_process(APP, grandchild, sleep());
    assert_eq!(turn(&child, [call(FORK, &[])]), [grandchild.into()]);
    let grandchild = app.container.pids.find_process(grandchild).expect("the grandchild");
    let wait = || call(WAIT4, &[ANY, 0, WNOHANG, 0]);
    assert_eq!(turn(&pause.process, [wait()]), [ECHILD]);
    turn(&child, [call(EXIT_GROUP, &[0])]);
    assert_eq!(turn(&grandchild, [call(GETPPID, &[])]), [1]);
    assert_eq!(turn(&pause.process, [wait()]), [0], "the orphan lives");
    turn(&grandchild, [call(EXIT_GROUP, &[0])]);
    assert_eq!(turn(&pause.process, [wait(), wait()]), [grandchild.pid.into(), ECHILD]);
    // The child is its parent's until that ends, which nobody inside waits for.
    turn(&app.process, [call(EXIT_GROUP, &[3])]);
    assert_eq!(take_ended(), [(APP, 3 << 8)]);
    assert_eq!(turn(&pause.process, [wait(), wait()]), [child.pid.into(), ECHILD]);
    assert!(app.container.processes().is_empty(), "processes of a container that has ended");
}

/// With the first process of a member its container ends, and nobody else.
fn one_member_ends_alone() {
    let [pause, app, other] = pod();
    let [child, stays] = [app.fork(), other.fork()];
    turn(&app.process, [call(EXIT_GROUP, &[7])]);
    assert_eq!(take_ended(), [(APP, 7 << 8)]);
    assert!(container::find(APP).is_none() && child.is_exiting());
    for process in [&pause.process, &other.process, &stays] {
        assert!(!process.is_exiting(), "process {} ends", process.pid);
    }
    assert_eq!(turn(&stays, [call(GETPPID, &[])]), [other.process.pid.into()]);
}

/// With process 1 all members end, each with its own report.
fn all_end_with_process_1() {
    let [pause, app, other] = pod();
    let children = [pause.fork(), app.fork(), other.fork()];
    turn(&pause.process, [call(EXIT_GROUP, &[5])]);
    let mut ended = take_ended();
    ended.sort_unstable();
    assert_eq!(ended, [(POD, 5 << 8), (APP, SIGKILLED), (OTHER, SIGKILLED)]);
    assert!(children.iter().all(|child| child.tasks.lock().is_empty()), "a child is left");
    assert!(pause.container.pids.processes().is_empty(), "the tree is kept");
}

/// Signals to all of a container, its limit of tasks, and what is listed of it mean its own processes.
fn what_is_of_a_container_is_its_own() {
    let [pause, app, other] = pod();
    let child = app.fork();
    let pids = |container: &Container| -> Vec<u32> {
        container.processes().iter().map(|process| process.pid).collect()
    };
    assert_eq!(pids(&app.container), [app.process.pid, child.pid]);
    assert_eq!(pids(&pause.container), [FIRST_PID]);
    assert_eq!((app.container.task_count(), app.container.tasks().len()), (2, 2));
    app.container.limits.set(ContainerLimit::TasksMax, 2);
    assert_eq!(turn(&app.process, [call(FORK, &[])]), [EAGAIN]);
    other.container.limits.set(ContainerLimit::TasksMax, 2);
    other.fork();
    signal(&app.container, SIGTERM.into(), 2);
    run_all();
    assert_eq!(take_ended(), [(APP, SIGTERM.cast_signed())]);
    assert_eq!((pids(&other.container).len(), pids(&pause.container).len()), (2, 1));
    // Process 1 has not waited for it.
    assert_eq!(pids(&app.container), [child.pid]);
}

/// A container with ids of its own reaches no process of the pod by any call that takes an id, nor by a descriptor.
fn strangers_reach_nobody() {
    let [pause, app, other] = pod();
    let stranger = Member::new(make(STRANGER));
    assert_eq!(stranger.process.pid, FIRST_PID);
    let target = u64::from(app.process.pid);
    let calls_by_id: [(u64, &[u64]); 23] = [
        (KILL, &[target, SIGKILL as u64]),
        (KILL, &[EVERYBODY, SIGKILL as u64]),
        (KILL, &[target.wrapping_neg(), SIGKILL as u64]),
        (200, &[target, SIGKILL as u64]),
        (234, &[target, target, SIGKILL as u64]),
        (129, &[target, SIGKILL as u64, SCRATCH]),
        (297, &[target, target, SIGKILL as u64, SCRATCH]),
        (434, &[target, 0]),
        (SETPGID, &[target, 0]),
        (GETPGID, &[target]),
        (GETSID, &[target]),
        (274, &[target, SCRATCH, SCRATCH + 8]),
        (140, &[0, target]),
        (141, &[0, target, 5]),
        (141, &[1, target, 5]),
        (142, &[target, SCRATCH]),
        (145, &[target]),
        (148, &[target, SCRATCH]),
        (203, &[target, 8, SCRATCH]),
        (204, &[target, 8, SCRATCH]),
        (251, &[1, target, 0]),
        (315, &[target, SCRATCH, 48, 0]),
        (302, &[target, 7, 0, SCRATCH]),
    ];
    // The information of a signal that a program may send.
    let info = [SIGKILL.to_le_bytes(), [0; 4], (-1_i32).to_le_bytes()].concat();
    for (number, args) in calls_by_id {
        let got = turn(&stranger.process, [text(SCRATCH, &info), call(number, args)]);
        assert_eq!(got, [ESRCH], "call {number} {args:?}");
    }
    let steps = [text(SCRATCH, b"/proc/2\0"), call(ACCESS, &[SCRATCH, 0]), call(WAIT4, &[target, 0, 0, 0])];
    assert_eq!(turn(&stranger.process, steps), [ENOENT, ECHILD]);
    let files = stranger.process.any_task().and_then(|task| task.files()).expect("its descriptors");
    let file = PidFile::open(&app.process, OpenFlags::empty()).expect("room");
    files.replace(9, file, false, 16).expect("room");
    drop(files);
    assert_eq!(turn(&stranger.process, [call(424, &[9, SIGKILL.into(), 0, 0])]), [ESRCH]);
    for process in [&pause.process, &app.process, &other.process] {
        assert!(!process.is_exiting(), "process {} ends", process.pid);
    }
}

/// The id of the peer that a listener is shown: `client` connects to its abstract socket.
fn peer_pid(listener: &Member, client: &Member) -> u32 {
    const SOCKET: u64 = 41;
    const CONNECT: u64 = 42;
    const ACCEPT: u64 = 43;
    const BIND: u64 = 49;
    const LISTEN: u64 = 50;
    const GETSOCKOPT: u64 = 55;
    const SO_PEERCRED: u64 = 17;
    const SHOWN: u64 = SCRATCH + 64;
    let name = text(SCRATCH, &[1, 0, 0, listener.container.id.0.to_le_bytes()[0]]);
    let steps = [name, call(SOCKET, &[1, 1, 0]), call(BIND, &[0, SCRATCH, 4]), call(LISTEN, &[0, 1])];
    assert_eq!(turn(&listener.process, steps), [0, 0, 0]);
    let name = text(SCRATCH, &[1, 0, 0, listener.container.id.0.to_le_bytes()[0]]);
    let steps = [name, call(SOCKET, &[1, 1, 0]), call(CONNECT, &[0, SCRATCH, 4])];
    assert_eq!(turn(&client.process, steps), [0, 0]);
    let room = text(SHOWN + 16, &12_u32.to_le_bytes());
    let ask = call(GETSOCKOPT, &[1, 1, SO_PEERCRED, SHOWN, SHOWN + 16]);
    assert_eq!(turn(&listener.process, [room, call(ACCEPT, &[0, 0, 0]), ask]), [1, 0]);
    let aspace = listener.process.any_task().and_then(|task| task.aspace()).expect("its memory");
    let mut pid = [0xff; 4];
    aspace.copy_in(UserAddr::new(SHOWN), &mut pid).expect("what is shown");
    u32::from_ne_bytes(pid)
}

/// The peer of a socket has an id for those alone who could use it.
fn peers_in_another_space_have_no_id() {
    let [pause, app, other] = pod();
    let stranger = Member::new(make(STRANGER));
    assert_eq!(peer_pid(&stranger, &app), 0);
    assert_eq!(peer_pid(&pause, &other), other.process.pid);
}

/// A member can neither end nor stop process 1, nor become its heir's.
fn nobody_keeps_process_1_from_reaping() {
    const CLONE: u64 = 56;
    const CLONE_PARENT: u64 = 0x8000;
    const PRCTL: u64 = 157;
    const PR_SET_CHILD_SUBREAPER: u64 = 36;
    let [pause, app, other] = pod();
    let hostile = [SIGKILL, SIGSTOP, SIGTERM].map(|signal| call(KILL, &[1, signal.into()]));
    assert_eq!(turn(&app.process, hostile), [0, 0, 0]);
    assert!(!pause.process.is_exiting() && !pause.process.stopped.load(Ordering::SeqCst));
    // A sister of a process from outside has process 1 as its parent, which is told by SIGCHLD whatever the sister says.
    let sister = app.container.pids.tree.lock().new_id() + 1;
    feed_process(APP, sister, [call(EXIT_GROUP, &[0])]);
    assert_eq!(turn(&app.process, [call(CLONE, &[CLONE_PARENT, 0, 0, 0, 0])]), [sister.into()]);
    // One that reaps for its own reaps for nobody else.
    turn(&app.process, [call(PRCTL, &[PR_SET_CHILD_SUBREAPER, 1])]);
    let orphan = other.fork();
    turn(&other.process, [call(EXIT_GROUP, &[0])]);
    let wait = || call(WAIT4, &[ANY, 0, WNOHANG, 0]);
    let mut reaped = turn(&pause.process, [wait(), wait(), wait()]);
    reaped.sort_unstable();
    assert_eq!(reaped, [ECHILD, sister.into(), orphan.pid.into()]);
}

/// A space whose process 1 has not begun or has ended takes nobody in, and one of which nobody is left is gone.
fn nobody_joins_what_has_ended() {
    take_ended();
    let empty = make(POD);
    assert!(Container::joining(APP, POD).is_err() && Container::joining(APP, STRANGER).is_err());
    let pause = Member::new(empty);
    let late = make_joined(APP, POD);
    turn(&pause.process, [call(EXIT_GROUP, &[0])]);
    assert_eq!(take_ended(), [(POD, 0)]);
    assert!(!late.pids.tree.lock().admits(&late), "a closed space");
    late.give_up();
    assert!(Container::joining(APP, POD).is_err());
}

/// Processes that fork without end are all gone with their container, and with process 1.
fn nothing_is_left_of_a_fork_loop() {
    for ends in [APP, POD] {
        let [pause, app, other] = pod();
        let forks =
            || core::iter::repeat_with(|| [call(FORK, &[]), call(SCHED_YIELD, &[])]).take(12).flatten();
        (4..60).for_each(|pid| feed_process(APP, pid, forks().chain(sleep())));
        let ends_soon = [call(SCHED_YIELD, &[]), call(SCHED_YIELD, &[]), call(EXIT_GROUP, &[0])];
        if ends == APP {
            turn(&app.process, forks().take(4).chain(ends_soon));
            assert_eq!(take_ended(), [(APP, 0)]);
            assert!(!pause.process.is_exiting() && !other.process.is_exiting());
            assert!(app.container.pids.tree.lock().living(&app.container).next().is_none());
            turn(&pause.process, [call(EXIT_GROUP, &[0])]);
        } else {
            feed_process(APP, app.process.pid, forks().chain(sleep()));
            wake(&app.process);
            turn(&pause.process, ends_soon);
            assert_eq!(take_ended().len(), 3);
        }
        assert_eq!(app.container.task_count(), 0);
        assert!(app.container.pids.processes().is_empty(), "processes are left");
        take_ended();
    }
}

/// Members of a pod have a tree of control groups each, with their own processes alone. Forks stay beside their parents, also those
/// of a process that moved.
fn control_groups_are_each_containers_own() {
    let [pause, app, other] = pod();
    let [_, apps, others] = [&pause, &app, &other].map(|member| cgroupfs::root(&member.container));
    let show = |root: &Arc<dyn Inode>, name: &[u8]| {
        let ops = root.lookup(name).and_then(|node| node.open(OpenFlags::empty())).expect("a file");
        let mut text = [0; 64];
        let len = File::new(ops, OpenFlags::empty(), None).read_at(0, &mut text).expect("a text");
        text[..len].to_vec()
    };
    let pids = |processes: &[&Process]| -> Vec<u8> {
        processes.iter().flat_map(|process| format!("{}\n", process.pid).into_bytes()).collect()
    };
    let child = app.fork();
    assert_eq!(show(&apps, b"cgroup.procs"), pids(&[&app.process, &child]));
    assert_eq!(show(&others, b"cgroup.procs"), pids(&[&other.process]));
    let new = NewNode { mode: 0o755, uid: 0, gid: 0 };
    let below = apps.mkdir(b"below", new).expect("a group");
    assert_eq!(others.lookup(b"below").err(), Some(Errno::ENOENT));
    let groups = &app.container.groups;
    let id = groups.find(groups.root(), b"below").expect("its number");
    let moved = |groups: &Groups, process: &Process| {
        groups.move_to(&process.member, (process.member.group(), id), process.group_ticks())
    };
    assert_eq!(moved(groups, &child), Ok(true));
    // It is no group of another container.
    assert_eq!(moved(&other.container.groups, &other.process), Err(Errno::ENODEV));
    let next = app.container.pids.tree.lock().new_id() + 1;
    feed_process(APP, next, sleep());
    assert_eq!(turn(&child, [call(FORK, &[])]), [next.into()]);
    let grandchild = app.container.pids.find_process(next).expect("the grandchild");
    assert_eq!(show(&below, b"cgroup.procs"), pids(&[&child, &grandchild]));
    assert_eq!(show(&apps, b"cgroup.procs"), pids(&[&app.process]));
    assert_eq!(apps.rmdir(b"below"), Err(Errno::EBUSY));
    turn(&grandchild, [call(EXIT_GROUP, &[0])]);
    turn(&child, [call(EXIT_GROUP, &[0])]);
    assert_eq!(show(&below, b"cgroup.events"), b"populated 0\nfrozen 0\n");
    apps.rmdir(b"below").expect("it is empty");
    assert_eq!(below.mkdir(b"x", new).err(), Some(Errno::ENODEV));
    assert_eq!(groups.facts(groups.root()).expect("the root").tasks, app.container.task_count());
}
