//! `sched_setattr(2)` and `sched_getattr(2)`.

use bitflags::bitflags;
use core::sync::atomic::Ordering;

use crate::config::TIME_SLICE_NS;
use crate::syscall::context::SyscallResult;
use crate::syscall::extensible::read_extensible;
use crate::syscall::sched::{
    Deadline, NICE_MAX, NICE_MIN, SCHED_RESET_ON_FORK, Wanted, is_real_time, set_policy, target,
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
    let clamps = attr.flags & (AttrFlags::UTIL_CLAMP_MIN | AttrFlags::UTIL_CLAMP_MAX).bits() != 0;
    if attr.policy.cast_signed() < 0 || clamps && attr.size < ATTR_BYTES {
        return Err(Errno::EINVAL);
    }
    let task = target(cx, tid)?;
    let flags = AttrFlags::from_bits(attr.flags).ok_or(Errno::EINVAL)?;
    let has = |flag| flags.contains(flag);
    let held = task.policy.policy.load(Ordering::Relaxed) & !SCHED_RESET_ON_FORK;
    let keeps_params = has(AttrFlags::KEEP_PARAMS);
    // Of a thread's parameters the policy that it has tells which ones there are to keep.
    let (nice, priority) = match (keeps_params, is_real_time(held)) {
        (true, true) => (attr.nice, task.policy.rt_priority.load(Ordering::Relaxed)),
        (true, false) => (task.policy.nice.load(Ordering::Relaxed), attr.priority),
        (false, _) => (attr.nice, attr.priority),
    };
    let is_given = !has(AttrFlags::KEEP_POLICY);
    let wanted = Wanted {
        policy: is_given.then_some(attr.policy),
        resets: is_given.then_some(has(AttrFlags::RESET_ON_FORK)),
        nice: Some(nice.clamp(NICE_MIN, NICE_MAX)),
        priority,
        deadline: Deadline { runtime: attr.runtime, deadline: attr.deadline, period: attr.period },
        keeps_params,
        clamps,
    };
    set_policy(cx, &task, &wanted).map(|()| 0)
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
    let is_real_time = is_real_time(policy & !SCHED_RESET_ON_FORK);
    let nice = task.policy.nice.load(Ordering::Relaxed);
    let answer = SchedAttr {
        size: written,
        policy: policy & !SCHED_RESET_ON_FORK,
        flags: flags.bits(),
        nice: if is_real_time { 0 } else { nice },
        priority: task.policy.rt_priority.load(Ordering::Relaxed),
        runtime: if is_real_time { 0 } else { TIME_SLICE_NS },
        deadline: 0,
        period: 0,
        util_min: 0,
        util_max: 0,
    };
    cx.user().write_bytes(attr, &answer.as_bytes()[..written as usize])?;
    Ok(0)
}
