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

/// Keeps a nice value; `refusal` when the caller may not lower it so far.
fn set_nice(cx: &Ctx<'_>, task: &Subject, nice: i32, refusal: Errno) -> Result<()> {
    let floor = 20 - i32::try_from(task.process.limits.lock().soft(RLIMIT_NICE).min(40)).unwrap_or(40);
    let lowers = nice < task.policy.nice.load(Ordering::Relaxed) && nice < floor;
    if lowers && !cx.task.creds.get().has(CAP_SYS_NICE) {
        return Err(refusal);
    }
    task.policy.nice.store(nice, Ordering::Relaxed);
    Ok(())
}

const SCHED_OTHER: u32 = 0;
const SCHED_FIFO: u32 = 1;
const SCHED_RR: u32 = 2;
const SCHED_BATCH: u32 = 3;
const SCHED_IDLE: u32 = 5;
const SCHED_RESET_ON_FORK: u32 = 0x4000_0000;
const RT_PRIORITY_MAX: u32 = 99;

fn is_real_time(policy: u32) -> bool {
    matches!(policy, SCHED_FIFO | SCHED_RR)
}

/// Whether a policy and a priority go together.
fn check_policy(policy: u32, priority: u32) -> Result<()> {
    let fits = match policy {
        SCHED_FIFO | SCHED_RR => (1..=RT_PRIORITY_MAX).contains(&priority),
        SCHED_OTHER | SCHED_BATCH | SCHED_IDLE => priority == 0,
        _ => false,
    };
    if fits { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Keeps a policy for a task.
fn set_policy(cx: &Ctx<'_>, task: &Subject, policy: u32, priority: u32) -> Result<()> {
    let (flag, policy) = (policy & SCHED_RESET_ON_FORK, policy & !SCHED_RESET_ON_FORK);
    check_policy(policy, priority)?;
    check_owner(cx, task)?;
    let limit = task.process.limits.lock().soft(RLIMIT_RTPRIO);
    let raises = is_real_time(policy) && u64::from(priority) > limit;
    if raises && !cx.task.creds.get().has(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    task.policy.policy.store(policy | flag, Ordering::Relaxed);
    task.policy.rt_priority.store(priority, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_time_policies_have_a_priority() {
        assert_eq!(check_policy(SCHED_OTHER, 0), Ok(()));
        assert_eq!(check_policy(SCHED_OTHER, 1), Err(Errno::EINVAL));
        assert_eq!(check_policy(SCHED_RR, 99), Ok(()));
        assert_eq!(check_policy(SCHED_FIFO, 0), Err(Errno::EINVAL));
        assert_eq!(check_policy(4, 0), Err(Errno::EINVAL));
    }
}
