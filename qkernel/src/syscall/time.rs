//! Clocks, sleeps and interval timers.

use super::{Ctx, SyscallResult};
use crate::errno::{Errno, Result};
use crate::mm::user::pod;
use crate::task::itimer::{self, Setting, Which};
use crate::task::process::{find_process, find_task};
use crate::task::signal::Restart;
use crate::task::{Process, Task, sched, usage};
use crate::time::{self, NSEC};
use alloc::sync::Arc;

/// `struct timespec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timespec {
    pub sec: i64,
    pub nsec: i64,
}

/// `struct timeval`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeval {
    pub sec: i64,
    pub usec: i64,
}

/// `struct itimerval`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ItimerVal {
    interval: Timeval,
    value: Timeval,
}
pod!(Timespec, Timeval, ItimerVal);

impl Timespec {
    /// Nanoseconds; `EINVAL` when negative or not normal. What does not fit is the largest there is.
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
pub(super) fn read_timespec_opt(cx: &Ctx<'_>, addr: u64) -> Result<Option<u64>> {
    cx.user().read_opt::<Timespec>(addr)?.map(Timespec::to_ns).transpose()
}

/// The monotonic time at which the real-time clock will show `ns`.
pub(super) fn monotonic_of_realtime(ns: u64) -> u64 {
    // A time before the clock's beginning has passed.
    ns.saturating_sub(time::realtime_offset_ns())
}

/// What a clock measures.
#[derive(Clone)]
pub(super) enum Clock {
    Real,
    Monotonic,
    Boot,
    /// Processor time of a process: all of it, or user time alone.
    Process(Arc<Process>, bool),
    Thread(Arc<Task>, bool),
}

const CLOCK_PROCESS_CPUTIME_ID: i32 = 2;
const CLOCK_THREAD_CPUTIME_ID: i32 = 3;

impl Clock {
    /// The clock of an id as `clock_gettime(2)` takes it.
    pub(super) fn from_id(cx: &Ctx<'_>, id: i32) -> Result<Self> {
        match id {
            // CLOCK_REALTIME, _COARSE, _ALARM, CLOCK_TAI (no leap seconds are known here)
            0 | 5 | 8 | 11 => Ok(Self::Real),
            // CLOCK_MONOTONIC, _RAW, _COARSE
            1 | 4 | 6 => Ok(Self::Monotonic),
            // CLOCK_BOOTTIME, _ALARM
            7 | 9 => Ok(Self::Boot),
            CLOCK_PROCESS_CPUTIME_ID => Ok(Self::Process(cx.process().clone(), false)),
            CLOCK_THREAD_CPUTIME_ID => Ok(Self::Thread(cx.task.clone(), false)),
            id if id < 0 => Self::of_other(cx, id),
            _ => Err(Errno::EINVAL),
        }
    }

    /// A clock id made of another process's or thread's number (`clock_getcpuclockid(3)`).
    fn of_other(cx: &Ctx<'_>, id: i32) -> Result<Self> {
        const PER_THREAD: i32 = 4;
        const KIND: i32 = 3;
        const KIND_VIRTUAL: i32 = 1;
        if id & KIND == KIND {
            return Err(Errno::EINVAL); // a descriptor's clock
        }
        let number = (!(id >> 3)).unsigned_abs();
        let user_only = id & KIND == KIND_VIRTUAL;
        if id & PER_THREAD != 0 {
            let task = if number == 0 { Some(cx.task.clone()) } else { find_task(number) };
            let task = task.filter(|task| Arc::ptr_eq(&task.process, cx.process())).ok_or(Errno::EINVAL)?;
            return Ok(Self::Thread(task, user_only));
        }
        let process = if number == 0 { Some(cx.process().clone()) } else { find_process(number) };
        Ok(Self::Process(process.ok_or(Errno::EINVAL)?, user_only))
    }

    /// What it shows, in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        match self {
            Self::Real => time::realtime_ns(),
            Self::Monotonic => time::monotonic_ns(),
            Self::Boot => time::boottime_ns(),
            Self::Process(process, user_only) => {
                let (user, total) = itimer::cpu_times(process);
                if *user_only { user } else { total }
            }
            Self::Thread(task, user_only) => {
                let (user, total) = usage::thread_times(task);
                if *user_only { user } else { total }
            }
        }
    }

    /// The monotonic time at which it will show `ns`; `None` for clocks of processor time.
    pub(super) fn monotonic_at(&self, ns: u64) -> Option<u64> {
        match self {
            Self::Real => Some(monotonic_of_realtime(ns)),
            Self::Monotonic => Some(ns),
            Self::Boot => Some(ns.saturating_sub(time::boottime_ns().saturating_sub(time::monotonic_ns()))),
            Self::Process(..) | Self::Thread(..) => None,
        }
    }
}

/// `clock_gettime(2)`.
pub(super) fn clock_gettime(cx: &Ctx<'_>, id: i32, to: u64) -> SyscallResult {
    let clock = Clock::from_id(cx, id)?;
    cx.user().write(to, &Timespec::from_ns(clock.now()))?;
    Ok(0)
}

/// `clock_getres(2)`.
pub(super) fn clock_getres(cx: &Ctx<'_>, id: i32, to: u64) -> SyscallResult {
    const COARSE_NS: u64 = 4_000_000;
    Clock::from_id(cx, id)?;
    let resolution = if matches!(id, 5 | 6) { COARSE_NS } else { 1 };
    cx.user().write_opt(to, &Timespec::from_ns(resolution))?;
    Ok(0)
}

/// `clock_settime(2)`: the clocks are the host's.
pub(super) fn clock_settime(cx: &Ctx<'_>, id: i32, from: u64) -> SyscallResult {
    let clock = Clock::from_id(cx, id)?;
    cx.user().read::<Timespec>(from)?.to_ns()?;
    Err(if matches!(clock, Clock::Real) && id == 0 { Errno::EPERM } else { Errno::EINVAL })
}

/// `gettimeofday(2)`.
pub(super) fn gettimeofday(cx: &Ctx<'_>, to: u64, zone: u64) -> SyscallResult {
    cx.user().write_opt(to, &Timeval::from_ns(time::realtime_ns()))?;
    cx.user().write_opt(zone, &[0u32; 2])?;
    Ok(0)
}

/// `settimeofday(2)`: the clocks are the host's.
pub(super) fn settimeofday(_cx: &Ctx<'_>) -> SyscallResult {
    Err(Errno::EPERM)
}

/// `time(2)`.
pub(super) fn time(cx: &Ctx<'_>, to: u64) -> SyscallResult {
    let seconds = time::realtime_ns() / NSEC;
    cx.user().write_opt(to, &seconds)?;
    Ok(seconds)
}

/// `nanosleep(2)`.
pub(super) fn nanosleep(cx: &Ctx<'_>, from: u64, remainder: u64) -> SyscallResult {
    let ns = cx.user().read::<Timespec>(from)?.to_ns()?;
    sleep_on(cx, 1, time::monotonic_ns().saturating_add(ns), remainder)
}

/// `clock_nanosleep(2)`.
pub(super) fn clock_nanosleep(cx: &Ctx<'_>, id: i32, flags: u32, from: u64, remainder: u64) -> SyscallResult {
    const TIMER_ABSTIME: u32 = 1;
    let clock = Clock::from_id(cx, id)?;
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

/// Sleeps until a monotonic time. Interrupted, what is left goes to `remainder`, and the sleep may go on later.
pub(super) fn sleep_on(cx: &Ctx<'_>, clock: i32, deadline_ns: u64, remainder: u64) -> SyscallResult {
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
    // What is less than a microsecond from running out still runs.
    let value = if setting.value_ns == 0 { 0 } else { setting.value_ns.max(1000) };
    ItimerVal { interval: Timeval::from_ns(setting.interval_ns), value: Timeval::from_ns(value) }
}

/// `setitimer(2)`.
pub(super) fn setitimer(cx: &Ctx<'_>, timer: u32, new: u64, old: u64) -> SyscallResult {
    let new: ItimerVal = cx.user().read_opt(new)?.unwrap_or_default();
    let setting = Setting { value_ns: new.value.to_ns()?, interval_ns: new.interval.to_ns()? };
    let former = itimer::set(cx.process(), which(timer)?, setting);
    cx.user().write_opt(old, &itimer_val(former))?;
    Ok(0)
}

/// `getitimer(2)`.
pub(super) fn getitimer(cx: &Ctx<'_>, timer: u32, to: u64) -> SyscallResult {
    let setting = itimer::get(cx.process(), which(timer)?);
    cx.user().write(to, &itimer_val(setting))?;
    Ok(0)
}

/// `alarm(2)`.
pub(super) fn alarm(cx: &Ctx<'_>, seconds: u32) -> SyscallResult {
    let setting = Setting { value_ns: u64::from(seconds) * NSEC, interval_ns: 0 };
    let former = itimer::set(cx.process(), Which::Real, setting).value_ns;
    // To the nearest second, but never 0 while one was set.
    let rounded = (former + NSEC / 2) / NSEC;
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
