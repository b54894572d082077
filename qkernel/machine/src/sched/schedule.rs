//! The decision which task a CPU runs next.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::cpu::{current, this_cpu};
use super::queue::QueueClass;
use super::state;
use super::switch::switch_to;
use super::task::RUNNING;
use crate::{arch, host, lock_order, time};

/// Switches to the first task in the queue. The current one goes on later if it is runnable, in this class of the queue, or once it is
/// woken.
#[cfg_attr(feature = "checks", track_caller)]
pub(super) fn schedule(class: QueueClass) {
    switch(class, false);
}

/// Switches to this CPU's idle task; the current one goes on later.
#[cfg_attr(feature = "checks", track_caller)]
pub(super) fn schedule_idle() {
    switch(QueueClass::Kernel, true);
}

#[cfg_attr(feature = "checks", track_caller)]
fn switch(class: QueueClass, is_idle: bool) {
    lock_order::may_sleep();
    let me = current();
    let cpu = arch::cpu_index();
    let next = {
        let (mut scheduler, now_ns) = state::lock_to_change();
        scheduler.leave(cpu, &me, class, now_ns);
        scheduler.pick(cpu, &me, is_idle, now_ns)
    };
    let next = match next {
        Some((next, slice_ns)) => {
            next.sched().slice_end_ns.store(time::monotonic_ns() + slice_ns, Ordering::Relaxed);
            next
        }
        None => match &*this_cpu().idle_task.lock() {
            Some(idle) => idle.clone(),
            None => host::die("no idle task"),
        },
    };
    if !next.sched().is_idle() {
        next.sched().state.store(RUNNING, Ordering::SeqCst);
    }
    if Arc::ptr_eq(&next, &me) {
        return;
    }
    switch_to(me, next);
}
