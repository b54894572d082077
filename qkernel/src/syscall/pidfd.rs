//! Processes as descriptors: `pidfd_open(2)`.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::creds::Inspection;
use crate::fs::file::{File, OpenFlags};
use crate::net::ancillary::SenderCreds;
use crate::proc;
use crate::proc::ns::{self, Kind, Namespace};
use crate::signals::Source;
use crate::syscall::context::SyscallResult;
use crate::syscall::event::only;
use crate::syscall::signal;
use crate::task::context::Ctx;
use crate::task::inspect;
use crate::task::pidfd;
use crate::task::pidfd::PidFile;
use crate::task::process::Process;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// `pidfd_open(2)`.
pub(super) fn pidfd_open(cx: &Ctx<'_>, pid: i32, flags: u32) -> SyscallResult {
    let flags = only(flags, OpenFlags::NONBLOCK | pidfd::THREAD)?;
    let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0).ok_or(Errno::EINVAL)?;
    let task = cx.pids().find_task(pid);
    let file = match (cx.pids().find_process(pid), &task) {
        (Some(process), task) if flags.contains(pidfd::THREAD) => {
            PidFile::open_thread(&process, task.as_ref(), flags)?
        }
        (None, Some(task)) if flags.contains(pidfd::THREAD) => {
            PidFile::open_thread(&task.process, Some(task), flags)?
        }
        (Some(process), _) => PidFile::open(&process, flags)?,
        (None, Some(_)) => return Err(Errno::EINVAL),
        (None, None) => return Err(Errno::ESRCH),
    };
    cx.install(file, true)
}

/// Whom `pidfd_send_signal(2)` signals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Thread,
    Process,
    Group,
}

impl Scope {
    /// The one that the flags say; none if they leave it to the descriptor.
    fn of(flags: u32) -> Result<Option<Self>> {
        Ok(match flags {
            0 => None,
            1 => Some(Self::Thread),
            2 => Some(Self::Process),
            4 => Some(Self::Group),
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// `pidfd_send_signal(2)`.
pub(super) fn pidfd_send_signal(
    cx: &Ctx<'_>,
    pidfd: i32,
    number: u32,
    info: UserAddr,
    flags: u32,
) -> SyscallResult {
    let scope = Scope::of(flags)?;
    let file = cx.file(pidfd)?;
    let (target, thread) = match proc::process_of(&file) {
        Some(process) => (still_there(cx, &process)?, None),
        None => {
            let of = file.as_ops::<PidFile>().ok_or(Errno::EBADF)?;
            (still_there(cx, &of.process)?, of.thread())
        }
    };
    let scope = scope.unwrap_or(if thread.is_some() { Scope::Thread } else { Scope::Process });
    // Of a process the first thread is meant.
    let find_thread = || match thread {
        Some(task) => task.map(Some),
        None => Ok(cx.pids().find_task(target.pid)),
    };
    let source = if info.is_null() {
        let (pid, uid) = (cx.process().pid, cx.task.creds.get().uid);
        if scope == Scope::Thread { Source::Thread { pid, uid } } else { Source::User { pid, uid } }
    } else {
        let sent: i32 = cx.user().read(info)?;
        if sent != number.cast_signed() {
            return Err(Errno::EINVAL);
        }
        let to_self = scope != Scope::Group && Arc::ptr_eq(&target, cx.process());
        signal::sigqueue::read_info(cx, number, info, to_self)?
    };
    match scope {
        Scope::Thread => {
            signal::permission::signal_task(cx, &target, find_thread()?.as_ref(), number, source)?
        }
        Scope::Process => signal::permission::signal_process(cx, &target, number, source)?,
        Scope::Group => return signal::kill::signal_group(cx, target.pid, number, source),
    }
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

/// Requests for the namespaces of a process (`PIDFD_GET_*_NAMESPACE`), in their order from the first number on.
const NAMESPACES: [Kind; 10] = [
    Kind::Cgroup,
    Kind::Ipc,
    Kind::Mount,
    Kind::Net,
    Kind::Pid,
    Kind::Pid,
    Kind::Time,
    Kind::Time,
    Kind::User,
    Kind::Uts,
];
/// The number in front of the first of them.
const REQUESTS: u32 = 0xff00;

/// `ioctl(2)` of a process's descriptor, as Linux 6.12 has it: it opens the namespaces of the process. What later versions
/// can be asked, such as `PIDFD_GET_INFO`, has an argument, which 6.12 refuses whatever the request. `None`: another file.
pub(super) fn ioctl(cx: &Ctx<'_>, file: &File, request: u32, arg: u64) -> Option<SyscallResult> {
    file.as_ops::<PidFile>().map(|of| open_namespace(cx, of, request, arg))
}

fn open_namespace(cx: &Ctx<'_>, of: &PidFile, request: u32, arg: u64) -> SyscallResult {
    if arg != 0 {
        return Err(Errno::EINVAL);
    }
    let process = still_there(cx, &of.process)?;
    let task = match of.thread() {
        Some(task) => task?,
        None => process.any_task().ok_or(Errno::ESRCH)?,
    };
    inspect::check(cx.task, &task, Inspection::Files).map_err(|_| Errno::EACCES)?;
    let number = request.checked_sub(REQUESTS + 1).and_then(|number| usize::try_from(number).ok());
    let kind = number.and_then(|number| NAMESPACES.get(number)).ok_or(Errno::ENOTTY)?;
    cx.install(ns::open(Namespace::of(&process.container, *kind))?, true)
}

/// `process_mrelease(2)`: a process that is being killed gives its memory back by itself.
pub(super) fn process_mrelease(cx: &Ctx<'_>, pidfd: i32, flags: u32) -> SyscallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let process = pid_process(cx, &*cx.file(pidfd)?)?;
    process.any_task().ok_or(Errno::ESRCH)?;
    if process.group_exit.lock().is_some() { Ok(0) } else { Err(Errno::EINVAL) }
}
