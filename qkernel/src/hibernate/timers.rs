//! Deadlines of programs that wake a sandbox which hibernates: what [`deadlines`](super::deadlines) has to know of them.
//!
//! They are looked at once, when the sandbox falls asleep: while it sleeps no program runs that could set another. An idle CPU
//! then waits until the first one is due, in the call in which it waits for the host anyway.

use alloc::sync::Arc;
use core::any::Any;
use core::cell::Cell;
use core::sync::atomic::Ordering;

use abi::report::{DueTimer, Report, TimerKind, WakeEvent};
use machine::host;
use machine::outside;
use machine::sched::set_times;
use machine::sched::timer::{self, Interest, Standing};
use machine::sched::{self, pause};
use machine::time;

use super::HIBERNATION;
use super::deadlines::{Deadline, Rules, Waiter};
use crate::task::core::Task;

const NEVER: u64 = u64::MAX;

/// From now on deadlines wake the sandbox by these rules. Called once, at boot.
pub fn set_rules(rules: Rules) {
    if rules.is_on() {
        set_times::keep();
    }
    HIBERNATION.deadlines.lock().set_rules(rules);
}

/// The sandbox is about to hibernate. Nothing runs.
pub(super) fn sleep() {
    let rules = HIBERNATION.deadlines.lock().rules();
    if !rules.is_on() {
        return;
    }
    HIBERNATION.deadlines.lock().begin_sleep(time::monotonic_ns(), outside::count());
    let next_ns = Cell::new(NEVER);
    let short_until_ns = time::monotonic_ns().saturating_add(rules.ahead_ns);
    let interest = |due_ns: u64, set_ns: u64| match set_ns {
        // No wake is for it, and none that does not count is due so late.
        _ if due_ns > next_ns.get().max(short_until_ns) => Interest::NoMore,
        0 => Interest::No,
        _ => Interest::Yes,
    };
    // One container's deadlines hide no other's. Nothing runs, and whoever set one paid for it.
    timer::standing(
        || true,
        interest,
        |standing| {
            if let Some(deadline) = deadline_of(&standing) {
                let mut deadlines = HIBERNATION.deadlines.lock();
                deadlines.stands(deadline);
                next_ns.set(deadlines.next_ns());
            }
        },
    );
}

/// When an idle CPU has to call [`look`].
pub(super) fn look_at_ns() -> u64 {
    let sleeps = pause::is_paused() && HIBERNATION.machine.lock().is_woken_by_events();
    if !sleeps {
        return NEVER;
    }
    let mut deadlines = HIBERNATION.deadlines.lock();
    if pause::has_resting() {
        deadlines.has_unfinished_work();
    }
    deadlines.next_ns()
}

/// Wakes the sandbox if a deadline is due. For the idle loop.
pub fn look() {
    if look_at_ns() > time::monotonic_ns() {
        return;
    }
    let now_ns = time::monotonic_ns();
    let wake = HIBERNATION.deadlines.lock().take_due(now_ns, outside::count());
    let Some(wake) = wake else { return };
    let Waiter { pid, name, kind, .. } = wake.deadline.waiter;
    let late_us = now_ns.saturating_sub(wake.deadline.due_ns) / 1000;
    let ahead_us = wake.deadline.ahead_ns() / 1000;
    let timer = DueTimer { ahead_us, late_us, pid, kind: kind as u32, name };
    host::report(&Report::Timer { timer });
    super::wake_event(WakeEvent::Timer);
}

/// Whether the sandbox is awake for a deadline, for which alone it need not stay awake.
pub(super) fn have_woken_it() -> bool {
    HIBERNATION.deadlines.lock().is_awake_for_one()
}

/// Whether the sandbox may be said to be idle. Where a deadline has woken it no processor time that was used tells so: it is soon
/// after, and a host that is busy may not have run the programs yet.
pub(super) fn let_it_sleep() -> bool {
    let may_sleep = !have_woken_it() || sched::is_at_rest();
    if may_sleep {
        HIBERNATION.deadlines.lock().note_idle(time::monotonic_ns());
    }
    may_sleep
}

/// Whether programs have begun something for that deadline which they have not done with.
pub(super) fn are_at_work() -> bool {
    if !have_woken_it() {
        return false;
    }
    let is_new = Cell::new(false);
    let interest = |_, set_ns| match set_ns {
        _ if is_new.get() => Interest::NoMore,
        0 => Interest::No,
        _ => Interest::Yes,
    };
    let were_all_seen = timer::standing(sched::is_at_rest, interest, |standing| {
        let deadline = deadline_of(&standing);
        if deadline.is_some_and(|deadline| HIBERNATION.deadlines.lock().is_of_new_work(&deadline)) {
            is_new.set(true);
        }
    });
    // What runs is at work.
    is_new.get() || !were_all_seen
}

/// Returns the deadline of a timer, with its waiter; `None`: the program is stopped or paused, and would not run.
fn deadline_of(standing: &Standing) -> Option<Deadline> {
    let Standing { due_ns, set_ns, waiter, .. } = standing;
    let unknown = Waiter { container: 0, family: 0, pid: 0, name: [0; 16], kind: waiter.kind };
    let task: Option<Arc<dyn Any + Send + Sync>> = waiter.task.clone().map(|task| task as _);
    let waiter = match task.and_then(|task| task.downcast::<Task>().ok()) {
        Some(task) => waiter_of(&task, waiter.kind)?,
        None => unknown,
    };
    Some(Deadline { waiter, due_ns: *due_ns, set_ns: *set_ns })
}

fn waiter_of(task: &Task, kind: TimerKind) -> Option<Waiter> {
    let process = &task.process;
    if process.container.rests(process) || process.stopped.load(Ordering::SeqCst) {
        return None;
    }
    let is_first = task.tid() == process.pid;
    let family = if is_first { process.parent.load(Ordering::Relaxed) } else { process.pid };
    let name = *task.comm.lock();
    Some(Waiter { container: process.container.id.0, family, pid: process.pid, name, kind })
}
