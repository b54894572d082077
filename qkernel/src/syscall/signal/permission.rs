//! Who may signal whom.

use crate::creds::{CAP_KILL, Creds};
use crate::signals::{SIGCONT, SIGRTMAX, Source};
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::process::Process;
use crate::task::signal;
use crate::task::signal::info::SigInfo;
use crate::task::signal::send::Sent;

use alloc::sync::Arc;
use machine::errno::{Errno, Result};

/// A signal number that may be 0: then only permission is checked.
fn check_number(number: u32) -> Result<()> {
    if number <= SIGRTMAX { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Whether the caller may signal a process with these ids.
fn may_signal(me: &Creds, uid: u32, suid: u32) -> bool {
    [me.euid, me.uid].iter().any(|id| *id == uid || *id == suid) || me.has(CAP_KILL)
}

pub(super) fn check_permission(cx: &Ctx<'_>, target: &Arc<Process>, number: u32) -> Result<()> {
    check_number(number)?;
    if Arc::ptr_eq(target, cx.process()) {
        return Ok(());
    }
    let me = cx.task.creds.get();
    let (uid, suid) = match target.any_task() {
        Some(task) => {
            let creds = task.creds.get();
            (creds.uid, creds.suid)
        }
        None => {
            let uid = cx.pids().tree.lock().nodes.get(&target.pid).map_or(0, |node| node.uid);
            (uid, uid)
        }
    };
    let same_session = || {
        let tree = cx.pids().tree.lock();
        let session = |pid: u32| tree.nodes.get(&pid).map(|node| node.session);
        session(target.pid) == session(cx.process().pid)
    };
    if may_signal(&me, uid, suid) || (number == SIGCONT && same_session()) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Sends a signal after checking permission; number 0 only checks. Also for `pidfd_send_signal(2)`.
pub(in crate::syscall) fn signal_process(
    cx: &Ctx<'_>,
    target: &Arc<Process>,
    number: u32,
    source: Source,
) -> Result<()> {
    check_permission(cx, target, number)?;
    send(target, None, number, source)
}

/// Sends a signal to one thread of a process after checking permission; one that has ended takes none.
pub(in crate::syscall) fn signal_task(
    cx: &Ctx<'_>,
    target: &Arc<Process>,
    task: Option<&Arc<Task>>,
    number: u32,
    source: Source,
) -> Result<()> {
    check_permission(cx, target, number)?;
    match task {
        Some(task) => send(target, Some(task), number, source),
        None => Ok(()),
    }
}

pub(super) fn send(
    target: &Arc<Process>,
    task: Option<&Arc<Task>>,
    number: u32,
    source: Source,
) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    match signal::send(target, task, SigInfo { signal: number, source }) {
        Sent::Full => Err(Errno::EAGAIN),
        _ => Ok(()),
    }
}
