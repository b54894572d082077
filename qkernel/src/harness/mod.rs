//! The kernel without a VMM, for fuzzing and tests: this process plays the host, and a string of bytes plays the
//! programs.
//!
//! The kernel runs as on systrap with one CPU, on a root file system in memory. Where it would run user code it gets
//! the next step of a *sequence* instead ([`steps`]): a system call with arguments of the types that the table names, a
//! write to the program's memory, or a fault. All tasks take their steps from the same sequence, so what runs when is
//! decided by the sequence and by the kernel's own scheduler, and runs again alike. Once the steps are used up every
//! process ends, and nothing may be left of them.

mod census;
mod collector;
pub mod containers;
mod forced;
mod handles;
mod host;
pub mod memory;
mod pauses;
pub mod pid_spaces;
mod pod;
mod revivals;
mod script;
pub mod steps;

use abi::limits::ContainerLimit;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::container::create::become_first;
use crate::creds::Creds;
use crate::fs::file::FileTable;
use crate::fs::mount;
use crate::fs::mount::Mount;
use crate::fs::path::{FsContext, Path};
use crate::fs::sigio;
use crate::limits::Limits;
use crate::net::passing;
use crate::signals::SIGKILL;
use crate::spec::MountSpec;
use crate::syscall;
use crate::task::container;
use crate::task::container::{Container, ContainerId, FIRST_PID};
use crate::task::core::{Task, TaskParts};
use crate::task::process::Process;
use crate::task::signal::action::SigHand;
use crate::task::signal::state::TaskSignals;
use crate::task::tree::Node;
use crate::task::{exit, signal};
use machine::mm::map::{NewMapping, Placement};
use machine::mm::vma::VmaFlags;
use machine::mm::{AddressSpace, Prot, frames, owners};
use machine::platform::UserContext;
use machine::sched;
use machine::sched::Runnable;
use machine::testing::Host;
use machine::thread;

/// Most tasks of a sequence.
const TASKS_MAX: u64 = 24;
/// How often what is left is told to end before it counts as stuck.
const ROUNDS_MAX: u32 = 64;

/// The host's side of a kernel in a test: user code is the steps of the sequence.
pub const HOST: Host =
    Host { run_user: host::run, log: host::log, report: host::report, hibernated: host::hibernated };

/// Starts the kernel, on the thread that has called `machine::testing::boot` with [`HOST`] and the kernel's upcalls.
pub fn start() {
    crate::fs::caller::register(|| crate::task::core::current());
    sched::adopt_idle(&(crate::boot::idle_task().expect("an idle task") as Runnable));
    make_init();
    machine::vdso::prepare();
}

/// The first container, with a first process without tasks, to which those are left whose parents have ended.
fn make_init() {
    let first = Container::new(ContainerId::FIRST).expect("the first container");
    first.limits.set(ContainerLimit::TasksMax, TASKS_MAX);
    let pid = first.pids.tree.lock().new_id();
    assert_eq!(pid, FIRST_PID);
    let process = Process::new(first.clone(), pid, SigHand::new(), Limits::default());
    become_first(&first, &process, false);
    first.pids.tree.lock().nodes.insert(pid, node(process));
}

fn first_container() -> Arc<Container> {
    container::find(ContainerId::FIRST).expect("the first container")
}

fn node(process: Arc<Process>) -> Node {
    let pid = process.pid;
    Node { process, children: Vec::new(), group: pid, session: pid, exit_status: None, report: None, uid: 0 }
}

/// Runs a sequence to its end, and checks that nothing is left of it. With `trace` each call is printed by it.
pub fn run(bytes: &[u8], trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let root = make_root();
        let leader = make_leader(&first_container(), &root, 0);
        host::feed(bytes, leader.process.pid);
        leader.start();
        drop(leader);
        run_all();
    });
}

/// Runs a sequence whose steps are taken by the processes of two containers with a root each, and checks that nothing
/// is left of it.
pub fn run_in_two(bytes: &[u8], trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let second = containers::make(ContainerId(2));
        let leaders =
            [make_leader(&first_container(), &make_root(), 0), make_leader(&second, &make_root(), 0)];
        host::feed(bytes, leaders[0].process.pid);
        leaders.iter().for_each(|leader| leader.start());
        drop((leaders, second));
        run_all();
    });
}

/// Runs a sequence as [`run_in_two`] does, in two containers beside the first that share their process ids.
pub fn run_in_joined(bytes: &[u8], trace: Option<fn(&str)>) {
    run_checked(trace, || {
        let pod = containers::make(ContainerId(2));
        let pause = make_leader(&pod, &make_root(), 0);
        let app = containers::make_joined(ContainerId(3), pod.id);
        let leaders = [pause, make_leader(&app, &make_root(), 0)];
        host::feed(bytes, leaders[0].process.pid);
        leaders.iter().for_each(|leader| leader.start());
        drop((leaders, pod, app));
        run_all();
    });
}

/// Runs all scenarios that are written down.
///
/// # Panics
///
/// When one comes out otherwise.
pub fn run_scenarios(trace: Option<fn(&str)>) {
    let sets = [
        pid_spaces::SCENARIOS,
        pauses::SCENARIOS,
        handles::SCENARIOS,
        forced::SCENARIOS,
        census::SCENARIOS,
        collector::SCENARIOS,
        revivals::SCENARIOS,
    ];
    for scenario in sets.into_iter().flatten() {
        run_checked(trace, scenario);
    }
}

/// Runs `sequence`, ends the processes that are left, and checks that nothing else is.
fn run_checked(trace: Option<fn(&str)>, sequence: impl FnOnce()) {
    let before = frames::in_use();
    let mounts = mount::list();
    host::set_trace(trace);
    syscall::table::set_strace(trace.is_some());
    sequence();
    end_all();
    host::feed(&[], 0);
    for mount in mount::list().iter().rev().filter(|mount| !mounts.iter().any(|old| Arc::ptr_eq(old, mount)))
    {
        let _ = mount.detach(true);
    }
    // Each time the cache forgets the directories in which it knows no names any more.
    for _ in 0..ROUNDS_MAX {
        crate::fs::dentry::shrink();
        if frames::in_use() == before {
            break;
        }
    }
    assert_eq!(container::all().len(), 1, "a container is left");
    let first = first_container();
    let tree = first.pids.tree.lock();
    assert_eq!((tree.nodes.len(), tree.tasks.len()), (1, 0), "processes are left");
    assert!(tree.terminals.is_empty(), "a session's terminal is left");
    drop(tree);
    assert!(AddressSpace::all().is_empty(), "an address space is left");
    assert_eq!(frames::in_use(), before, "frames are left in use");
    owners::check_settled();
    machine::handles::check_settled();
    assert_eq!(machine::handles::in_use(), 0, "handles are left");
    assert_eq!(passing::census(), (0, 0), "sockets are left in messages");
}

/// Runs tasks until each has ended or sleeps.
fn run_all() {
    loop {
        thread::handle_pending();
        if !sched::run_others() && !sigio::delivery::help() {
            return;
        }
    }
}

/// Ends whatever still runs or sleeps.
fn end_all() {
    for _ in 0..ROUNDS_MAX {
        let left = processes_left();
        if left.is_empty() {
            return;
        }
        for process in left {
            let container = &process.container;
            let has_ended = container
                .pids
                .tree
                .lock()
                .nodes
                .get(&process.pid)
                .is_some_and(|node| node.exit_status.is_some());
            if has_ended {
                exit::reap(&container.pids, process.pid);
            } else {
                signal::kill_process(&process, SIGKILL);
            }
        }
        run_all();
    }
    let left: Vec<(ContainerId, u32)> =
        processes_left().iter().map(|process| (process.container.id, process.pid)).collect();
    panic!("processes do not end: {left:?}");
}

/// All processes but the first container's first, which has no tasks.
fn processes_left() -> Vec<Arc<Process>> {
    let is_init = |process: &Process| (process.container.id, process.pid) == (ContainerId::FIRST, FIRST_PID);
    let all = container::all();
    all.iter().flat_map(|container| container.processes()).filter(|process| !is_init(process)).collect()
}

/// A fresh tree: a root in memory, with the kernel's own file systems where they are in a sandbox.
fn make_root() -> Path {
    let spec = |path: &[u8], kind: &[u8]| MountSpec {
        path: path.to_vec(),
        kind: kind.to_vec(),
        source: kind.to_vec(),
        ..MountSpec::default()
    };
    let root_inode =
        crate::filesystems::virtual_fs_with(&spec(b"/", b"tmpfs"), &Container::kernel()).expect("a root");
    let mount = Mount::of(root_inode, b"tmpfs", b"none", mount::Limits::empty());
    // It is not listed, and so goes with the sequence.
    let root = mount.path();
    for (path, kind) in [
        (&b"/proc"[..], &b"proc"[..]),
        (b"/sys", b"sysfs"),
        (b"/dev", b"devtmpfs"),
        (b"/dev/pts", b"devpts"),
        (b"/tmp", b"tmpfs"),
    ] {
        crate::container::setup::attach_own(&root, &mut spec(path, kind)).expect("a mount");
    }
    steps::fill(&root);
    root
}

/// A process that begins the sequence, with its memory as [`steps`] expects it: its container's first one, or else a child
/// of that.
fn make_leader(container: &Arc<Container>, root: &Path, uid: u32) -> Arc<Task> {
    let _charged = container.charge();
    let pid = container.pids.tree.lock().new_id();
    let process = Process::new(container.clone(), pid, SigHand::new(), Limits::default());
    let aspace = AddressSpace::new().expect("an address space");
    aspace.set_bounds(steps::SCRATCH + (16 << 20), 0x7000_0000_0000);
    let scratch = NewMapping {
        placement: Placement::Fixed(steps::SCRATCH),
        len: steps::SCRATCH_BYTES,
        prot: Prot::READ | Prot::WRITE | Prot::EXEC,
        max_prot: Prot::all(),
        flags: VmaFlags::empty(),
        object: None,
        offset: 0,
    };
    aspace.map(scratch).expect("scratch memory");
    steps::write_paths(&aspace);
    let mut context = UserContext::new();
    context.run.regs.rip = steps::SCRATCH;
    context.run.regs.rsp = steps::SCRATCH + steps::SCRATCH_BYTES / 2;
    context.run.regs.rflags = 0x202;
    let parts = TaskParts {
        process: process.clone(),
        aspace: Some(aspace),
        files: Some(FileTable::new()),
        fs: FsContext::new(root.clone(), root.clone(), 0o022),
        creds: Arc::new(Creds::new(uid, uid, Vec::new())),
        signals: TaskSignals::default(),
        context,
        comm: *b"sequence\0\0\0\0\0\0\0\0",
        main: crate::run::run_task,
    };
    let task = Task::new(pid, parts).expect("a task");
    process.tasks.lock().push(task.clone());
    let is_first = container.first_process().is_none();
    if is_first {
        become_first(container, &process, true);
    }
    let mut tree = container.pids.tree.lock();
    if let Some(init) = tree.nodes.get_mut(&FIRST_PID).filter(|_| !is_first) {
        init.children.push(pid);
        process.parent.store(FIRST_PID, Ordering::Relaxed);
    }
    tree.add_task(&task);
    tree.nodes.insert(pid, node(process));
    task
}
