//! A sequence runs to its end, and nothing is left of it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::mount;
use crate::fs::sigio;
use crate::harness::host;
use crate::harness::world::first_container;
use crate::net::passing;
use crate::signals::SIGKILL;
use crate::syscall;
use crate::task::container;
use crate::task::container::{ContainerId, FIRST_PID};
use crate::task::process::Process;
use crate::task::{exit, signal};
use machine::mm::{AddressSpace, frames, owners};
use machine::sched;
use machine::thread;

/// How often what is left is told to end before it counts as stuck.
const ROUNDS_MAX: u32 = 64;

/// Runs `sequence`, ends the processes that are left, and checks that nothing else is.
pub(super) fn run_checked(trace: Option<fn(&str)>, sequence: impl FnOnce()) {
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
    assert_eq!(machine::objects::count(), 0, "rows of handles are left");
    assert_eq!(passing::census(), (0, 0), "sockets are left in messages");
}

/// Runs tasks until each has ended or sleeps.
pub(super) fn run_all() {
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
