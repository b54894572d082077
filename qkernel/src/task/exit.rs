//! How tasks and processes end, and how parents hear of it.

use crate::task::signal::send::{kill_process, leave_task, send_to_process};
use crate::task::signal::stop::{discards_children, leave_session, parent_died};
use crate::task::used::Used;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::fs::caller::PidOf;
use crate::fs::sigio;
use crate::net::passing;
use crate::signals::SIGKILL;
use crate::task::container::FIRST_PID;
use crate::task::core::Task;
use crate::task::futex;
use crate::task::pid_space::PidSpace;
use crate::task::pidfd;
use crate::task::process::{Ended, Process};
use machine::mm::{AddressSpace, UserAddr, UserMemory};
use machine::sched::work;

/// Ends the current task: gives up what it holds and, if it is the last of its process, ends the process. The caller
/// leaves for the scheduler afterwards.
pub fn exit_task(task: &Arc<Task>, status: i32) {
    task.confinement.end();
    release_user_state(task);
    leave_memory(task);
    // What it does to semaphores is done outside of any lock.
    let undo = task.sem_undo.lock().take();
    drop(undo);
    task.set_files(None);
    sigio::delivery::deliver();
    passing::collect_on_exit();
    leave_task(task);
    let process = &task.process;
    let comm = *task.comm.lock();
    *process.ended_comm.lock() = comm;
    if task.tid() == process.pid {
        let ended = Ended { policy: task.policy.clone(), creds: task.creds.get() };
        *process.ended.lock() = Some(ended);
    }
    let used = Used::by(&task.thread.sched);
    let (last, status) = {
        let mut tasks = process.tasks.lock();
        tasks.retain(|other| !Arc::ptr_eq(other, task));
        *process.ended_used.lock() += used;
        process.container.count_ended(used);
        let leader_status = (task.tid() == process.pid).then_some(status);
        if let Some(status) = leader_status {
            process.leader_status.store(status, Ordering::Relaxed);
        }
        (
            tasks.is_empty(),
            (*process.group_exit.lock()).unwrap_or(process.leader_status.load(Ordering::Relaxed)),
        )
    };
    process.container.pids.tree.lock().remove_task(task);
    process.container.groups.tell();
    futex::owner_ended(&process.container.pids, task.tid());
    process.stop_wait.wake_all();
    pidfd::ended(process);
    if last {
        process.container.ipc().process_ended(PidOf::of(&**task));
        end_process(process, status);
    }
    process.container.task_left();
    process.container.end_if_empty();
}

/// Does what other threads and processes see in user memory: clears the tid, and releases robust futexes.
fn release_user_state(task: &Arc<Task>) {
    let Some(aspace) = task.aspace() else { return };
    let user = UserMemory::new(aspace);
    futex::release_robust_list(task, &user);
    let clear = UserAddr::new(task.clear_child_tid.swap(0, Ordering::Relaxed));
    if !clear.is_null() && user.write(clear, &0u32).is_ok() {
        futex::wake_address(&user, clear, 1);
    }
}

/// Gives up the address space, and lets a `vfork(2)` parent go on.
pub fn leave_memory(task: &Arc<Task>) {
    let aspace = task.replace_aspace(None);
    if let Some(aspace) = &aspace {
        task.process.has_held(aspace.resident_peak());
    }
    // Before its memory goes, which may take a while.
    if let Some(parent) = task.vfork_parent.lock().take() {
        parent.complete();
    }
    aspace.into_iter().for_each(AddressSpace::release);
}

fn end_process(process: &Arc<Process>, status: i32) {
    process.timers.lock().disarm_all();
    // Dropped without the lock: what an open file's end does may sleep.
    let exe = process.exe.lock().take();
    drop(exe);
    end_others(process, status);
    leave_session(process);
    let mut orphans = Vec::new();
    {
        let mut tree = process.container.pids.tree.lock();
        let Some(node) = tree.nodes.get_mut(&process.pid) else { return };
        node.exit_status = Some(status);
        node.report = None;
        let children = core::mem::take(&mut node.children);
        let parent = node.parent();
        let heir = find_heir(&tree, parent);
        for child in children {
            if let Some(node) = tree.nodes.get_mut(&child) {
                node.process.parent.store(heir, Ordering::Relaxed);
                node.process.exit_signal.store(crate::signals::SIGCHLD, Ordering::Relaxed);
                orphans.push((node.process.clone(), node.exit_status.is_some()));
            }
            if let Some(heir) = tree.nodes.get_mut(&heir) {
                heir.children.push(child);
            }
        }
    }
    for (orphan, ended) in orphans {
        work::count(8);
        parent_died(&orphan, process);
        if ended {
            tell_parent(&orphan);
        }
    }
    pidfd::ended(process);
    match process.on_end.get() {
        None => tell_parent(process),
        Some(tell) => {
            // Nobody inside waits for it.
            reap(&process.container.pids, process.pid);
            tell(status);
        }
    }
}

/// With the first process of a container the others of the container go, and with process 1, as in a pid namespace of
/// Linux, those of all containers that share its ids.
fn end_others(process: &Arc<Process>, status: i32) {
    let container = &process.container;
    let mut others = Vec::new();
    if container.is_first(process) {
        container.first_ended(status);
        others = container.processes();
    }
    if process.pid == FIRST_PID {
        container.pids.close();
        others = container.pids.processes();
    }
    for other in others.iter().filter(|other| !Arc::ptr_eq(other, process)) {
        work::count(8);
        kill_process(other, SIGKILL);
    }
}

/// The nearest subreaper above, or process 1.
fn find_heir(tree: &crate::task::tree::Tree, mut at: u32) -> u32 {
    while let Some(node) = tree.nodes.get(&at) {
        if node.process.is_subreaper.load(Ordering::Relaxed) && node.exit_status.is_none() {
            return at;
        }
        at = node.parent();
    }
    FIRST_PID
}

/// Tells the parent that a process has ended; forgets it at once when the parent doesn't want to know.
fn tell_parent(process: &Arc<Process>) {
    let (parent, status, uid) = {
        let tree = process.container.pids.tree.lock();
        let Some(node) = tree.nodes.get(&process.pid) else { return };
        let Some(parent) = tree.nodes.get(&node.parent()) else { return };
        (parent.process.clone(), node.exit_status.unwrap_or(0), node.uid)
    };
    // A parent that runs another program by now, perhaps as another user, did not ask for this signal.
    let same_program =
        process.parents_programs.load(Ordering::Relaxed) == parent.programs.load(Ordering::Relaxed);
    let exit_signal =
        if same_program { process.exit_signal.load(Ordering::Relaxed) } else { crate::signals::SIGCHLD };
    if exit_signal == crate::signals::SIGCHLD && discards_children(&parent) {
        reap(&process.container.pids, process.pid);
    }
    if exit_signal != 0 {
        let (code, value) = cld_code(status);
        let (user_ticks, system_ticks) = process.cpu_ticks();
        let source = crate::signals::Source::Child {
            code,
            pid: process.pid,
            uid,
            status: value,
            user_ticks,
            system_ticks,
        };
        send_to_process(&parent, exit_signal, source);
    }
    parent.child_wait.wake_all();
}

/// `si_code` and `si_status` for a wait status.
pub fn cld_code(status: i32) -> (i32, i32) {
    const CLD_EXITED: i32 = 1;
    const CLD_KILLED: i32 = 2;
    const CLD_DUMPED: i32 = 3;
    match (status & 0x7f, status & 0x80) {
        (0, _) => (CLD_EXITED, (status >> 8) & 0xff),
        (signal, 0) => (CLD_KILLED, signal),
        (signal, _) => (CLD_DUMPED, signal),
    }
}

/// Removes an ended process from the tree; what it has used goes to its parent's children.
pub fn reap(pids: &PidSpace, pid: u32) {
    let mut tree = pids.tree.lock();
    let Some(node) = tree.nodes.remove(&pid) else { return };
    if let Some(parent) = tree.nodes.get_mut(&node.parent()) {
        parent.children.retain(|child| *child != pid);
        let used = node.process.used_with_children();
        *parent.process.children_used.lock() += used;
    }
    drop(tree);
    pidfd::ended(&node.process);
}
