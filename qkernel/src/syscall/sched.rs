//! Scheduling: kept and reported; all tasks take turns alike.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::config::TIME_SLICE_NS;
use crate::creds::CAP_SYS_NICE;
use crate::limits::{RLIMIT_NICE, RLIMIT_RTPRIO};
use crate::syscall::context::SyscallResult;
use crate::syscall::time::Timespec;
use crate::task::context::Ctx;
use crate::task::core::Task;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::platform;
use machine::sched;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const NICE_MIN: i32 = -20;
const NICE_MAX: i32 = 19;

/// `sched_yield(2)`.
pub(super) fn sched_yield(_cx: &Ctx<'_>) -> SyscallResult {
    sched::yield_now();
    Ok(0)
}

/// The task of an id; 0 is the caller.
fn target(cx: &Ctx<'_>, tid: i32) -> Result<Arc<Task>> {
    match u32::try_from(tid).map_err(|_| Errno::EINVAL)? {
        0 => Ok(cx.task.clone()),
        tid => cx.container().find_task(tid).ok_or(Errno::ESRCH),
    }
}

/// Whether the caller may change how another task is scheduled.
fn check_owner(cx: &Ctx<'_>, task: &Task) -> Result<()> {
    let (me, them) = (cx.task.creds.get(), task.creds.get());
    let owns = me.euid == them.uid || me.euid == them.euid;
    if owns || me.has(CAP_SYS_NICE) { Ok(()) } else { Err(Errno::EPERM) }
}

/// The tasks `getpriority(2)` and `setpriority(2)` are about.
fn chosen(cx: &Ctx<'_>, which: u32, who: u32) -> Result<Vec<Arc<Task>>> {
    const PROCESS: u32 = 0;
    const GROUP: u32 = 1;
    const USER: u32 = 2;
    let all = || {
        cx.container().tree.lock().tasks.values().filter_map(alloc::sync::Weak::upgrade).collect::<Vec<_>>()
    };
    let tasks = match which {
        PROCESS if who == 0 => alloc::vec![cx.task.clone()],
        PROCESS => cx.container().find_task(who).into_iter().collect(),
        GROUP => {
            let tree = cx.container().tree.lock();
            let own = tree.nodes.get(&cx.process().pid).map_or(0, |node| node.group);
            let members = tree.group_members(if who == 0 { own } else { who });
            drop(tree);
            members.iter().flat_map(|process| process.tasks.lock().clone()).collect()
        }
        USER => {
            let uid = if who == 0 { cx.task.creds.get().uid } else { who };
            all().into_iter().filter(|task| task.creds.get().uid == uid).collect()
        }
        _ => return Err(Errno::EINVAL),
    };
    if tasks.is_empty() { Err(Errno::ESRCH) } else { Ok(tasks) }
}

/// `getpriority(2)`, the raw call: 20 minus the nice value.
pub(super) fn getpriority(cx: &Ctx<'_>, which: u32, who: u32) -> SyscallResult {
    let tasks = chosen(cx, which, who)?;
    let nice = tasks.iter().map(|task| task.policy.nice.load(Ordering::Relaxed)).min().unwrap_or(0);
    Ok(u64::from((20 - nice).max(1).unsigned_abs()))
}

/// `setpriority(2)`.
pub(super) fn setpriority(cx: &Ctx<'_>, which: u32, who: u32, nice: i32) -> SyscallResult {
    let nice = nice.clamp(NICE_MIN, NICE_MAX);
    let tasks = chosen(cx, which, who)?;
    for task in tasks {
        check_owner(cx, &task)?;
        set_nice(cx, &task, nice, Errno::EACCES)?;
    }
    Ok(0)
}

/// Keeps a nice value; `refusal` when the caller may not lower it so far.
fn set_nice(cx: &Ctx<'_>, task: &Task, nice: i32, refusal: Errno) -> Result<()> {
    let floor = 20 - i32::try_from(task.process.limits.lock().soft(RLIMIT_NICE).min(40)).unwrap_or(40);
    let lowers = nice < task.policy.nice.load(Ordering::Relaxed) && nice < floor;
    if lowers && !cx.task.creds.get().has(CAP_SYS_NICE) {
        return Err(refusal);
    }
    task.policy.nice.store(nice, Ordering::Relaxed);
    Ok(())
}

/// One bit for each vCPU.
fn all_cpus() -> u64 {
    u64::MAX >> (64 - platform::cpus().clamp(1, 64))
}

/// `sched_getaffinity(2)`, the raw call: returns the bytes written.
pub(super) fn sched_getaffinity(cx: &Ctx<'_>, tid: i32, size: u32, mask: UserAddr) -> SyscallResult {
    if size < 8 || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let kept = target(cx, tid)?.policy.affinity.load(Ordering::Relaxed) & all_cpus();
    cx.user().write(mask, &kept)?;
    Ok(8)
}

/// `sched_setaffinity(2)`: kept and reported, not followed.
pub(super) fn sched_setaffinity(cx: &Ctx<'_>, tid: i32, size: u32, mask: UserAddr) -> SyscallResult {
    let mut bytes = [0u8; 8];
    let given = (size as usize).min(bytes.len());
    cx.user().read_bytes(mask, &mut bytes[..given])?;
    let wanted = u64::from_le_bytes(bytes) & all_cpus();
    let task = target(cx, tid)?;
    check_owner(cx, &task)?;
    if wanted == 0 {
        return Err(Errno::EINVAL);
    }
    task.policy.affinity.store(wanted, Ordering::Relaxed);
    Ok(0)
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
fn set_policy(cx: &Ctx<'_>, task: &Task, policy: u32, priority: u32) -> Result<()> {
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

/// `sched_setscheduler(2)`.
pub(super) fn sched_setscheduler(cx: &Ctx<'_>, tid: i32, policy: u32, param: UserAddr) -> SyscallResult {
    let priority: u32 = cx.user().read(param)?;
    set_policy(cx, &*target(cx, tid)?, policy, priority)?;
    Ok(0)
}

/// `sched_getscheduler(2)`.
pub(super) fn sched_getscheduler(cx: &Ctx<'_>, tid: i32) -> SyscallResult {
    Ok(u64::from(target(cx, tid)?.policy.policy.load(Ordering::Relaxed)))
}

/// `sched_setparam(2)`.
pub(super) fn sched_setparam(cx: &Ctx<'_>, tid: i32, param: UserAddr) -> SyscallResult {
    let priority: u32 = cx.user().read(param)?;
    let task = target(cx, tid)?;
    let policy = task.policy.policy.load(Ordering::Relaxed);
    set_policy(cx, &task, policy, priority)?;
    Ok(0)
}

/// `sched_getparam(2)`.
pub(super) fn sched_getparam(cx: &Ctx<'_>, tid: i32, param: UserAddr) -> SyscallResult {
    let priority = target(cx, tid)?.policy.rt_priority.load(Ordering::Relaxed);
    cx.user().write(param, &priority)?;
    Ok(0)
}

/// `sched_get_priority_max(2)`.
pub(super) fn sched_get_priority_max(_cx: &Ctx<'_>, policy: u32) -> SyscallResult {
    match policy {
        SCHED_FIFO | SCHED_RR => Ok(u64::from(RT_PRIORITY_MAX)),
        SCHED_OTHER | SCHED_BATCH | SCHED_IDLE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// `sched_get_priority_min(2)`.
pub(super) fn sched_get_priority_min(_cx: &Ctx<'_>, policy: u32) -> SyscallResult {
    match policy {
        SCHED_FIFO | SCHED_RR => Ok(1),
        SCHED_OTHER | SCHED_BATCH | SCHED_IDLE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// `sched_rr_get_interval(2)`.
pub(super) fn sched_rr_get_interval(cx: &Ctx<'_>, tid: i32, to: UserAddr) -> SyscallResult {
    let policy = target(cx, tid)?.policy.policy.load(Ordering::Relaxed) & !SCHED_RESET_ON_FORK;
    let slice = if policy == SCHED_FIFO { 0 } else { TIME_SLICE_NS };
    cx.user().write(to, &Timespec::from_ns(slice))?;
    Ok(0)
}

/// `struct sched_attr`, its first version.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}
const ATTR_BYTES: u32 = 48;
const _: () = assert!(size_of::<SchedAttr>() == ATTR_BYTES as usize);
const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

/// `sched_setattr(2)`.
pub(super) fn sched_setattr(cx: &Ctx<'_>, tid: i32, attr: UserAddr, flags: u32) -> SyscallResult {
    let attr: SchedAttr = cx.user().read(attr)?;
    if flags != 0 || attr.flags & !SCHED_FLAG_RESET_ON_FORK != 0 || (attr.size != 0 && attr.size < ATTR_BYTES)
    {
        return Err(Errno::EINVAL);
    }
    let task = target(cx, tid)?;
    check_owner(cx, &task)?;
    let reset = if attr.flags & SCHED_FLAG_RESET_ON_FORK != 0 { SCHED_RESET_ON_FORK } else { 0 };
    if !is_real_time(attr.policy) {
        set_nice(cx, &task, attr.nice.clamp(NICE_MIN, NICE_MAX), Errno::EPERM)?;
    }
    set_policy(cx, &task, attr.policy | reset, attr.priority)?;
    Ok(0)
}

/// `sched_getattr(2)`.
pub(super) fn sched_getattr(cx: &Ctx<'_>, tid: i32, attr: UserAddr, size: u32, flags: u32) -> SyscallResult {
    if flags != 0 || !(ATTR_BYTES..=4096).contains(&size) {
        return Err(Errno::EINVAL);
    }
    let task = target(cx, tid)?;
    let policy = task.policy.policy.load(Ordering::Relaxed);
    let answer = SchedAttr {
        size: ATTR_BYTES,
        policy: policy & !SCHED_RESET_ON_FORK,
        flags: if policy & SCHED_RESET_ON_FORK != 0 { SCHED_FLAG_RESET_ON_FORK } else { 0 },
        nice: task.policy.nice.load(Ordering::Relaxed),
        priority: task.policy.rt_priority.load(Ordering::Relaxed),
        runtime: 0,
        deadline: 0,
        period: 0,
    };
    cx.user().write(attr, &answer)?;
    Ok(0)
}

/// The tasks `ioprio_get(2)` and `ioprio_set(2)` are about: as `setpriority(2)`, counted from 1.
fn chosen_for_io(cx: &Ctx<'_>, which: u32, who: u32) -> Result<Vec<Arc<Task>>> {
    chosen(cx, which.checked_sub(1).ok_or(Errno::EINVAL)?, who)
}

/// `ioprio_set(2)`: kept and reported.
pub(super) fn ioprio_set(cx: &Ctx<'_>, which: u32, who: u32, priority: u32) -> SyscallResult {
    const CLASS_REAL_TIME: u32 = 1;
    const CLASS_IDLE: u32 = 3;
    let class = priority >> 13;
    if class > CLASS_IDLE {
        return Err(Errno::EINVAL);
    }
    if class == CLASS_REAL_TIME && !cx.task.creds.get().has(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    for task in chosen_for_io(cx, which, who)? {
        check_owner(cx, &task)?;
        task.policy.io_priority.store(priority, Ordering::Relaxed);
    }
    Ok(0)
}

/// `ioprio_get(2)`.
pub(super) fn ioprio_get(cx: &Ctx<'_>, which: u32, who: u32) -> SyscallResult {
    let tasks = chosen_for_io(cx, which, who)?;
    let best = tasks.iter().map(|task| task.policy.io_priority.load(Ordering::Relaxed)).min();
    Ok(u64::from(best.unwrap_or(0)))
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
