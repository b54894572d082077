//! `sched_setattr(2)` and `sched_getattr(2)`.

use core::sync::atomic::Ordering;

use crate::syscall::context::SyscallResult;
use crate::syscall::sched::{
    NICE_MAX, NICE_MIN, SCHED_RESET_ON_FORK, check_owner, is_real_time, set_nice, set_policy, target,
};
use crate::task::context::Ctx;

use machine::errno::Errno;
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

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
pub(in crate::syscall) fn sched_setattr(cx: &Ctx<'_>, tid: i32, attr: UserAddr, flags: u32) -> SyscallResult {
    if attr.is_null() || tid < 0 {
        return Err(Errno::EINVAL);
    }
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
pub(in crate::syscall) fn sched_getattr(
    cx: &Ctx<'_>,
    tid: i32,
    attr: UserAddr,
    size: u32,
    flags: u32,
) -> SyscallResult {
    if flags != 0 || attr.is_null() || !(ATTR_BYTES..=4096).contains(&size) {
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
