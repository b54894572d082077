//! Timers as descriptors: `timerfd_create(2)`.

use crate::fs::timerfd::{ABSOLUTE, Setting, TimerFile};
use crate::syscall::context::SyscallResult;
use crate::syscall::event::{COMMON, install, only};
use crate::syscall::timeout::duration_ns;
use crate::task::context::Ctx;

use machine::errno::Errno;
use machine::mm::UserAddr;
use machine::time::NSEC;

/// `timerfd_create(2)`.
pub(super) fn timerfd_create(cx: &Ctx<'_>, clock: i32, flags: u32) -> SyscallResult {
    let flags = only(flags, COMMON)?;
    install(cx, TimerFile::open(clock, flags)?, flags)
}

/// `struct itimerspec`: interval, then value, each in seconds and nanoseconds.
type ItimerSpec = [i64; 4];

fn to_spec(setting: Setting) -> ItimerSpec {
    let (interval, due) = (setting.interval_ns, setting.due_ns);
    [interval / NSEC, interval % NSEC, due / NSEC, due % NSEC].map(u64::cast_signed)
}

/// `timerfd_settime(2)`.
pub(super) fn timerfd_settime(
    cx: &Ctx<'_>,
    fd: i32,
    flags: u32,
    new: UserAddr,
    old: UserAddr,
) -> SyscallResult {
    const CANCEL_ON_SET: u32 = 2;
    let [interval_s, interval_ns, due_s, due_ns]: ItimerSpec = cx.user().read(new)?;
    if flags & !(ABSOLUTE | CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let interval_ns = duration_ns([interval_s, interval_ns])?;
    let due_ns = duration_ns([due_s, due_ns])?;
    let file = cx.file(fd)?;
    let timer = file.as_ops::<TimerFile>().ok_or(Errno::EINVAL)?;
    let before = timer.set(Setting { due_ns, interval_ns }, flags);
    cx.user().write_opt(old, &to_spec(before))?;
    Ok(0)
}

/// `timerfd_gettime(2)`.
pub(super) fn timerfd_gettime(cx: &Ctx<'_>, fd: i32, to: UserAddr) -> SyscallResult {
    let file = cx.file(fd)?;
    let timer = file.as_ops::<TimerFile>().ok_or(Errno::EINVAL)?;
    cx.user().write(to, &to_spec(timer.get()))?;
    Ok(0)
}
