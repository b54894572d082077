//! Waiting for children: `wait4(2)`.

pub(super) mod waitid;

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::exit;
use crate::task::tree::{Report, Tree};
use crate::task::used::Used;
use core::sync::atomic::Ordering;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

const WNOHANG: u32 = 1;
const WUNTRACED: u32 = 2;
const WEXITED: u32 = 4;
const WCONTINUED: u32 = 8;
const WNOWAIT: u32 = 0x0100_0000;
const WNOTHREAD: u32 = 0x2000_0000;
const WALL: u32 = 0x4000_0000;
const WCLONE: u32 = 0x8000_0000;

/// Which children a wait is about.
#[derive(Clone, Copy)]
enum Who {
    Any,
    Pid(u32),
    Group(u32),
}

/// The child that a wait has found.
struct Waited {
    pid: u32,
    uid: u32,
    status: i32,
    report: Option<Report>,
    used: Used,
}

fn find(tree: &mut Tree, me: u32, who: Who, options: u32) -> Result<Option<Waited>> {
    let children = tree.nodes.get(&me).map(|node| node.children.clone()).unwrap_or_default();
    let mut any = false;
    for pid in children {
        let Some(node) = tree.nodes.get_mut(&pid) else { continue };
        let matches = match who {
            Who::Any => true,
            Who::Pid(wanted) => pid == wanted,
            Who::Group(group) => node.group == group,
        };
        let clone_child = node.process.exit_signal.load(Ordering::Relaxed) != crate::signals::SIGCHLD;
        let kind = options & WALL != 0 || clone_child == (options & WCLONE != 0);
        if !matches || !kind {
            continue;
        }
        // One that has ended neither stops nor continues any more.
        if node.exit_status.is_some() && options & WEXITED == 0 {
            continue;
        }
        any = true;
        let wanted_report = match node.report {
            Some(Report::Stopped(_)) => options & WUNTRACED != 0,
            Some(Report::Continued) => options & WCONTINUED != 0,
            None => false,
        };
        let ended = node.exit_status;
        if ended.is_none() && !wanted_report {
            continue;
        }
        let report = if ended.is_some() { None } else { node.report };
        if report.is_some() && options & WNOWAIT == 0 {
            node.report = None;
        }
        let used = node.process.used_with_children();
        return Ok(Some(Waited { pid, uid: node.uid, status: ended.unwrap_or(0), report, used }));
    }
    if any { Ok(None) } else { Err(Errno::ECHILD) }
}

fn wait(cx: &Ctx<'_>, who: Who, options: u32) -> Result<Option<Waited>> {
    let me = cx.process().pid;
    let look = || match find(&mut cx.pids().tree.lock(), me, who, options) {
        Ok(None) if options & WNOHANG == 0 => None,
        result => Some(result),
    };
    let waited = cx.process().child_wait.wait(look)??;
    if let Some(child) = &waited
        && child.report.is_none()
        && options & WNOWAIT == 0
    {
        exit::reap(cx.pids(), child.pid);
    }
    Ok(waited)
}

/// `wait4(2)`.
pub(super) fn wait4(
    cx: &Ctx<'_>,
    pid: i32,
    status: UserAddr,
    options: u32,
    usage: UserAddr,
) -> SyscallResult {
    if options & !(WNOHANG | WUNTRACED | WCONTINUED | WNOTHREAD | WALL | WCLONE) != 0 {
        return Err(Errno::EINVAL);
    }
    let who = match pid {
        -1 => Who::Any,
        0 => Who::Group(cx.pids().tree.lock().nodes.get(&cx.process().pid).map_or(0, |node| node.group)),
        i32::MIN => return Err(Errno::ESRCH),
        pid if pid < 0 => Who::Group(pid.unsigned_abs()),
        pid => Who::Pid(pid.unsigned_abs()),
    };
    let Some(child) = wait(cx, who, options | WEXITED)? else { return Ok(0) };
    let word = match child.report {
        Some(Report::Stopped(signal)) => signal.cast_signed() << 8 | 0x7f,
        Some(Report::Continued) => 0xffff,
        None => child.status,
    };
    cx.user().write_opt(status, &word)?;
    if !usage.is_null() {
        cx.user().write(usage, &child.used.rusage())?;
    }
    Ok(u64::from(child.pid))
}
