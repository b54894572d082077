//! Signals about files: the `F_SETOWN` and `F_SETSIG` family of `fcntl(2)`, `O_ASYNC`, the `ioctl(2)`s for them, and leases.

use alloc::sync::Arc;

use crate::creds::CAP_LEASE;
use crate::fs::file::{File, OpenFlags};
use crate::fs::leases;
use crate::fs::sigio::{self, Kind, Owner, OwnerKind};
use crate::net::SocketFile;
use crate::signals::SIGRTMAX;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::io_owner::IoOwner;
use abi::word::low32;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(super) const F_SETOWN: u32 = 8;
const F_GETOWN: u32 = 9;
const F_SETSIG: u32 = 10;
pub(super) const F_GETSIG: u32 = 11;
pub(super) const F_SETOWN_EX: u32 = 15;
pub(super) const F_GETOWN_EX: u32 = 16;

const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;

const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;
const FIOGETOWN: u32 = 0x8903;
const SIOCGPGRP: u32 = 0x8904;

/// `struct f_owner_ex`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct OwnerEx {
    kind: i32,
    id: i32,
}

/// The owner of this kind; `None` for the id 0.
fn find(cx: &Ctx<'_>, kind: OwnerKind, id: i32) -> Result<Option<Arc<dyn Owner>>> {
    match u32::try_from(id) {
        Ok(0) => Ok(None),
        Ok(id) => IoOwner::find(cx.pids(), kind, id).map(Some),
        Err(_) => Err(Errno::ESRCH),
    }
}

/// Makes a process, or with a negative number a group, the receiver.
fn set_owner(cx: &Ctx<'_>, file: &Arc<File>, id: i32) -> Result<()> {
    let owner = if id < 0 {
        find(cx, OwnerKind::Group, id.checked_neg().ok_or(Errno::EINVAL)?)?
    } else {
        find(cx, OwnerKind::Process, id)?
    };
    sigio::set_owner(file, owner)
}

/// The receiver's id, negative for a group; 0: there is none.
fn owner_id(cx: &Ctx<'_>, file: &File) -> i32 {
    let Some(owner) = sigio::owner(file) else { return 0 };
    let id = owner.seen_by(cx.caller).cast_signed();
    if owner.kind() == OwnerKind::Group { -id } else { id }
}

/// The commands of `fcntl(2)`.
pub(super) fn command(cx: &Ctx<'_>, file: &Arc<File>, command: u32, arg: u64) -> SyscallResult {
    match command {
        F_SETOWN => set_owner(cx, file, low32(arg).cast_signed())?,
        F_GETOWN => return Ok(i64::from(owner_id(cx, file)).cast_unsigned()),
        F_SETSIG => {
            let signal = u32::try_from(arg).ok().filter(|signal| *signal <= SIGRTMAX).ok_or(Errno::EINVAL)?;
            sigio::set_signal(file, signal)?;
        }
        F_GETSIG => return Ok(u64::from(sigio::signal(file))),
        F_SETOWN_EX => {
            let new: OwnerEx = cx.user().read(UserAddr::new(arg))?;
            let kind = match new.kind {
                0 => OwnerKind::Thread,
                1 => OwnerKind::Process,
                2 => OwnerKind::Group,
                _ => return Err(Errno::EINVAL),
            };
            sigio::set_owner(file, find(cx, kind, new.id)?)?;
        }
        _ => {
            let shown = match sigio::owner(file) {
                None => OwnerEx { kind: 0, id: 0 },
                Some(owner) => {
                    OwnerEx { kind: owner.kind() as i32, id: owner.seen_by(cx.caller).cast_signed() }
                }
            };
            cx.user().write(UserAddr::new(arg), &shown)?;
        }
    }
    Ok(0)
}

/// Changes `O_ASYNC` as `flags` say, before they become the file's; answers whether it is set then. It stays as it is where the file
/// sends no signals.
pub(super) fn switch(cx: &Ctx<'_>, file: &Arc<File>, fd: i32, flags: OpenFlags) -> Result<bool> {
    let (was, on) = (file.flags().contains(OpenFlags::ASYNC), flags.contains(OpenFlags::ASYNC));
    if on == was {
        return Ok(on);
    }
    if !sigio::switch(file, fd, on)? {
        return Ok(was);
    }
    if let (true, Some(Kind::Terminal(terminal)), None) = (on, file.ops.signals(), sigio::owner(file)) {
        let group = terminal.group(cx.caller.pid_space()).cast_signed();
        let group = find(cx, OwnerKind::Group, group).unwrap_or_default();
        let owner = match group {
            Some(group) => Some(group),
            None => find(cx, OwnerKind::Process, cx.process().pid.cast_signed())?,
        };
        sigio::set_owner(file, owner)?;
    }
    Ok(on)
}

/// `F_SETLEASE`. Who has said nothing else gets the signals that tell of it.
pub(super) fn set_lease(cx: &Ctx<'_>, file: &Arc<File>, fd: i32, kind: u32) -> SyscallResult {
    if !matches!(kind, F_RDLCK | F_WRLCK | F_UNLCK) {
        return Err(Errno::EINVAL);
    }
    let stat = file.ops.stat(file)?;
    let creds = cx.caller.creds();
    if stat.uid != creds.fsuid && !creds.has(CAP_LEASE) {
        return Err(Errno::EACCES);
    }
    if !stat.is_regular() {
        return Err(Errno::EINVAL);
    }
    if kind == F_UNLCK {
        return leases::remove(file).map(|()| 0);
    }
    // First, or whoever opens the file right after would have nobody to tell.
    let own = match sigio::owner(file) {
        Some(_) => None,
        None => find(cx, OwnerKind::Process, cx.process().pid.cast_signed())?,
    };
    if own.is_some() {
        sigio::set_owner(file, own.clone())?;
    }
    let set = leases::set(file, fd, kind == F_WRLCK);
    if let (Err(_), Some(own)) = (set, own) {
        sigio::forget_owner(file, &own);
    }
    set.map(|()| 0)
}

/// `F_GETLEASE`.
pub(super) fn lease(file: &File) -> u64 {
    u64::from(match leases::get(file) {
        None => F_UNLCK,
        Some(false) => F_RDLCK,
        Some(true) => F_WRLCK,
    })
}

/// The requests of `ioctl(2)` that sockets have for the receiver; `None` for any other.
pub(super) fn ioctl(cx: &Ctx<'_>, file: &Arc<File>, request: u32, arg: u64) -> Option<SyscallResult> {
    if !matches!(request, FIOSETOWN | SIOCSPGRP | FIOGETOWN | SIOCGPGRP) || SocketFile::of(file).is_err() {
        return None;
    }
    let at = UserAddr::new(arg);
    let result = if matches!(request, FIOSETOWN | SIOCSPGRP) {
        cx.user().read(at).and_then(|id: i32| set_owner(cx, file, id))
    } else {
        cx.user().write(at, &owner_id(cx, file))
    };
    Some(result.map(|()| 0))
}
