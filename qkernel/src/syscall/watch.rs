//! More descriptors that tell of events: `timerfd_create(2)`, `signalfd(2)`, `pidfd_open(2)`; and `memfd_create(2)`.

use alloc::sync::Arc;

use crate::fs::file::OpenFlags;
use crate::fs::memfd::{F_SEAL_EXEC, F_SEAL_SEAL, MemFile};
use crate::fs::timerfd::{Clock, Setting, TimerFile};
use crate::signals::Source;
use crate::syscall::context::SyscallResult;
use crate::syscall::event::{COMMON, install, only};
use crate::syscall::poll::duration_ns;
use crate::task::context::Ctx;
use crate::task::pidfd::PidFile;
use crate::task::process::Process;
use crate::task::signalfd::SignalFile;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::time::NSEC;

/// `timerfd_create(2)`.
pub(super) fn timerfd_create(cx: &Ctx<'_>, clock: i32, flags: u32) -> SyscallResult {
    let flags = only(flags, COMMON)?;
    install(cx, TimerFile::open(Clock::from_number(clock)?, flags)?, flags)
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
    const ABSTIME: u32 = 1;
    const CANCEL_ON_SET: u32 = 2;
    if flags & !(ABSTIME | CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let [interval_s, interval_ns, due_s, due_ns]: ItimerSpec = cx.user().read(new)?;
    let interval_ns = duration_ns([interval_s, interval_ns])?;
    let due_ns = duration_ns([due_s, due_ns])?;
    let file = cx.file(fd)?;
    let timer = file.as_ops::<TimerFile>().ok_or(Errno::EINVAL)?;
    let before = timer.set(Setting { due_ns, interval_ns }, flags & ABSTIME != 0);
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

/// `signalfd(2)`.
pub(super) fn signalfd(cx: &Ctx<'_>, fd: i32, mask: UserAddr, size: u64) -> SyscallResult {
    signalfd4(cx, fd, mask, size, 0)
}

/// `signalfd4(2)`.
pub(super) fn signalfd4(cx: &Ctx<'_>, fd: i32, mask: UserAddr, size: u64, flags: u32) -> SyscallResult {
    let flags = only(flags, COMMON)?;
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let mask: u64 = cx.user().read(mask)?;
    if fd == -1 {
        return install(cx, SignalFile::open(mask, flags)?, flags);
    }
    let file = cx.file(fd)?;
    file.as_ops::<SignalFile>().ok_or(Errno::EINVAL)?.set_mask(mask);
    Ok(u64::from(fd.unsigned_abs()))
}

/// `pidfd_open(2)`.
pub(super) fn pidfd_open(cx: &Ctx<'_>, pid: i32, flags: u32) -> SyscallResult {
    let flags = only(flags, OpenFlags::NONBLOCK)?;
    let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0).ok_or(Errno::EINVAL)?;
    let Some(process) = cx.container().find_process(pid) else {
        return Err(if cx.container().find_task(pid).is_some() { Errno::EINVAL } else { Errno::ESRCH });
    };
    cx.install(PidFile::open(&process, flags)?, true)
}

/// `pidfd_send_signal(2)`.
pub(super) fn pidfd_send_signal(
    cx: &Ctx<'_>,
    pidfd: i32,
    number: u32,
    info: UserAddr,
    flags: u32,
) -> SyscallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let target = pid_process(cx, pidfd)?;
    let source = if info.is_null() {
        Source::User { pid: cx.process().pid, uid: cx.task.creds.get().uid }
    } else {
        crate::syscall::signal::read_info(cx, number, info, Arc::ptr_eq(&target, cx.process()))?
    };
    crate::syscall::signal::signal_process(cx, &target, number, source)?;
    Ok(0)
}

/// The process of a descriptor; `EBADF` for another file, `ESRCH` once the process has been waited for.
pub fn pid_process(cx: &Ctx<'_>, fd: i32) -> Result<Arc<Process>> {
    let file = cx.file(fd)?;
    let process = &file.as_ops::<PidFile>().ok_or(Errno::EBADF)?.process;
    match cx.container().find_process(process.pid) {
        Some(found) if Arc::ptr_eq(&found, process) => Ok(found),
        _ => Err(Errno::ESRCH),
    }
}

/// `memfd_create(2)`.
pub(super) fn memfd_create(cx: &Ctx<'_>, name: UserAddr, flags: u32) -> SyscallResult {
    const CLOEXEC: u32 = 1;
    const ALLOW_SEALING: u32 = 2;
    const NOEXEC_SEAL: u32 = 8;
    const EXEC: u32 = 0x10;
    const NAME_BYTES: usize = 249;
    let known = CLOEXEC | ALLOW_SEALING | NOEXEC_SEAL | EXEC;
    if flags & !known != 0 || flags & (NOEXEC_SEAL | EXEC) == NOEXEC_SEAL | EXEC {
        return Err(Errno::EINVAL);
    }
    let name = cx.user().read_cstr(name, NAME_BYTES + 1, Errno::EINVAL)?;
    let seals = match (flags & NOEXEC_SEAL != 0, flags & ALLOW_SEALING != 0) {
        (true, _) => F_SEAL_EXEC,
        (false, true) => 0,
        (false, false) => F_SEAL_SEAL,
    };
    let creds = cx.task.creds.get();
    let file = MemFile::open(&name, (creds.fsuid, creds.fsgid), seals, OpenFlags::LARGEFILE)?;
    cx.install(file, flags & CLOEXEC != 0)
}

/// `pidfd_getfd(2)`: not permitted, as by a kernel that allows no tracing.
pub(super) fn pidfd_getfd(cx: &Ctx<'_>, pidfd: i32, _fd: i32, flags: u32) -> SyscallResult {
    pid_process(cx, pidfd)?;
    Err(if flags != 0 { Errno::EINVAL } else { Errno::EPERM })
}
