//! Job control: groups stop and continue, parents hear of it, orphans are woken.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::signals::{SIGCHLD, SIGCONT, SIGHUP, SIGSTOP, Source};
use crate::task::core::Task;
use crate::task::pid_space::PidSpace;
use crate::task::process::Process;
use crate::task::process::call_attention;
use crate::task::signal::action::{SA_NOCLDWAIT, SIG_IGN};
use crate::task::signal::continued::is_stopped;
use crate::task::signal::send::{send_to_group, send_to_process, tell_parent};
use crate::task::tree::{Report, Tree};

/// A task has taken a stop signal: remembers it until [`begin`].
pub fn request(process: &Process) {
    process.stop.lock().requested = true;
}

/// Stops the process for `signal`, unless it was continued since the signal was taken.
pub fn begin(process: &Arc<Process>, signal: u32) {
    if signal != SIGSTOP && is_in_orphaned_group(process) {
        return;
    }
    {
        let _signal_lock = process.pending.lock();
        let mut stop = process.stop.lock();
        if !stop.requested || is_stopped(process) {
            return;
        }
        stop.signal = signal;
        stop.generation += 1;
        stop.at_rest = 0;
        stop.reported = false;
        process.stopped.store(true, Ordering::SeqCst);
    }
    call_attention(process);
}

fn is_in_orphaned_group(process: &Process) -> bool {
    let tree = process.container.pids.tree.lock();
    tree.nodes.get(&process.pid).is_none_or(|node| tree.is_orphaned(node.group, 0))
}

/// The current task rests while its process is stopped. The last one to come to rest tells the parent.
pub fn rest(task: &Arc<Task>) {
    let process = &task.process;
    let over = || !is_stopped(process) || process.is_exiting() || task.is_dying();
    let mut counted = None;
    while !over() {
        let (generation, report) = {
            let tasks = process.tasks.lock();
            let mut stop = process.stop.lock();
            if counted != Some(stop.generation) {
                counted = Some(stop.generation);
                stop.at_rest += 1;
            }
            let complete = stop.at_rest >= tasks.len() && !stop.reported && is_stopped(process);
            stop.reported |= complete;
            (stop.generation, complete.then_some(Report::Stopped(stop.signal)))
        };
        if let Some(report) = report {
            tell_parent(process, report);
        }
        let is_news = || {
            let tasks = process.tasks.lock();
            let stop = process.stop.lock();
            let due = stop.at_rest >= tasks.len() && !stop.reported;
            stop.generation != generation || due || over()
        };
        process.container.resting(|| process.stop_wait.wait_uninterruptible(is_news));
    }
    let mut stop = process.stop.lock();
    if counted == Some(stop.generation) {
        stop.at_rest = stop.at_rest.saturating_sub(1);
    }
}

/// Whether a process wants no zombies (`SIGCHLD` ignored, or `SA_NOCLDWAIT`).
pub fn discards_children(process: &Arc<Process>) -> bool {
    let action = process.sighand.get().get(SIGCHLD);
    action.handler == SIG_IGN || action.has(SA_NOCLDWAIT)
}

/// Wakes a stopped group that nobody could continue any more.
fn wake_orphans(pids: &PidSpace, group: u32) {
    send_to_group(pids, group, SIGHUP, Source::Kernel);
    send_to_group(pids, group, SIGCONT, Source::Kernel);
}

fn has_stopped(tree: &Tree, group: u32) -> bool {
    tree.nodes.values().any(|node| node.group == group && is_stopped(&node.process))
}

/// A process is about to end, its children still its own: if it led a session, the terminal and its foreground group
/// hear of it; if its group has nobody else to look after it, the stopped in it are woken.
pub fn leave_session(process: &Arc<Process>) {
    let pid = process.pid;
    let (terminal, orphaned) = {
        let mut tree = process.container.pids.tree.lock();
        let Some(node) = tree.nodes.get(&pid) else { return };
        let (group, session, parent) = (node.group, node.session, node.parent());
        let terminal = if session == pid { tree.terminals.remove(&session) } else { None };
        let looked_after =
            tree.nodes.get(&parent).is_some_and(|parent| parent.group != group && parent.session == session);
        let orphaned = looked_after && tree.is_orphaned(group, pid) && has_stopped(&tree, group);
        (terminal, orphaned.then_some(group))
    };
    if let Some(terminal) = terminal {
        let foreground = terminal.terminal.foreground();
        if foreground != 0 {
            wake_orphans(&process.container.pids, foreground);
        }
        terminal.terminal.set_foreground(0);
        terminal.terminal.left();
    }
    if let Some(group) = orphaned {
        wake_orphans(&process.container.pids, group);
    }
}

/// The parent of `child` has ended and `child` has a new one: `PR_SET_PDEATHSIG`, and stopped groups that are orphaned by it.
pub fn parent_died(child: &Arc<Process>, parent: &Arc<Process>) {
    let tasks = child.tasks.lock().clone();
    for task in tasks {
        let signal = task.death_signal.load(Ordering::Relaxed);
        if signal != 0 {
            let uid = task.creds.get().uid;
            send_to_process(child, signal, Source::User { pid: parent.pid, uid });
        }
    }
    let orphaned = {
        let tree = child.container.pids.tree.lock();
        let (Some(node), Some(old)) = (tree.nodes.get(&child.pid), tree.nodes.get(&parent.pid)) else {
            return;
        };
        let group = node.group;
        let cut = old.session == node.session && old.group != group;
        (cut && tree.is_orphaned(group, 0) && has_stopped(&tree, group)).then_some(group)
    };
    if let Some(group) = orphaned {
        wake_orphans(&child.container.pids, group);
    }
}
