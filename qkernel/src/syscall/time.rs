//! Clocks: `clock_gettime(2)`, `gettimeofday(2)`, `time(2)`.

use crate::syscall::context::SyscallResult;
use crate::syscall::timespec::{Timespec, Timeval};
use crate::task::clock::Clock;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;
use machine::time;
use machine::time::NSEC;

/// `clock_gettime(2)`.
pub(super) fn clock_gettime(cx: &Ctx<'_>, id: i32, to: UserAddr) -> SyscallResult {
    let clock = Clock::from_id(cx.task, id)?;
    cx.user().write(to, &Timespec::from_ns(clock.now()))?;
    Ok(0)
}

/// `clock_getres(2)`.
pub(super) fn clock_getres(cx: &Ctx<'_>, id: i32, to: UserAddr) -> SyscallResult {
    const COARSE_NS: u64 = 4_000_000;
    Clock::from_id(cx.task, id)?;
    let resolution = if matches!(id, 5 | 6) { COARSE_NS } else { 1 };
    cx.user().write_opt(to, &Timespec::from_ns(resolution))?;
    Ok(0)
}

/// `clock_settime(2)`: the clocks are the host's.
pub(super) fn clock_settime(cx: &Ctx<'_>, id: i32, from: UserAddr) -> SyscallResult {
    let clock = Clock::from_id(cx.task, id)?;
    if !matches!(clock, Clock::Real) || id != 0 {
        return Err(Errno::EINVAL);
    }
    cx.user().read::<Timespec>(from)?.to_ns()?;
    Err(Errno::EPERM)
}

/// `gettimeofday(2)`.
pub(super) fn gettimeofday(cx: &Ctx<'_>, to: UserAddr, zone: UserAddr) -> SyscallResult {
    cx.user().write_opt(to, &Timeval::from_ns(time::realtime_ns()))?;
    cx.user().write_opt(zone, &[0u32; 2])?;
    Ok(0)
}

/// `settimeofday(2)`: the clocks are the host's.
pub(super) fn settimeofday(_cx: &Ctx<'_>) -> SyscallResult {
    Err(Errno::EPERM)
}

/// `time(2)`.
pub(super) fn time(cx: &Ctx<'_>, to: UserAddr) -> SyscallResult {
    let seconds = time::realtime_ns() / NSEC;
    cx.user().write_opt(to, &seconds)?;
    Ok(seconds)
}
