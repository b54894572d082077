//! Users, groups and capabilities.

use abi::word::low32;
use core::sync::atomic::Ordering;

use crate::creds::{CAP_ALL, CAP_SETGID, CAP_SETUID, Creds, id_arg};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::set_id;

use alloc::sync::Arc;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most supplementary groups.
const GROUPS_MAX: u32 = 65_536;

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
    if let Some(node) = cx.container().tree.lock().nodes.get_mut(&cx.process().pid) {
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

/// `setuid(2)`.
pub(super) fn setuid(cx: &Ctx<'_>, id: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_uids(creds.uids().set(id, creds.has(CAP_SETUID))?);
        Ok(())
    })
}

/// `setgid(2)`.
pub(super) fn setgid(cx: &Ctx<'_>, id: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_gids(creds.gids().set(id, creds.has(CAP_SETGID))?);
        Ok(())
    })
}

/// `setreuid(2)`.
pub(super) fn setreuid(cx: &Ctx<'_>, real: u32, effective: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_uids(creds.uids().set_two(real, effective, creds.has(CAP_SETUID))?);
        Ok(())
    })
}

/// `setregid(2)`.
pub(super) fn setregid(cx: &Ctx<'_>, real: u32, effective: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_gids(creds.gids().set_two(real, effective, creds.has(CAP_SETGID))?);
        Ok(())
    })
}

/// `setresuid(2)`.
pub(super) fn setresuid(cx: &Ctx<'_>, real: u32, effective: u32, saved: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_uids(creds.uids().set_three([real, effective, saved], creds.has(CAP_SETUID))?);
        Ok(())
    })
}

/// `setresgid(2)`.
pub(super) fn setresgid(cx: &Ctx<'_>, real: u32, effective: u32, saved: u32) -> SyscallResult {
    change(cx, |creds| {
        creds.set_gids(creds.gids().set_three([real, effective, saved], creds.has(CAP_SETGID))?);
        Ok(())
    })
}

/// `setfsuid(2)`: returns the former id, whether it was changed or not.
pub(super) fn setfsuid(cx: &Ctx<'_>, id: u32) -> SyscallResult {
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
pub(super) fn setfsgid(cx: &Ctx<'_>, id: u32) -> SyscallResult {
    let mut new = (*creds(cx)).clone();
    let old = new.fsgid;
    let known = [new.gid, new.egid, new.sgid, new.fsgid].contains(&id);
    if id_arg(id).is_some() && (known || new.has(CAP_SETGID)) {
        new.fsgid = id;
        commit(cx, new);
    }
    Ok(u64::from(old))
}

/// `getgroups(2)`.
pub(super) fn getgroups(cx: &Ctx<'_>, size: i32, to: UserAddr) -> SyscallResult {
    let groups = creds(cx).groups.clone();
    let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
    if size != 0 {
        if groups.len() > size {
            return Err(Errno::EINVAL);
        }
        let bytes: alloc::vec::Vec<u8> = groups.iter().flat_map(|group| group.to_le_bytes()).collect();
        cx.user().write_bytes(to, &bytes)?;
    }
    Ok(groups.len() as u64)
}

/// `setgroups(2)`.
pub(super) fn setgroups(cx: &Ctx<'_>, size: u32, from: UserAddr) -> SyscallResult {
    change(cx, |creds| {
        if !creds.has(CAP_SETGID) {
            return Err(Errno::EPERM);
        }
        if size > GROUPS_MAX {
            return Err(Errno::EINVAL);
        }
        creds.groups = cx.user().read_array::<u32>(from, size as usize)?.into();
        Ok(())
    })
}

/// `struct __user_cap_header_struct`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct CapHeader {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, Immutable, IntoBytes)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAP_VERSION_1: u32 = 0x1998_0330;
const CAP_VERSION_2: u32 = 0x2007_1026;
const CAP_VERSION_3: u32 = 0x2008_0522;

/// How many words a version's sets have. For an unknown version the supported one is written to the header.
fn cap_words(cx: &Ctx<'_>, header: UserAddr, version: u32) -> Result<usize> {
    match version {
        CAP_VERSION_1 => Ok(1),
        CAP_VERSION_2 | CAP_VERSION_3 => Ok(2),
        _ => {
            cx.user().write(header, &CAP_VERSION_3)?;
            Err(Errno::EINVAL)
        }
    }
}

/// `capget(2)`.
pub(super) fn capget(cx: &Ctx<'_>, header: UserAddr, data: UserAddr) -> SyscallResult {
    let CapHeader { version, pid } = cx.user().read(header)?;
    let words = match cap_words(cx, header, version) {
        Err(Errno::EINVAL) if data.is_null() => return Ok(0),
        words => words?,
    };
    let target = match u32::try_from(pid).map_err(|_| Errno::EINVAL)? {
        0 => creds(cx),
        pid => cx.container().find_task(pid).ok_or(Errno::ESRCH)?.creds.get(),
    };
    if data.is_null() {
        return Ok(0);
    }
    let mut sets = [CapData::default(); 2];
    for (shift, half) in [0, 32].into_iter().zip(&mut sets) {
        let part = |set: u64| low32(set >> shift);
        *half = CapData {
            effective: part(target.effective),
            permitted: part(target.permitted),
            inheritable: part(target.inheritable),
        };
    }
    for (at, half) in sets.iter().take(words).enumerate() {
        cx.user().write(data.offset((at * size_of::<CapData>()) as u64), half)?;
    }
    Ok(0)
}

/// `capset(2)`: of the caller alone.
pub(super) fn capset(cx: &Ctx<'_>, header: UserAddr, data: UserAddr) -> SyscallResult {
    let CapHeader { version, pid } = cx.user().read(header)?;
    let words = cap_words(cx, header, version)?;
    if pid != 0 && pid.cast_unsigned() != cx.task.tid() {
        return Err(Errno::EPERM);
    }
    let sets: alloc::vec::Vec<CapData> = cx.user().read_array(data, words)?;
    let join = |field: fn(&CapData) -> u32| {
        let words = sets.iter().zip([0, 32]);
        words.fold(0u64, |set, (half, shift)| set | u64::from(field(half)) << shift) & CAP_ALL
    };
    let (effective, permitted, inheritable) =
        (join(|half| half.effective), join(|half| half.permitted), join(|half| half.inheritable));
    change(cx, |creds| creds.set_capabilities(effective, permitted, inheritable))
}
