//! Processes as descriptors: `pidfd_open(2)`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::creds::Inspection;
use crate::fs::file::{File, OpenFlags};
use crate::net::ancillary::SenderCreds;
use crate::proc;
use crate::signals::Source;
use crate::syscall::context::SyscallResult;
use crate::syscall::event::only;
use crate::task::context::Ctx;
use crate::task::inspect;
use crate::task::pidfd::PidFile;
use crate::task::process::Process;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// `pidfd_open(2)`.
pub(super) fn pidfd_open(cx: &Ctx<'_>, pid: i32, flags: u32) -> SyscallResult {
    let flags = only(flags, OpenFlags::NONBLOCK)?;
    let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0).ok_or(Errno::EINVAL)?;
    let Some(process) = cx.pids().find_process(pid) else {
        return Err(if cx.pids().find_task(pid).is_some() { Errno::EINVAL } else { Errno::ESRCH });
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
    let file = cx.file(pidfd)?;
    let target = match proc::process_of(&file) {
        Some(process) => still_there(cx, &process)?,
        None => pid_process(cx, &file)?,
    };
    let source = if info.is_null() {
        Source::User { pid: cx.process().pid, uid: cx.task.creds.get().uid }
    } else {
        let sent: i32 = cx.user().read(info)?;
        if sent != number.cast_signed() {
            return Err(Errno::EINVAL);
        }
        crate::syscall::signal::sigqueue::read_info(cx, number, info, Arc::ptr_eq(&target, cx.process()))?
    };
    crate::syscall::signal::permission::signal_process(cx, &target, number, source)?;
    Ok(0)
}

/// A descriptor of the process that sent a message, or is a peer. `ESRCH`: it is gone, or of another pid space.
pub fn of_sender(cx: &Ctx<'_>, sender: SenderCreds) -> Result<Arc<File>> {
    let process = cx.pids().find_process(sender.process.seen_by(cx.caller)).ok_or(Errno::ESRCH)?;
    // Its id may be another process's by now.
    if process.serial != sender.serial {
        return Err(Errno::ESRCH);
    }
    PidFile::open(&process, OpenFlags::empty())
}

/// The process of a descriptor; `EBADF` for another file, `ESRCH` once the process has been waited for.
pub fn pid_process(cx: &Ctx<'_>, file: &File) -> Result<Arc<Process>> {
    still_there(cx, &file.as_ops::<PidFile>().ok_or(Errno::EBADF)?.process)
}

fn still_there(cx: &Ctx<'_>, process: &Arc<Process>) -> Result<Arc<Process>> {
    match cx.pids().find_process(process.pid) {
        Some(found) if Arc::ptr_eq(&found, process) => Ok(found),
        _ => Err(Errno::ESRCH),
    }
}

/// `pidfd_getfd(2)`.
pub(super) fn pidfd_getfd(cx: &Ctx<'_>, pidfd: i32, fd: i32, flags: u32) -> SyscallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let target = pid_process(cx, &*cx.file(pidfd)?)?.any_task().ok_or(Errno::ESRCH)?;
    // The rights hold for what the program has that was looked at, and for no other.
    let programs = || target.process.programs.load(Ordering::SeqCst);
    let before = programs();
    inspect::check(cx.task, &target, Inspection::Process)?;
    let file = target.files().ok_or(Errno::ESRCH)?.get(fd)?;
    inspect::check(cx.task, &target, Inspection::Process)?;
    if programs() != before {
        return Err(Errno::EPERM);
    }
    cx.install(file, true)
}
