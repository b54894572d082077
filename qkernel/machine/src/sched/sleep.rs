//! Sleep: the current task gives its CPU away until something is ready, a signal comes or the time is up.

use core::sync::atomic::Ordering;

use super::cpu::current;
use super::queue::QueueClass;
use super::schedule::schedule;
use super::task::{RUNNABLE, RUNNING, Runnable, SLEEPING, SLEEPING_UNINTERRUPTIBLE};
use super::{state, timer};
use crate::errno::{Errno, Result};
use crate::{lock_order, time};

/// Whether signals end a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    Interruptible,
    Uninterruptible,
}

/// Sleeps until `ready` yields, a signal comes (interruptible sleeps), or `deadline_ns` passes (`None`).
///
/// The caller has registered with whatever wakes it.
#[cfg_attr(feature = "checks", track_caller)]
pub fn sleep_until<R>(
    kind: Sleep,
    deadline_ns: Option<u64>,
    mut ready: impl FnMut() -> Option<R>,
) -> Result<Option<R>> {
    lock_order::may_sleep();
    let task = current();
    let state = if kind == Sleep::Interruptible { SLEEPING } else { SLEEPING_UNINTERRUPTIBLE };
    let mut told = None;
    let result = loop {
        // `ready` may sleep itself, on a mutex, after the task was woken and queued: out of the queue first, or the task
        // would stand in it while it runs. The outer sleep then finds itself running, and asks `ready` once more.
        settle(&task);
        let wakes = task.sched().wakes.load(Ordering::SeqCst);
        task.sched().state.store(state, Ordering::SeqCst);
        if let Some(value) = ready() {
            break Ok(Some(value));
        }
        if kind == Sleep::Interruptible && is_interrupted(&task) {
            break Err(Errno::RESTART);
        }
        if deadline_ns.is_some_and(|deadline| time::monotonic_ns() >= deadline) {
            break Ok(None);
        }
        // For each sleep anew: it may have fired on a CPU whose counter is ahead of that of the CPU where this goes on, and
        // where the time has not come yet.
        let alarm = deadline_ns.map(|deadline| timer::wake_at(deadline, &task));
        if let Some(deadline) = deadline_ns.filter(|_| told.is_none() && kind == Sleep::Interruptible) {
            task.begin_timed_wait(deadline);
            told = Some(deadline);
        }
        // `ready` may have let others go on, and been settled for that. Who tried to wake the task since then found it running, and
        // counted first; who tries from now on finds it asleep.
        if task.sched().state.load(Ordering::SeqCst) == RUNNING {
            task.sched().state.store(state, Ordering::SeqCst);
            if task.sched().wakes.load(Ordering::SeqCst) != wakes {
                continue;
            }
        }
        schedule(QueueClass::Kernel);
        drop(alarm);
    };
    if told.is_some() {
        task.end_timed_wait();
    }
    task.sched().waiting.ended(deadline_ns.is_some() && matches!(result, Ok(None)));
    // Awake for whatever reason: if a wake-up came meanwhile the task sits in the queue, and must not run twice.
    settle(&task);
    result
}

/// Whether the current task is to look at its signals, and there is cause. A call for attention that came late, when the
/// task had seen to its cause already, is forgotten: it must not end the next sleep.
pub fn is_interrupted(task: &Runnable) -> bool {
    let sched = task.sched();
    if !sched.wants_attention() {
        return false;
    }
    // In this order: a cause that comes after the look calls again.
    sched.clear_attention();
    let has_cause = task.has_cause();
    if has_cause {
        sched.attention.store(true, Ordering::SeqCst);
    }
    has_cause
}

/// Turns "about to sleep" back into running.
pub(super) fn settle(task: &Runnable) {
    let state = &task.sched().state;
    for from in [SLEEPING, SLEEPING_UNINTERRUPTIBLE] {
        if state.compare_exchange(from, RUNNING, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            return;
        }
    }
    if state.load(Ordering::SeqCst) == RUNNABLE {
        let taken = state::lock().take_back(task);
        drop(taken);
    }
}
