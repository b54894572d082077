//! Changing users and groups: `setuid(2)` and its relatives.

use crate::creds::{CAP_SETGID, CAP_SETUID, id_arg};
use crate::syscall::context::SyscallResult;
use crate::syscall::creds::{change, commit, creds};
use crate::task::context::Ctx;

/// `setuid(2)`.
pub(in crate::syscall) fn setuid(cx: &Ctx<'_>, id: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_uids(creds.uids().set(id, creds.has(CAP_SETUID))?);
        Ok(())
    })
}

/// `setgid(2)`.
pub(in crate::syscall) fn setgid(cx: &Ctx<'_>, id: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_gids(creds.gids().set(id, creds.has(CAP_SETGID))?);
        Ok(())
    })
}

/// `setreuid(2)`.
pub(in crate::syscall) fn setreuid(cx: &Ctx<'_>, real: u32, effective: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_uids(creds.uids().set_two(real, effective, creds.has(CAP_SETUID))?);
        Ok(())
    })
}

/// `setregid(2)`.
pub(in crate::syscall) fn setregid(cx: &Ctx<'_>, real: u32, effective: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_gids(creds.gids().set_two(real, effective, creds.has(CAP_SETGID))?);
        Ok(())
    })
}

/// `setresuid(2)`.
pub(in crate::syscall) fn setresuid(cx: &Ctx<'_>, real: u32, effective: u32, saved: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_uids(creds.uids().set_three([real, effective, saved], creds.has(CAP_SETUID))?);
        Ok(())
    })
}

/// `setresgid(2)`.
pub(in crate::syscall) fn setresgid(cx: &Ctx<'_>, real: u32, effective: u32, saved: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_gids(creds.gids().set_three([real, effective, saved], creds.has(CAP_SETGID))?);
        Ok(())
    })
}

/// `setfsuid(2)`: returns the former id, whether it was changed or not.
pub(in crate::syscall) fn setfsuid(cx: &Ctx<'_>, id: u32) -> SyscallResult {
    let mut new = (*creds(cx)).clone();
    let old = new.fsuid;
    let known = [new.uid, new.euid, new.suid, new.fsuid].contains(&id);
    if id_arg(id).is_some() && (known || new.has(CAP_SETUID)) {
        new.set_fsuid(id);
        commit(cx, new);
    }
    Ok(u64::from(old))
}

/// `setfsgid(2)`: returns the former id, whether it was changed or not.
pub(in crate::syscall) fn setfsgid(cx: &Ctx<'_>, id: u32) -> SyscallResult {
    let mut new = (*creds(cx)).clone();
    let old = new.fsgid;
    let known = [new.gid, new.egid, new.sgid, new.fsgid].contains(&id);
    if id_arg(id).is_some() && (known || new.has(CAP_SETGID)) {
        new.fsgid = id;
        commit(cx, new);
    }
    Ok(u64::from(old))
}
