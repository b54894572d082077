//! Users and groups: asking for them (`credentials(7)`).

pub(super) mod capabilities;
pub(super) mod groups;
pub(super) mod setuid;

use core::sync::atomic::Ordering;

use crate::creds::Creds;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::set_id;

use alloc::sync::Arc;
use machine::errno::Result;
use machine::mm::UserAddr;

fn creds(cx: &Ctx<'_>) -> Arc<Creds> {
    cx.task.creds.get()
}

/// Replaces the caller's credentials. A process whose ids change is no longer dumpable, and gets no signal at its
/// parent's end.
pub(super) fn commit(cx: &Ctx<'_>, new: Creds) {
    let old = creds(cx);
    if !set_id::stays_dumpable(&old, &new) {
        cx.process().dumpable.store(0, Ordering::Relaxed);
        cx.task.death_signal.store(0, Ordering::Relaxed);
    }
    if let Some(node) = cx.pids().tree.lock().nodes.get_mut(&cx.process().pid) {
        node.uid = new.uid;
    }
    cx.task.creds.set(Arc::new(new));
}

/// Changes the caller's credentials.
fn change(cx: &Ctx<'_>, how: impl FnOnce(&mut Creds) -> Result<()>) -> SyscallResult {
    let mut new = (*creds(cx)).clone();
    how(&mut new)?;
    commit(cx, new);
    Ok(0)
}

/// `getuid(2)`.
pub(super) fn getuid(cx: &Ctx<'_>) -> SyscallResult {
    Ok(u64::from(creds(cx).uid))
}

/// `geteuid(2)`.
pub(super) fn geteuid(cx: &Ctx<'_>) -> SyscallResult {
    Ok(u64::from(creds(cx).euid))
}

/// `getgid(2)`.
pub(super) fn getgid(cx: &Ctx<'_>) -> SyscallResult {
    Ok(u64::from(creds(cx).gid))
}

/// `getegid(2)`.
pub(super) fn getegid(cx: &Ctx<'_>) -> SyscallResult {
    Ok(u64::from(creds(cx).egid))
}

/// `getresuid(2)`.
pub(super) fn getresuid(cx: &Ctx<'_>, real: UserAddr, effective: UserAddr, saved: UserAddr) -> SyscallResult {
    let creds = creds(cx);
    cx.user().write(real, &creds.uid)?;
    cx.user().write(effective, &creds.euid)?;
    cx.user().write(saved, &creds.suid)?;
    Ok(0)
}

/// `getresgid(2)`.
pub(super) fn getresgid(cx: &Ctx<'_>, real: UserAddr, effective: UserAddr, saved: UserAddr) -> SyscallResult {
    let creds = creds(cx);
    cx.user().write(real, &creds.gid)?;
    cx.user().write(effective, &creds.egid)?;
    cx.user().write(saved, &creds.sgid)?;
    Ok(0)
}
