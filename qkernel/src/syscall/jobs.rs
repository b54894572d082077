//! Process groups and sessions.

use core::sync::atomic::Ordering;

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::process::Autogroup;
use crate::task::tree::Node;
use machine::errno::{Errno, Result};

/// A field of a process's place in the tree; 0 asks for the caller.
fn ask(cx: &Ctx<'_>, pid: i32, field: impl Fn(&Node) -> u32) -> SyscallResult {
    let pid = match pid {
        0 => cx.process().pid,
        pid => u32::try_from(pid).map_err(|_| Errno::ESRCH)?,
    };
    let tree = cx.pids().tree.lock();
    let node = tree.nodes.get(&pid).or_else(|| {
        let task = tree.tasks.get(&pid)?.upgrade()?;
        tree.nodes.get(&task.process.pid)
    });
    Ok(u64::from(field(node.ok_or(Errno::ESRCH)?)))
}

/// `getpgid(2)`.
pub(super) fn getpgid(cx: &Ctx<'_>, pid: i32) -> SyscallResult {
    ask(cx, pid, |node| node.group)
}

/// `getpgrp(2)`.
pub(super) fn getpgrp(cx: &Ctx<'_>) -> SyscallResult {
    getpgid(cx, 0)
}

/// `getsid(2)`.
pub(super) fn getsid(cx: &Ctx<'_>, pid: i32) -> SyscallResult {
    ask(cx, pid, |node| node.session)
}

/// `setpgid(2)`.
pub(super) fn setpgid(cx: &Ctx<'_>, pid: i32, group: i32) -> SyscallResult {
    let me = cx.process().pid;
    let pid = if pid == 0 { me.cast_signed() } else { pid };
    let group = u32::try_from(if group == 0 { pid } else { group }).map_err(|_| Errno::EINVAL)?;
    let pid = u32::try_from(pid).map_err(|_| Errno::ESRCH)?;
    let mut tree = cx.pids().tree.lock();
    let session = tree.nodes.get(&me).ok_or(Errno::ESRCH)?.session;
    let node = tree.nodes.get(&pid).ok_or(Errno::ESRCH)?;
    check_mover(node, pid, me, session)?;
    let exists = || tree.nodes.values().any(|node| node.group == group && node.session == session);
    if group != pid && !exists() {
        return Err(Errno::EPERM);
    }
    if let Some(node) = tree.nodes.get_mut(&pid) {
        node.group = group;
    }
    Ok(0)
}

/// Whether `me` may move the process: itself, or a child of its session that has not executed another program.
fn check_mover(node: &Node, pid: u32, me: u32, session: u32) -> Result<()> {
    if pid != me {
        if node.parent() != me {
            return Err(Errno::ESRCH);
        }
        if node.session != session {
            return Err(Errno::EPERM);
        }
        if node.process.programs.load(Ordering::Relaxed) != 0 {
            return Err(Errno::EACCES);
        }
    }
    if node.session == pid { Err(Errno::EPERM) } else { Ok(()) }
}

/// `setsid(2)`.
pub(super) fn setsid(cx: &Ctx<'_>) -> SyscallResult {
    let me = cx.process().pid;
    let mut tree = cx.pids().tree.lock();
    if tree.nodes.values().any(|node| node.group == me) {
        return Err(Errno::EPERM);
    }
    let node = tree.nodes.get_mut(&me).ok_or(Errno::ESRCH)?;
    node.group = me;
    node.session = me;
    cx.process().autogroup.set(Autogroup::new());
    Ok(u64::from(me))
}
