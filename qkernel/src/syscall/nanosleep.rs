//! `nanosleep(2)` and `clock_nanosleep(2)`.

use crate::syscall::context::SyscallResult;
use crate::syscall::timespec::Timespec;
use crate::task::clock::Clock;
use crate::task::context::Ctx;
use crate::task::signal::state::Restart;
use machine::errno::Errno;
use machine::mm::UserAddr;
use machine::sched;
use machine::time;

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
    let clock = Clock::for_sleep(cx.task, id)?;
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
