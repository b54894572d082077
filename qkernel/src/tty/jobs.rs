//! Job control: the session that a terminal belongs to, and the processes that may use it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::creds::CAP_SYS_ADMIN;
use crate::signals::{SIGCONT, SIGHUP, SIGTTIN, Source};
use crate::task;
use crate::task::container;
use crate::task::core::Task;
use crate::task::signal;
use crate::task::terminal::Terminal;
use crate::task::tree::{SessionTerminal, Tree};
use crate::tty::Tty;
use machine::errno::{Errno, Result};

/// Whether a session's terminal is this one.
fn is_same(terminal: &SessionTerminal, tty: &Tty) -> bool {
    core::ptr::addr_eq(Arc::as_ptr(&terminal.terminal), tty)
}

/// Group and session of a task's process.
fn place_of(tree: &Tree, task: &Task) -> Option<(u32, u32)> {
    tree.nodes.get(&task.process.pid).map(|node| (node.group, node.session))
}

/// The session the terminal belongs to.
pub fn session_of(tty: &Tty) -> Option<u32> {
    tty.pids.upgrade().and_then(|pids| session_in(&pids.tree.lock(), tty))
}

fn session_in(tree: &Tree, tty: &Tty) -> Option<u32> {
    tree.terminals.iter().find(|(_, terminal)| is_same(terminal, tty)).map(|(session, _)| *session)
}

/// The caller's session, if the terminal is its own; `ENOTTY`.
pub fn own_session(tty: &Tty) -> Result<u32> {
    let task = task::current();
    let tree = task.process.container.pids.tree.lock();
    let (_, session) = place_of(&tree, &task).ok_or(Errno::ENOTTY)?;
    let own = tree.terminals.get(&session).is_some_and(|terminal| is_same(terminal, tty));
    if own { Ok(session) } else { Err(Errno::ENOTTY) }
}

/// The terminal of the caller's session; `ENXIO`.
pub fn controlling_terminal() -> Result<Arc<dyn Terminal>> {
    let task = task::current();
    let tree = task.process.container.pids.tree.lock();
    let (_, session) = place_of(&tree, &task).ok_or(Errno::ENXIO)?;
    tree.terminals.get(&session).map(|found| found.terminal.clone()).ok_or(Errno::ENXIO)
}

/// Stops the caller's group with `signal` if it is in the background: then `EIO`, or `Errno::RESTART` after the stop.
/// A process that ignores or blocks `SIGTTOU` may go on.
pub fn check_background(tty: &Tty, signal: u32) -> Result<()> {
    let task = task::current();
    let foreground = tty.foreground.load(Ordering::Acquire);
    let (group, orphaned) = {
        let tree = task.process.container.pids.tree.lock();
        let Some((group, session)) = place_of(&tree, &task) else { return Ok(()) };
        let own = tree.terminals.get(&session).is_some_and(|terminal| is_same(terminal, tty));
        if !own || foreground == 0 || group == foreground {
            return Ok(());
        }
        (group, tree.is_orphaned(group, 0))
    };
    if signal::is_blocked_or_ignored(&task, signal) {
        return if signal == SIGTTIN { Err(Errno::EIO) } else { Ok(()) };
    }
    if orphaned {
        return Err(Errno::EIO);
    }
    signal::send_to_group(&task.process.container.pids, group, signal, Source::Kernel);
    Err(Errno::RESTART)
}

/// `TIOCSCTTY`: makes it the terminal of the caller's session. `steal`: even from another session, if the caller is
/// privileged. `quietly`: for `open(2)`, which takes only a terminal without a session.
pub fn take_as_controlling(tty: &Arc<Tty>, steal: bool, quietly: bool) -> Result<()> {
    let task = task::current();
    let mut tree = task.process.container.pids.tree.lock();
    let (group, session) = place_of(&tree, &task).ok_or(Errno::EPERM)?;
    if let Some(present) = tree.terminals.get(&session) {
        return if is_same(present, tty) && !quietly { Ok(()) } else { Err(Errno::EPERM) };
    }
    if session != task.process.pid {
        return Err(Errno::EPERM);
    }
    if let Some(other) = session_in(&tree, tty) {
        if !steal || !task.creds.get().has(CAP_SYS_ADMIN) {
            return Err(Errno::EPERM);
        }
        tree.terminals.remove(&other);
    }
    let terminal: Arc<dyn Terminal> = tty.clone();
    tree.terminals.insert(session, SessionTerminal { terminal });
    tty.foreground.store(group, Ordering::Release);
    Ok(())
}

/// `TIOCNOTTY`: a session's leader gives the terminal up for all of it.
pub fn give_up(tty: &Tty) -> Result<()> {
    let session = own_session(tty)?;
    let process = task::current().process.clone();
    if session == process.pid {
        let terminal = process.container.pids.tree.lock().terminals.remove(&session);
        let group = tty.foreground.swap(0, Ordering::AcqRel);
        tty.signal_group(group, SIGHUP);
        tty.signal_group(group, SIGCONT);
        terminal.iter().for_each(|terminal| terminal.terminal.left());
    }
    Ok(())
}

/// `TIOCSPGRP`: makes `group` the foreground one.
pub fn set_foreground(tty: &Tty, group: i32) -> Result<()> {
    let checked = check_background(tty, crate::signals::SIGTTOU);
    checked.map_err(|error| if error == Errno::EIO { Errno::ENOTTY } else { error })?;
    let session = own_session(tty)?;
    let group = u32::try_from(group).map_err(|_| Errno::EINVAL)?;
    let container = container::current();
    let members: Vec<u32> = {
        let tree = container.pids.tree.lock();
        tree.nodes.values().filter(|node| node.group == group).map(|node| node.session).collect()
    };
    if members.is_empty() {
        return Err(Errno::ESRCH);
    }
    if !members.contains(&session) {
        return Err(Errno::EPERM);
    }
    tty.foreground.store(group, Ordering::Release);
    Ok(())
}

/// The line is cut: the session's leader and the foreground group are told, and the session has no terminal any more.
pub fn hang_up(tty: &Tty) {
    let Some(pids) = tty.pids.upgrade() else { return };
    let (leader, terminal) = {
        let mut tree = pids.tree.lock();
        let session = session_in(&tree, tty);
        (session, session.and_then(|session| tree.terminals.remove(&session)))
    };
    drop(terminal);
    if let Some(leader) = leader.and_then(|leader| pids.find_process(leader)) {
        signal::send_to_process(&leader, SIGHUP, Source::Kernel);
        signal::send_to_process(&leader, SIGCONT, Source::Kernel);
    }
    let group = tty.foreground.swap(0, Ordering::AcqRel);
    tty.signal_group(group, SIGHUP);
    tty.signal_group(group, SIGCONT);
}
