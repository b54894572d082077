//! The parts of the processors that owners get: shares against others, and a limit of their own.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::budget::{Quota, Throttling};
use super::cpu::current;
use super::cpu_set::CpuSet;
use super::notify::{kick_others, notify, notify_all};
use super::queue::{Grant, QueueClass};
use super::schedule::schedule;
use super::state;
use super::task::{Runnable, SchedState};
use super::timer::{self, Alarm};
use crate::owner::Owner;
use crate::{platform, time};

/// There is an owner beside the sandbox itself, with the usual shares and no limit.
pub(crate) fn begin_owner(owner: Owner) {
    state::lock().queue.begin_owner(owner, time::monotonic_ns());
}

/// There is not any more. Its tasks have ended.
pub(crate) fn end_owner(owner: Owner) {
    state::lock().queue.end_owner(owner, time::monotonic_ns());
}

/// Sets an owner's shares against others that are busy (`cpu.shares` of version 1 of Linux's control groups).
pub fn set_shares(owner: Owner, shares: u64) {
    state::lock().queue.set_shares(owner, shares);
}

/// Limits an owner that is not the sandbox itself, or does not any more; `tasks`: all that it has.
pub fn set_quota(owner: Owner, quota: Option<Quota>, tasks: &[Runnable]) {
    {
        let mut scheduler = state::lock();
        if !scheduler.queue.set_quota(owner, quota, time::monotonic_ns()) {
            return;
        }
        scheduler.show();
    }
    // What they were told before does not hold any more. A task that asks meanwhile has the answer before the queue changed,
    // and is in this list, or after.
    for task in tasks {
        task.sched().granted_until_ns.store(0, Ordering::SeqCst);
    }
    kick_others();
}

/// Returns how an owner's limit has held it up so far.
pub fn throttling(owner: Owner) -> Throttling {
    let now_ns = time::monotonic_ns();
    state::lock().queue.throttling(owner, now_ns)
}

/// The current task is about to run user code, until `deadline`, and was granted time until `granted`. Once that is over it
/// waits for its owner's budget. Result: when to interrupt it. It may also be called to its signals, or to rest.
pub(super) fn within_budget(task: &SchedState, granted: u64, deadline: u64) -> u64 {
    if time::monotonic_ns() < granted {
        return deadline.min(granted);
    }
    let mut deadline = deadline;
    loop {
        match ask(task) {
            Grant::Unlimited => return deadline,
            Grant::Until(granted) => return deadline.min(granted),
            Grant::Wait(alarm_ns) => {
                if let Some(alarm_ns) = alarm_ns {
                    timer::fire_at(alarm_ns, Arc::new(Refill(task.owner())));
                }
            }
        }
        if task.wants_attention() || state::is_paused() {
            return deadline;
        }
        schedule(QueueClass::Boundary);
        deadline = timer::next_deadline().min(task.slice_end_ns.load(Ordering::Relaxed));
    }
}

fn ask(task: &SchedState) -> Grant {
    let (grant, waiting) = {
        let mut scheduler = state::lock();
        let before = scheduler.queue.waiting();
        let grant = scheduler.queue.ask(task.owner(), time::monotonic_ns());
        scheduler.show();
        let until_ns = match grant {
            Grant::Unlimited => u64::MAX,
            Grant::Until(until_ns) => until_ns,
            Grant::Wait(_) => 0,
        };
        // Under the lock, so that a change of the limit comes before or after.
        task.granted_until_ns.store(until_ns, Ordering::SeqCst);
        (grant, scheduler.queue.waiting().saturating_sub(before))
    };
    call_for(waiting);
    grant
}

/// So many tasks more wait for a CPU.
fn call_for(tasks: usize) {
    if tasks != 0 && state::has_bound() {
        // Who they are is not looked at, but some may be bound.
        return notify_all();
    }
    let preferred = current().sched().last();
    (0..tasks.min(platform::cpus())).for_each(|_| notify(preferred, CpuSet::ALL));
}

/// An owner's budget comes back.
struct Refill(Owner);

impl Alarm for Refill {
    fn fire(&self, _due_ns: u64) -> Option<u64> {
        let (again_ns, waiting) = {
            let (mut scheduler, now_ns) = state::lock_to_change();
            let before = scheduler.queue.waiting();
            let again_ns = scheduler.queue.refill(self.0, now_ns);
            scheduler.show();
            (again_ns, scheduler.queue.waiting().saturating_sub(before))
        };
        call_for(waiting);
        again_ns
    }
}
