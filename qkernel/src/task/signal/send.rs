//! Sending: what becomes of a signal, and which thread takes it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::limits::RLIMIT_SIGPENDING;
use crate::signals::{SIGCHLD, SIGCONT, SIGKILL, STOPPING, Source, UNBLOCKABLE, bit, is_valid};
use crate::task::container::Container;
use crate::task::core::Task;
use crate::task::pid_space::PidSpace;
use crate::task::process::{Process, call_attention};
use crate::task::signal::action::{Action, DefaultAction, SA_KNOWN, SA_NOCLDSTOP, SIG_DFL, SIG_IGN};
use crate::task::signal::continued::{self, Resumed};
use crate::task::signal::info::SigInfo;
use crate::task::signal::queue::PendingSignals;
use crate::task::tree::Report;

use machine::sched::wait::WaitQueue;

const CLD_STOPPED: i32 = 5;
const CLD_CONTINUED: i32 = 6;

/// The outcome of sending a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is pending, or has had its effect.
    Done,
    /// Nobody wants it.
    Ignored,
    /// `RLIMIT_SIGPENDING` is reached.
    Full,
}

/// Work that is due once the signal lock is free.
#[derive(Default)]
struct After {
    attention: Option<Arc<Task>>,
    kill: bool,
    resumed: Option<Resumed>,
}

/// Sends a signal to a process.
pub fn send_to_process(process: &Arc<Process>, signal: u32, source: Source) {
    send(process, None, SigInfo { signal, source });
}

/// Sends a signal to the current task's process because of what this task did, such as using processor time: it takes the
/// signal unless it blocks it, since a profiler's handler looks at the thread that it runs in.
pub fn send_to_own_process(task: &Arc<Task>, signal: u32, source: Source) {
    deliver(&task.process, To::Process { rather: Some(task) }, SigInfo { signal, source });
}

/// Sends a signal to one task.
pub fn send_to_task(task: &Arc<Task>, signal: u32, source: Source) {
    send(&task.process, Some(task), SigInfo { signal, source });
}

/// Sends a signal to all processes of a group.
pub fn send_to_group(pids: &PidSpace, group: u32, signal: u32, source: Source) {
    let members = pids.tree.lock().group_members(group);
    for process in members {
        send_to_process(&process, signal, source);
    }
}

/// Sends a signal to the console's foreground group, or to the first process while there is none.
pub fn send_to_foreground(container: &Container, signal: u32) {
    let Some(process) = container.first_process() else { return };
    let terminal = {
        let tree = container.pids.tree.lock();
        let session = tree.nodes.get(&process.pid).map_or(process.pid, |node| node.session);
        tree.terminals.get(&session).map(|terminal| terminal.terminal.clone())
    };
    match terminal.map_or(0, |terminal| terminal.foreground()) {
        0 => send_to_process(&process, signal, Source::Kernel),
        group => send_to_group(&container.pids, group, signal, Source::Kernel),
    }
}

/// Ends a process as by an uncatchable signal.
pub fn kill_process(process: &Arc<Process>, signal: u32) {
    crate::task::group_exit::begin_group_exit(process, signal.cast_signed());
}

/// Sends a signal to a process, or to one of its tasks alone.
pub fn send(process: &Arc<Process>, task: Option<&Arc<Task>>, info: SigInfo) -> Sent {
    deliver(process, task.map_or(To::Process { rather: None }, To::Task), info)
}

/// Whom a signal is for.
#[derive(Clone, Copy)]
enum To<'a> {
    Task(&'a Arc<Task>),
    /// Whatever thread takes it; `rather`: this one, if it can.
    Process {
        rather: Option<&'a Arc<Task>>,
    },
}

fn deliver(process: &Arc<Process>, to: To<'_>, info: SigInfo) -> Sent {
    if !is_valid(info.signal) {
        return Sent::Ignored;
    }
    let mut after = After::default();
    let sent = queue(process, to, info, &mut after);
    if let Some(resumed) = after.resumed {
        resume(process, resumed);
    }
    if after.kill {
        kill_process(process, info.signal);
    }
    if let Some(task) = after.attention {
        task.call_attention();
    }
    if sent == Sent::Done {
        process.signal_watch.wake_all();
    }
    sent
}

fn queue(process: &Arc<Process>, to: To<'_>, info: SigInfo, after: &mut After) -> Sent {
    let task = match to {
        To::Task(task) => Some(task),
        To::Process { .. } => None,
    };
    let signal = info.signal;
    let limit = process.limits.lock().soft(RLIMIT_SIGPENDING);
    let sighand = process.sighand.get();
    let mut shared = process.pending.lock();
    let tasks: Vec<Arc<Task>> = process.tasks.lock().clone();
    let Some(judge) = task.or_else(|| leader(process, &tasks)) else { return Sent::Ignored };
    let is_protected = process.is_protected.load(Ordering::Relaxed);
    if is_protected && bit(signal) & UNBLOCKABLE != 0 {
        return Sent::Ignored;
    }
    if signal == SIGKILL {
        after.kill = true;
        return Sent::Done;
    }
    if bit(signal) & STOPPING != 0 {
        forget_signals(process, &mut shared, bit(SIGCONT));
    } else if signal == SIGCONT {
        forget_signals(process, &mut shared, STOPPING);
        after.resumed = continued::end(process);
    }
    let action = sighand.get(signal);
    let unwanted = action.ignores(signal) || (is_protected && action.handler == SIG_DFL);
    if unwanted && judge.signals.lock().blocked & bit(signal) == 0 {
        return Sent::Ignored;
    }
    let queued = match task {
        Some(task) => task.signals.lock().pending.push(info, limit),
        None => shared.push(info, limit),
    };
    if !queued {
        return Sent::Full;
    }
    let Some(taker) = choose(process, to, &tasks, signal) else { return Sent::Done };
    let open = taker.signals.lock().blocked & bit(signal) == 0;
    // A signal that ends the process does so at once, as no thread would make anything else of it. In a pause that waits.
    after.kill = open
        && !is_protected
        && !process.container.rests(process)
        && action.handler == SIG_DFL
        && DefaultAction::of(signal) == DefaultAction::Terminate;
    after.attention = Some(taker);
    Sent::Done
}

fn leader<'a>(process: &Process, tasks: &'a [Arc<Task>]) -> Option<&'a Arc<Task>> {
    tasks.iter().find(|task| task.tid() == process.pid).or_else(|| tasks.first())
}

/// The thread that will take a signal; `None` while all block it or the process is stopped.
fn choose(process: &Process, to: To<'_>, tasks: &[Arc<Task>], signal: u32) -> Option<Arc<Task>> {
    let stopped = continued::is_stopped(process);
    let wants = |task: &&Arc<Task>| {
        let signals = task.signals.lock();
        !stopped && !task.is_dying() && (!signals.blocked | signals.waiting_for) & bit(signal) != 0
    };
    match to {
        To::Task(task) => return Some(task).filter(wants).cloned(),
        To::Process { rather: Some(task) } if wants(&task) => return Some(Arc::clone(task)),
        To::Process { .. } => {}
    }
    let first = leader(process, tasks).into_iter();
    let mut order = first.chain(tasks).filter(wants);
    let busy = order.clone().next();
    // One that has nothing else to look at, if there is one.
    order.find(|task| !task.wants_attention()).or(busy).cloned()
}

/// Forgets pending signals of a process, for all threads. The caller holds the signal lock.
pub fn forget_signals(process: &Process, shared: &mut PendingSignals, set: u64) {
    shared.flush(set);
    for task in process.tasks.lock().iter() {
        task.signals.lock().pending.flush(set);
    }
}

/// The signals pending for the task, blocked or not.
pub fn pending_set(task: &Task) -> u64 {
    let shared = task.process.pending.lock();
    shared.set | task.signals.lock().pending.set
}

/// Woken whenever a signal becomes pending for any thread of the task's process.
pub fn signal_queue(task: &Task) -> &WaitQueue {
    &task.process.signal_watch
}

/// Whether the task would not notice this signal (job control asks before it sends `SIGTTIN` and `SIGTTOU`).
pub fn is_blocked_or_ignored(task: &Task, signal: u32) -> bool {
    task.signals.lock().blocked & bit(signal) != 0 || task.process.sighand.get().get(signal).ignores(signal)
}

/// Makes other threads look at shared signals of `set` that `except` will not take after all.
pub(super) fn retarget(process: &Process, except: &Task, set: u64) {
    let mut takers: Vec<Arc<Task>> = Vec::new();
    {
        let shared = process.pending.lock();
        let set = shared.set & set;
        if set == 0 {
            return;
        }
        let tasks = process.tasks.lock();
        let others = tasks.iter().filter(|task| !core::ptr::eq(Arc::as_ptr(task), except));
        takers.extend(others.filter(|task| task.signals.lock().blocked & set != set).cloned());
    }
    for task in takers {
        task.call_attention();
    }
}

/// A task ends: others take the process's signals it was meant to.
pub fn leave_task(task: &Task) {
    let blocked = task.signals.lock().blocked & !UNBLOCKABLE;
    retarget(&task.process, task, !blocked);
}

/// `sigaction(2)` of the process: replaces a disposition. A signal that is ignored from now on is not pending any more.
pub fn set_action(process: &Process, signal: u32, mut action: Action) -> Action {
    action.mask &= !UNBLOCKABLE;
    action.flags &= SA_KNOWN;
    let sighand = process.sighand.get();
    let mut shared = process.pending.lock();
    let old = sighand.set(signal, action);
    if action.ignores(signal) {
        forget_signals(process, &mut shared, bit(signal));
    }
    old
}

/// Lets the threads of a continued process go, and tells its parent.
fn resume(process: &Arc<Process>, resumed: Resumed) {
    call_attention(process);
    if resumed.tell {
        tell_parent(process, Report::Continued);
    }
}

/// Leaves a report of a stop or continue for `wait(2)`, and sends `SIGCHLD`.
pub(super) fn tell_parent(process: &Arc<Process>, report: Report) {
    let (parent, uid) = {
        let mut tree = process.container.pids.tree.lock();
        let Some(node) = tree.nodes.get_mut(&process.pid).filter(|node| node.exit_status.is_none()) else {
            return;
        };
        node.report = Some(report);
        let (parent, uid) = (node.parent(), node.uid);
        let Some(parent) = tree.nodes.get(&parent) else { return };
        (parent.process.clone(), uid)
    };
    let action = parent.sighand.get().get(SIGCHLD);
    if action.handler != SIG_IGN && !action.has(SA_NOCLDSTOP) {
        let (code, status) = match report {
            Report::Stopped(signal) => (CLD_STOPPED, signal.cast_signed()),
            Report::Continued => (CLD_CONTINUED, SIGCONT.cast_signed()),
        };
        let (user_ticks, system_ticks) = process.cpu_ticks();
        let source = Source::Child { code, pid: process.pid, uid, status, user_ticks, system_ticks };
        send_to_process(&parent, SIGCHLD, source);
    }
    parent.child_wait.wake_all();
}
