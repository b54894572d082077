//! `sched_setattr(2)` and `sched_getattr(2)`.

use bitflags::bitflags;
use core::sync::atomic::Ordering;

use crate::syscall::context::SyscallResult;
use crate::syscall::extensible::read_extensible;
use crate::syscall::sched::{
    NICE_MAX, NICE_MIN, SCHED_RESET_ON_FORK, check_owner, check_policy, is_real_time, set_nice, set_policy,
    target,
};
use crate::task::context::Ctx;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct sched_attr`.
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
    util_min: u32,
    util_max: u32,
}
const ATTR_BYTES: u32 = 56;
const _: () = assert!(size_of::<SchedAttr>() == ATTR_BYTES as usize);
/// Bytes of its first version.
const FIRST_BYTES: u32 = 48;

bitflags! {
    /// `SCHED_FLAG_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct AttrFlags: u64 {
        const RESET_ON_FORK = 0x1;
        /// Of deadlines, which there are none of.
        const RECLAIM = 0x2;
        const DL_OVERRUN = 0x4;
        const KEEP_POLICY = 0x8;
        const KEEP_PARAMS = 0x10;
        const UTIL_CLAMP_MIN = 0x20;
        const UTIL_CLAMP_MAX = 0x40;
    }
}

/// Reads the attributes. Where their size is not one that is known, the known one is written back, with `E2BIG`.
fn read_attr(cx: &Ctx<'_>, from: UserAddr) -> Result<SchedAttr> {
    let size: u32 = cx.user().read(from)?;
    let size = if size == 0 { FIRST_BYTES } else { size };
    let read = if size < FIRST_BYTES {
        Err(Errno::E2BIG)
    } else {
        read_extensible(cx, from, u64::from(size), u64::from(FIRST_BYTES))
    };
    if read.as_ref().is_err_and(|error| *error == Errno::E2BIG) {
        cx.user().write(from, &ATTR_BYTES)?;
    }
    read
}

/// `sched_setattr(2)`.
pub(in crate::syscall) fn sched_setattr(cx: &Ctx<'_>, tid: i32, attr: UserAddr, flags: u32) -> SyscallResult {
    if attr.is_null() || tid < 0 || flags != 0 {
        return Err(Errno::EINVAL);
    }
    let attr = read_attr(cx, attr)?;
    if attr.policy.cast_signed() < 0 {
        return Err(Errno::EINVAL);
    }
    let task = target(cx, tid)?;
    let held = task.policy.policy.load(Ordering::Relaxed);
    let flags = AttrFlags::from_bits(attr.flags).ok_or(Errno::EINVAL)?;
    let reset = if flags.contains(AttrFlags::RESET_ON_FORK) { SCHED_RESET_ON_FORK } else { 0 };
    let policy = if flags.contains(AttrFlags::KEEP_POLICY) { held } else { attr.policy | reset };
    let plain = policy & !SCHED_RESET_ON_FORK;
    let keeps_params = flags.contains(AttrFlags::KEEP_PARAMS);
    let nice = attr.nice.clamp(NICE_MIN, NICE_MAX);
    let priority = if keeps_params { task.policy.rt_priority.load(Ordering::Relaxed) } else { attr.priority };
    check_policy(plain, priority)?;
    if flags.intersects(AttrFlags::UTIL_CLAMP_MIN | AttrFlags::UTIL_CLAMP_MAX) {
        // As on a Linux that was built without it.
        return Err(Errno::EOPNOTSUPP);
    }
    check_owner(cx, &task)?;
    if keeps_params {
        // As on Linux the policy is one of the parameters.
        let kept = held & !SCHED_RESET_ON_FORK | policy & SCHED_RESET_ON_FORK;
        task.policy.policy.store(kept, Ordering::Relaxed);
        return Ok(0);
    }
    if !is_real_time(plain) {
        set_nice(cx, &task, nice, Errno::EPERM)?;
    }
    set_policy(cx, &task, policy, priority)?;
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
    if flags != 0 || attr.is_null() || !(FIRST_BYTES..=4096).contains(&size) {
        return Err(Errno::EINVAL);
    }
    let task = target(cx, tid)?;
    let policy = task.policy.policy.load(Ordering::Relaxed);
    let written = size.min(ATTR_BYTES);
    let resets = policy & SCHED_RESET_ON_FORK != 0;
    let flags = if resets { AttrFlags::RESET_ON_FORK } else { AttrFlags::empty() };
    let answer = SchedAttr {
        size: written,
        policy: policy & !SCHED_RESET_ON_FORK,
        flags: flags.bits(),
        nice: task.policy.nice.load(Ordering::Relaxed),
        priority: task.policy.rt_priority.load(Ordering::Relaxed),
        runtime: 0,
        deadline: 0,
        period: 0,
        util_min: 0,
        util_max: 0,
    };
    cx.user().write_bytes(attr, &answer.as_bytes()[..written as usize])?;
    Ok(0)
}
