//! Sending signals with information (`sigqueue(3)`).

use crate::signals::Source;
use crate::syscall::context::SyscallResult;
use crate::syscall::signal::kill::signal_thread;
use crate::syscall::signal::permission::signal_process;
use crate::task::context::Ctx;
use crate::task::signal::info::SigInfo;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// Reads the information a program attaches to a signal it sends. Only towards itself may a process pretend that the
/// kernel or `kill(2)` sent it.
pub(in crate::syscall) fn read_info(
    cx: &Ctx<'_>,
    number: u32,
    info: UserAddr,
    to_self: bool,
) -> Result<Source> {
    const SI_TKILL: i32 = -6;
    let info = SigInfo::from_user(number, &cx.user().read(info)?);
    if (info.code() >= 0 || info.code() == SI_TKILL) && !to_self {
        return Err(Errno::EPERM);
    }
    Ok(info.source)
}

/// `rt_sigqueueinfo(2)`.
pub(in crate::syscall) fn rt_sigqueueinfo(
    cx: &Ctx<'_>,
    pid: i32,
    number: u32,
    info: UserAddr,
) -> SyscallResult {
    let pid = u32::try_from(pid).unwrap_or(0);
    let source = read_info(cx, number, info, pid == cx.process().pid)?;
    let target = cx.pids().find_process(pid).ok_or(Errno::ESRCH)?;
    signal_process(cx, &target, number, source)?;
    Ok(0)
}

/// `rt_tgsigqueueinfo(2)`.
pub(in crate::syscall) fn rt_tgsigqueueinfo(
    cx: &Ctx<'_>,
    tgid: i32,
    tid: i32,
    number: u32,
    info: UserAddr,
) -> SyscallResult {
    let tgid = u32::try_from(tgid).ok().filter(|tgid| *tgid != 0).ok_or(Errno::EINVAL)?;
    let source = read_info(cx, number, info, tgid == cx.process().pid)?;
    signal_thread(cx, Some(tgid), tid, number, source)
}
