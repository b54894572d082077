//! Scheduling. Tasks run on the CPUs that they may run on; priorities are kept and reported, and all take turns alike.

pub(super) mod affinity;
pub(super) mod ioprio;
pub(super) mod priority;
pub(super) mod sched_attr;
pub(super) mod scheduler;

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::creds::{CAP_SYS_NICE, Creds};
use crate::limits::{RLIMIT_NICE, RLIMIT_RTPRIO};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::policy::SchedPolicy;
use crate::task::process::{Ended, Process};

use machine::errno::{Errno, Result};
use machine::sched;

const NICE_MIN: i32 = -20;
const NICE_MAX: i32 = 19;

/// `sched_yield(2)`.
pub(super) fn sched_yield(_cx: &Ctx<'_>) -> SyscallResult {
    sched::yield_now();
    Ok(0)
}

/// A thread as the scheduling calls see it, living or ended.
struct Subject {
    /// While it lives.
    task: Option<Arc<Task>>,
    process: Arc<Process>,
    policy: Arc<SchedPolicy>,
    creds: Arc<Creds>,
}

impl Subject {
    fn of(task: &Arc<Task>) -> Self {
        let (process, policy) = (task.process.clone(), task.policy.clone());
        Self { task: Some(task.clone()), process, policy, creds: task.creds.get() }
    }

    /// The thread of this id. The first of a process may be asked and changed until the process is waited for.
    fn find(cx: &Ctx<'_>, tid: u32) -> Option<Self> {
        if let Some(task) = cx.pids().find_task(tid) {
            return Some(Self::of(&task));
        }
        let process = cx.pids().find_process(tid)?;
        let Ended { policy, creds } = process.ended.lock().clone()?;
        Some(Self { task: None, process, policy, creds })
    }
}

/// The thread of an id; 0 is the caller.
fn target(cx: &Ctx<'_>, tid: i32) -> Result<Subject> {
    match u32::try_from(tid).map_err(|_| Errno::EINVAL)? {
        0 => Ok(Subject::of(cx.task)),
        tid => Subject::find(cx, tid).ok_or(Errno::ESRCH),
    }
}

/// Whether the caller may change how another thread is scheduled.
fn check_owner(cx: &Ctx<'_>, task: &Subject) -> Result<()> {
    let (me, them) = (cx.task.creds.get(), &task.creds);
    let owns = me.euid == them.uid || me.euid == them.euid;
    if owns || me.has(CAP_SYS_NICE) { Ok(()) } else { Err(Errno::EPERM) }
}

/// Keeps a nice value, which may be lower than it was as far as the limit goes.
fn set_nice(cx: &Ctx<'_>, task: &Subject, nice: i32) -> Result<()> {
    let lowers = nice < task.policy.nice.load(Ordering::Relaxed);
    if lowers && !may_have_nice(task, nice) && !cx.task.creds.get().has(CAP_SYS_NICE) {
        return Err(Errno::EACCES);
    }
    task.policy.nice.store(nice, Ordering::Relaxed);
    Ok(())
}

const SCHED_OTHER: u32 = 0;
const SCHED_FIFO: u32 = 1;
const SCHED_RR: u32 = 2;
const SCHED_BATCH: u32 = 3;
const SCHED_IDLE: u32 = 5;
const SCHED_DEADLINE: u32 = 6;
const SCHED_RESET_ON_FORK: u32 = 0x4000_0000;
const RT_PRIORITY_MAX: u32 = 99;

fn is_real_time(policy: u32) -> bool {
    matches!(policy, SCHED_FIFO | SCHED_RR)
}

/// Whether threads of the policy share the processor by their nice values, which are set with it.
fn is_fair(policy: u32) -> bool {
    matches!(policy, SCHED_OTHER | SCHED_BATCH)
}

/// Runtime, deadline and period of `SCHED_DEADLINE`, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Deadline {
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl Deadline {
    /// Whether Linux would look for room for it.
    fn is_valid(self) -> bool {
        const RUNTIME_MIN: u64 = 1 << 10;
        const PERIODS: core::ops::RangeInclusive<u64> = 100_000..=(1 << 22) * 1000;
        let period = if self.period == 0 { self.deadline } else { self.period };
        let is_ordered = self.runtime <= self.deadline && self.deadline <= period;
        self.deadline != 0 && self.runtime >= RUNTIME_MIN && is_ordered && PERIODS.contains(&period)
    }
}

/// How a thread is to be scheduled.
struct Wanted {
    /// Without the flag; none: the thread keeps the policy that it has.
    policy: Option<u32>,
    /// Whether its children start with the default policy; none: as it has been.
    resets: Option<bool>,
    /// None: the thread keeps the one that it has.
    nice: Option<i32>,
    priority: u32,
    deadline: Deadline,
    /// Policy, nice value and priority stay (`SCHED_FLAG_KEEP_PARAMS`), though all is checked.
    keeps_params: bool,
    /// Bounds of the processor's speed are wanted.
    clamps: bool,
}

/// Whether a policy and a priority go together.
fn check_policy(policy: u32, priority: u32, deadline: Deadline) -> Result<()> {
    let fits = match policy {
        SCHED_FIFO | SCHED_RR => (1..=RT_PRIORITY_MAX).contains(&priority),
        SCHED_OTHER | SCHED_BATCH | SCHED_IDLE => priority == 0,
        SCHED_DEADLINE => priority == 0 && deadline.is_valid(),
        _ => false,
    };
    if fits { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Whether the limit on nice values lets a thread have this one.
fn may_have_nice(task: &Subject, nice: i32) -> bool {
    u64::try_from(20 - nice).unwrap_or(u64::MAX) <= task.process.limits.lock().soft(RLIMIT_NICE)
}

/// Whether a caller without the capability may have a thread scheduled so.
fn may_set(cx: &Ctx<'_>, task: &Subject, policy: u32, resets: bool, wanted: &Wanted) -> bool {
    let held = task.policy.policy.load(Ordering::Relaxed);
    let (had_reset, held) = (held & SCHED_RESET_ON_FORK != 0, held & !SCHED_RESET_ON_FORK);
    let nice = task.policy.nice.load(Ordering::Relaxed);
    let lowers = wanted.nice.is_some_and(|wanted| wanted < nice && !may_have_nice(task, wanted));
    let limit = task.process.limits.lock().soft(RLIMIT_RTPRIO);
    let raises = wanted.priority > task.policy.rt_priority.load(Ordering::Relaxed)
        && u64::from(wanted.priority) > limit;
    let is_refused = match policy {
        SCHED_OTHER | SCHED_BATCH => lowers,
        SCHED_FIFO | SCHED_RR => raises || policy != held && limit == 0,
        SCHED_DEADLINE => true,
        _ => false,
    };
    // Who idles has less than any nice value gives.
    let wakes = held == SCHED_IDLE && policy != SCHED_IDLE && !may_have_nice(task, nice);
    let (me, them) = (cx.task.creds.get(), &task.creds);
    let owns = me.euid == them.uid || me.euid == them.euid;
    !is_refused && !wakes && owns && (resets || !had_reset)
}

/// Keeps for a thread how it is to be scheduled.
fn set_policy(cx: &Ctx<'_>, task: &Subject, wanted: &Wanted) -> Result<()> {
    let held = task.policy.policy.load(Ordering::Relaxed);
    let resets = wanted.resets.unwrap_or(held & SCHED_RESET_ON_FORK != 0);
    let policy = wanted.policy.unwrap_or(held & !SCHED_RESET_ON_FORK);
    check_policy(policy, wanted.priority, wanted.deadline)?;
    if !may_set(cx, task, policy, resets, wanted) && !cx.task.creds.get().has(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    if wanted.clamps {
        // As on a Linux that was built without it.
        return Err(Errno::EOPNOTSUPP);
    }
    if policy == SCHED_DEADLINE {
        // There never is room for one.
        return Err(Errno::EBUSY);
    }
    let flag = if resets { SCHED_RESET_ON_FORK } else { 0 };
    if wanted.keeps_params {
        task.policy.policy.store(held & !SCHED_RESET_ON_FORK | flag, Ordering::Relaxed);
        return Ok(());
    }
    if let Some(nice) = wanted.nice.filter(|_| is_fair(policy)) {
        task.policy.nice.store(nice, Ordering::Relaxed);
    }
    task.policy.policy.store(policy | flag, Ordering::Relaxed);
    task.policy.rt_priority.store(wanted.priority, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_time_policies_have_a_priority() {
        let check = |policy, priority| check_policy(policy, priority, Deadline::default());
        assert_eq!(check(SCHED_OTHER, 0), Ok(()));
        assert_eq!(check(SCHED_OTHER, 1), Err(Errno::EINVAL));
        assert_eq!(check(SCHED_RR, 99), Ok(()));
        assert_eq!(check(SCHED_FIFO, 0), Err(Errno::EINVAL));
        assert_eq!(check(4, 0), Err(Errno::EINVAL));
        assert_eq!(check(SCHED_DEADLINE, 0), Err(Errno::EINVAL));
    }

    #[test]
    fn deadlines_are_in_order_and_within_bounds() {
        let is_valid = |runtime, deadline, period| Deadline { runtime, deadline, period }.is_valid();
        assert!(is_valid(10_000_000, 30_000_000, 30_000_000) && is_valid(10_000_000, 30_000_000, 0));
        assert!(
            !is_valid(10_000_000, 5_000_000, 30_000_000) && !is_valid(10_000_000, 30_000_000, 20_000_000)
        );
        assert!(
            !is_valid(1023, 200_000, 0) && !is_valid(2000, 3000, 4000) && !is_valid(2000, 1 << 63, 1 << 63)
        );
    }
}
