//! Sending signals: `kill(2)`, `tkill(2)`, `tgkill(2)`.

use crate::signals::Source;
use crate::syscall::context::SyscallResult;
use crate::syscall::signal::permission::{check_permission, send, signal_process};
use crate::task::container::FIRST_PID;
use crate::task::context::Ctx;
use crate::task::process::Process;

use alloc::sync::Arc;
use machine::errno::Errno;
use machine::sched::work;

fn from_me(cx: &Ctx<'_>) -> Source {
    Source::User { pid: cx.process().pid, uid: cx.task.creds.get().uid }
}

/// Signals many processes: success if one of them could be signalled, `ESRCH` if there are none.
fn signal_many(cx: &Ctx<'_>, targets: &[Arc<Process>], number: u32, source: Source) -> SyscallResult {
    let mut result = Err(Errno::ESRCH);
    for target in targets {
        work::count(8);
        match signal_process(cx, target, number, source) {
            Ok(()) => result = Ok(0),
            Err(error) if result.is_err() => result = Err(error),
            Err(_) => {}
        }
    }
    result
}

/// Signals a process group by the id of its first process.
pub(in crate::syscall) fn signal_group(
    cx: &Ctx<'_>,
    group: u32,
    number: u32,
    source: Source,
) -> SyscallResult {
    let targets = cx.pids().tree.lock().group_members(group);
    signal_many(cx, &targets, number, source)
}

/// `kill(2)`.
pub(in crate::syscall) fn kill(cx: &Ctx<'_>, pid: i32, number: u32) -> SyscallResult {
    let me = cx.process().pid;
    match pid {
        i32::MIN => Err(Errno::ESRCH),
        -1 => {
            let targets: alloc::vec::Vec<Arc<Process>> = {
                let tree = cx.pids().tree.lock();
                let others = tree.nodes.iter().filter(|(pid, _)| **pid != me && **pid != FIRST_PID);
                others.map(|(_, node)| node.process.clone()).collect()
            };
            signal_many(cx, &targets, number, from_me(cx))
        }
        pid if pid <= 0 => {
            let targets = {
                let tree = cx.pids().tree.lock();
                let own = tree.nodes.get(&me).map_or(0, |node| node.group);
                tree.group_members(if pid == 0 { own } else { pid.unsigned_abs() })
            };
            signal_many(cx, &targets, number, from_me(cx))
        }
        pid => {
            let target = cx.pids().find_process(pid.unsigned_abs()).or_else(|| {
                // As on Linux a thread's id stands for its process.
                cx.pids().find_task(pid.unsigned_abs()).map(|task| task.process.clone())
            });
            signal_process(cx, &target.ok_or(Errno::ESRCH)?, number, from_me(cx))?;
            Ok(0)
        }
    }
}

pub(super) fn signal_thread(
    cx: &Ctx<'_>,
    tgid: Option<u32>,
    tid: i32,
    number: u32,
    source: Source,
) -> SyscallResult {
    let tid = u32::try_from(tid).ok().filter(|tid| *tid != 0).ok_or(Errno::EINVAL)?;
    let Some(task) = cx.pids().find_task(tid) else {
        // The first thread of a process is there until the process is waited for.
        let ended = cx.pids().find_process(tid).filter(|_| tgid.is_none_or(|tgid| tgid == tid));
        return check_permission(cx, &ended.ok_or(Errno::ESRCH)?, number).map(|()| 0);
    };
    if tgid.is_some_and(|tgid| tgid != task.process.pid) {
        return Err(Errno::ESRCH);
    }
    check_permission(cx, &task.process, number)?;
    send(&task.process, Some(&task), number, source)?;
    Ok(0)
}

fn thread_source(cx: &Ctx<'_>) -> Source {
    Source::Thread { pid: cx.process().pid, uid: cx.task.creds.get().uid }
}

/// `tkill(2)`.
pub(in crate::syscall) fn tkill(cx: &Ctx<'_>, tid: i32, number: u32) -> SyscallResult {
    signal_thread(cx, None, tid, number, thread_source(cx))
}

/// `tgkill(2)`.
pub(in crate::syscall) fn tgkill(cx: &Ctx<'_>, tgid: i32, tid: i32, number: u32) -> SyscallResult {
    let tgid = u32::try_from(tgid).ok().filter(|tgid| *tgid != 0).ok_or(Errno::EINVAL)?;
    signal_thread(cx, Some(tgid), tid, number, thread_source(cx))
}
