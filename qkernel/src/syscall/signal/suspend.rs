//! Waiting for signals: `pause(2)`, `sigsuspend(2)`, `sigtimedwait(2)`.

use crate::signals::UNBLOCKABLE;
use crate::syscall::context::SyscallResult;
use crate::syscall::signal::check_set_size;
use crate::task::context::Ctx;
use crate::task::signal;

use machine::errno::Errno;
use machine::mm::UserAddr;
use machine::sched;
use machine::time;

/// `rt_sigsuspend(2)`.
pub(in crate::syscall) fn rt_sigsuspend(cx: &Ctx<'_>, mask: UserAddr, size: u64) -> SyscallResult {
    check_set_size(size)?;
    let mask: u64 = cx.user().read(mask)?;
    signal::with_temporary_mask(cx.task, Some(mask), sleep_for_signal)
}

/// `pause(2)`.
pub(in crate::syscall) fn pause(_cx: &Ctx<'_>) -> SyscallResult {
    sleep_for_signal()
}

fn sleep_for_signal() -> SyscallResult {
    let _ = sched::sleep_until(sched::Sleep::Interruptible, None, || None::<()>);
    Err(Errno::RESTART_NOHAND)
}

/// `rt_sigtimedwait(2)`.
pub(in crate::syscall) fn rt_sigtimedwait(
    cx: &Ctx<'_>,
    set: UserAddr,
    info: UserAddr,
    timeout: UserAddr,
    size: u64,
) -> SyscallResult {
    check_set_size(size)?;
    let set: u64 = cx.user().read(set)?;
    let timeout = crate::syscall::timespec::read_timespec_opt(cx, timeout)?;
    let deadline = timeout.map(|ns| time::monotonic_ns().saturating_add(ns));
    let taken = signal::wait_for_signal(cx.task, set & !UNBLOCKABLE, deadline)?;
    if !info.is_null() {
        cx.user().write_bytes(info, &taken.to_bytes())?;
    }
    Ok(u64::from(taken.signal))
}
