//! Clocks, sleeps and interval timers.

use crate::syscall::context::SyscallResult;
use crate::task::clock::Clock;
use crate::task::context::Ctx;
use crate::task::itimer;
use crate::task::signal::state::Restart;
use crate::task::timers::{Setting, Which};
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::sched;
use machine::time;
use machine::time::NSEC;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct timespec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: i64,
}

/// `struct timeval`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Timeval {
    pub sec: i64,
    pub usec: i64,
}

/// `struct itimerval`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
struct ItimerVal {
    interval: Timeval,
    value: Timeval,
}

impl Timespec {
    /// Nanoseconds; `EINVAL` when negative or not normal. A time that does not fit becomes the largest number.
    pub fn to_ns(self) -> Result<u64> {
        let sec = u64::try_from(self.sec).map_err(|_| Errno::EINVAL)?;
        let nsec = u64::try_from(self.nsec).ok().filter(|nsec| *nsec < NSEC).ok_or(Errno::EINVAL)?;
        Ok(sec.saturating_mul(NSEC).saturating_add(nsec))
    }

    /// The time of so many nanoseconds.
    pub fn from_ns(ns: u64) -> Self {
        Self { sec: (ns / NSEC).cast_signed(), nsec: (ns % NSEC).cast_signed() }
    }
}

impl Timeval {
    /// Nanoseconds; `EINVAL` when negative or not normal.
    pub fn to_ns(self) -> Result<u64> {
        let usec = u64::try_from(self.usec).ok().filter(|usec| *usec < 1_000_000).ok_or(Errno::EINVAL)?;
        Timespec { sec: self.sec, nsec: (usec * 1000).cast_signed() }.to_ns()
    }

    /// The time of so many nanoseconds, rounded down.
    pub fn from_ns(ns: u64) -> Self {
        let Timespec { sec, nsec } = Timespec::from_ns(ns);
        Self { sec, usec: nsec / 1000 }
    }
}

/// Reads a `struct timespec` as nanoseconds unless the address is null.
pub(super) fn read_timespec_opt(cx: &Ctx<'_>, addr: UserAddr) -> Result<Option<u64>> {
    cx.user().read_opt::<Timespec>(addr)?.map(Timespec::to_ns).transpose()
}

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
    cx.user().read::<Timespec>(from)?.to_ns()?;
    Err(if matches!(clock, Clock::Real) && id == 0 { Errno::EPERM } else { Errno::EINVAL })
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

/// `nanosleep(2)`.
pub(super) fn nanosleep(cx: &Ctx<'_>, from: UserAddr, remainder: UserAddr) -> SyscallResult {
    let ns = cx.user().read::<Timespec>(from)?.to_ns()?;
    sleep_on(cx, 1, time::monotonic_ns().saturating_add(ns), remainder)
}

/// `clock_nanosleep(2)`.
pub(super) fn clock_nanosleep(
    cx: &Ctx<'_>,
    id: i32,
    flags: u32,
    from: UserAddr,
    remainder: UserAddr,
) -> SyscallResult {
    const TIMER_ABSTIME: u32 = 1;
    let clock = Clock::from_id(cx.task, id)?;
    if matches!(clock, Clock::Thread(..)) {
        return Err(Errno::EINVAL);
    }
    let ns = cx.user().read::<Timespec>(from)?.to_ns()?;
    if flags & TIMER_ABSTIME != 0 {
        return sleep_until_clock(&clock, ns);
    }
    if matches!(clock, Clock::Process(..)) {
        return Err(Errno::EOPNOTSUPP);
    }
    sleep_on(cx, id, time::monotonic_ns().saturating_add(ns), remainder)
}

/// Sleeps until a clock shows `ns`, even if it is set meanwhile.
fn sleep_until_clock(clock: &Clock, ns: u64) -> SyscallResult {
    while clock.now() < ns {
        let deadline = clock.monotonic_at(ns).ok_or(Errno::EOPNOTSUPP)?;
        sched::sleep_until(sched::Sleep::Interruptible, Some(deadline), || None::<()>)
            .map_err(|_| Errno::RESTART_NOHAND)?;
    }
    Ok(0)
}

/// Sleeps until a monotonic time. When a signal interrupts the sleep, the time left is written to `remainder`, and the
/// sleep may go on later.
pub(super) fn sleep_on(cx: &Ctx<'_>, clock: i32, deadline_ns: u64, remainder: UserAddr) -> SyscallResult {
    let slept = sched::sleep_until(sched::Sleep::Interruptible, Some(deadline_ns), || None::<()>);
    if slept.is_ok() {
        return Ok(0);
    }
    let left = deadline_ns.saturating_sub(time::monotonic_ns());
    if left == 0 {
        return Ok(0);
    }
    cx.user().write_opt(remainder, &Timespec::from_ns(left))?;
    *cx.task.restart.lock() = Some(Restart::Sleep { clock, deadline_ns, remainder });
    Err(Errno::RESTART_BLOCK)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_checked_and_converted() {
        assert_eq!(Timespec { sec: 1, nsec: 5 }.to_ns(), Ok(NSEC + 5));
        assert_eq!(Timespec { sec: 0, nsec: 1_000_000_000 }.to_ns(), Err(Errno::EINVAL));
        assert_eq!(Timespec { sec: -1, nsec: 0 }.to_ns(), Err(Errno::EINVAL));
        assert_eq!(Timespec { sec: i64::MAX, nsec: 0 }.to_ns(), Ok(u64::MAX));
        assert_eq!(Timeval { sec: 2, usec: 3 }.to_ns(), Ok(2 * NSEC + 3000));
        assert_eq!(Timeval { sec: 0, usec: 1_000_000 }.to_ns(), Err(Errno::EINVAL));
        assert_eq!(Timespec::from_ns(3 * NSEC + 7), Timespec { sec: 3, nsec: 7 });
    }
}
