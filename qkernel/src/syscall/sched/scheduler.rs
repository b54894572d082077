//! Policies and priorities: `sched_setscheduler(2)`, `sched_setparam(2)` and their relatives.

use core::sync::atomic::Ordering;

use crate::config::TIME_SLICE_NS;
use crate::syscall::context::SyscallResult;
use crate::syscall::sched::{
    Deadline, RT_PRIORITY_MAX, SCHED_BATCH, SCHED_DEADLINE, SCHED_FIFO, SCHED_IDLE, SCHED_OTHER,
    SCHED_RESET_ON_FORK, SCHED_RR, Wanted, set_policy, target,
};
use crate::syscall::timespec::Timespec;
use crate::task::context::Ctx;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// The parameters at `param`. That there are none, or no such thread can be, is told before they are read.
fn read_param(cx: &Ctx<'_>, tid: i32, param: UserAddr) -> Result<u32> {
    if param.is_null() || tid < 0 {
        return Err(Errno::EINVAL);
    }
    cx.user().read(param)
}

/// `sched_setscheduler(2)`.
pub(in crate::syscall) fn sched_setscheduler(
    cx: &Ctx<'_>,
    tid: i32,
    policy: u32,
    param: UserAddr,
) -> SyscallResult {
    if policy.cast_signed() < 0 {
        return Err(Errno::EINVAL);
    }
    let priority = read_param(cx, tid, param)?;
    let resets = policy & SCHED_RESET_ON_FORK != 0;
    set(cx, tid, Some((policy & !SCHED_RESET_ON_FORK, resets)), priority)
}

/// Sets the priority, and where it is given the policy and whether children have it.
fn set(cx: &Ctx<'_>, tid: i32, policy: Option<(u32, bool)>, priority: u32) -> SyscallResult {
    let wanted = Wanted {
        policy: policy.map(|(policy, _)| policy),
        resets: policy.map(|(_, resets)| resets),
        nice: None,
        priority,
        deadline: Deadline::default(),
        keeps_params: false,
        clamps: false,
    };
    set_policy(cx, &target(cx, tid)?, &wanted).map(|()| 0)
}

/// `sched_getscheduler(2)`.
pub(in crate::syscall) fn sched_getscheduler(cx: &Ctx<'_>, tid: i32) -> SyscallResult {
    Ok(u64::from(target(cx, tid)?.policy.policy.load(Ordering::Relaxed)))
}

/// `sched_setparam(2)`.
pub(in crate::syscall) fn sched_setparam(cx: &Ctx<'_>, tid: i32, param: UserAddr) -> SyscallResult {
    let priority = read_param(cx, tid, param)?;
    set(cx, tid, None, priority)
}

/// `sched_getparam(2)`.
pub(in crate::syscall) fn sched_getparam(cx: &Ctx<'_>, tid: i32, param: UserAddr) -> SyscallResult {
    if param.is_null() {
        return Err(Errno::EINVAL);
    }
    let priority = target(cx, tid)?.policy.rt_priority.load(Ordering::Relaxed);
    cx.user().write(param, &priority)?;
    Ok(0)
}

/// `sched_get_priority_max(2)`.
pub(in crate::syscall) fn sched_get_priority_max(_cx: &Ctx<'_>, policy: u32) -> SyscallResult {
    match policy {
        SCHED_FIFO | SCHED_RR => Ok(u64::from(RT_PRIORITY_MAX)),
        SCHED_OTHER | SCHED_BATCH | SCHED_IDLE | SCHED_DEADLINE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// `sched_get_priority_min(2)`.
pub(in crate::syscall) fn sched_get_priority_min(_cx: &Ctx<'_>, policy: u32) -> SyscallResult {
    match policy {
        SCHED_FIFO | SCHED_RR => Ok(1),
        SCHED_OTHER | SCHED_BATCH | SCHED_IDLE | SCHED_DEADLINE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// `sched_rr_get_interval(2)`.
pub(in crate::syscall) fn sched_rr_get_interval(cx: &Ctx<'_>, tid: i32, to: UserAddr) -> SyscallResult {
    let policy = target(cx, tid)?.policy.policy.load(Ordering::Relaxed) & !SCHED_RESET_ON_FORK;
    let slice = if policy == SCHED_FIFO { 0 } else { TIME_SLICE_NS };
    cx.user().write(to, &Timespec::from_ns(slice))?;
    Ok(0)
}
