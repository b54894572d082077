//! Interval timers: `setitimer(2)`, `getitimer(2)`, `alarm(2)`.

use crate::syscall::context::SyscallResult;
use crate::syscall::timespec::Timeval;
use crate::task::context::Ctx;
use crate::task::itimer;
use crate::task::timers::{Setting, Which};
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::time::NSEC;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct itimerval`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
struct ItimerVal {
    interval: Timeval,
    value: Timeval,
}

fn which(which: u32) -> Result<Which> {
    match which {
        0 => Ok(Which::Real),
        1 => Ok(Which::Virtual),
        2 => Ok(Which::Prof),
        _ => Err(Errno::EINVAL),
    }
}

fn itimer_val(setting: Setting) -> ItimerVal {
    // A timer with less than a microsecond left still runs.
    let value = if setting.value_ns == 0 { 0 } else { setting.value_ns.max(1000) };
    ItimerVal { interval: Timeval::from_ns(setting.interval_ns), value: Timeval::from_ns(value) }
}

/// `setitimer(2)`.
pub(super) fn setitimer(cx: &Ctx<'_>, timer: u32, new: UserAddr, old: UserAddr) -> SyscallResult {
    let new: ItimerVal = cx.user().read_opt(new)?.unwrap_or_default();
    let setting = Setting { value_ns: new.value.to_ns()?, interval_ns: new.interval.to_ns()? };
    let former = itimer::set(cx.process(), which(timer)?, setting);
    cx.user().write_opt(old, &itimer_val(former))?;
    Ok(0)
}

/// `getitimer(2)`.
pub(super) fn getitimer(cx: &Ctx<'_>, timer: u32, to: UserAddr) -> SyscallResult {
    let setting = itimer::get(cx.process(), which(timer)?);
    cx.user().write(to, &itimer_val(setting))?;
    Ok(0)
}

/// `alarm(2)`.
pub(super) fn alarm(cx: &Ctx<'_>, seconds: u32) -> SyscallResult {
    let setting = Setting { value_ns: u64::from(seconds) * NSEC, interval_ns: 0 };
    let former = itimer::set(cx.process(), Which::Real, setting).value_ns;
    // To the nearest second, but never 0 while one was set.
    let rounded = former.saturating_add(NSEC / 2) / NSEC;
    Ok(if former == 0 { 0 } else { rounded.max(1) })
}
