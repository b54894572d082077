//! Calls on what belongs to the host alone. They refuse a caller without the capability as Linux does, and are not there for
//! one that has it.

use crate::creds::{CAP_DAC_READ_SEARCH, CAP_SYS_TTY_CONFIG};
use crate::fs::access::Actor;
use crate::fs::walk;
use crate::syscall::context::SyscallResult;
use crate::syscall::unknown::unknown;
use crate::task::context::Ctx;
use crate::tty;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// The refusal that stands in a call's line of the table.
pub(super) struct Refusal {
    pub number: u64,
    /// A caller that has any of these is told that there is no such call.
    pub capabilities: &'static [u32],
    /// The error for all others.
    pub error: Errno,
}

/// Refuses a call whatever its arguments are.
pub(super) fn refuse(cx: &Ctx<'_>, refusal: &Refusal) -> SyscallResult {
    let creds = cx.task.creds.get();
    let would_be_allowed = refusal.capabilities.iter().any(|capability| creds.has(*capability));
    if would_be_allowed { unknown(refusal.number) } else { Err(refusal.error) }
}

/// Calls that look at no argument first: `acct(2)`, `bpf(2)` and so on.
pub(super) use self::{
    refuse as acct, refuse as bpf, refuse as delete_module, refuse as finit_module, refuse as init_module,
    refuse as kexec_file_load, refuse as kexec_load, refuse as perf_event_open, refuse as swapoff,
};

/// `swapon(2)`.
pub(super) fn swapon(cx: &Ctx<'_>, _path: UserAddr, flags: u32, refusal: &Refusal) -> SyscallResult {
    const VALID: u32 = 0x7_ffff;
    if flags & !VALID != 0 {
        return Err(Errno::EINVAL);
    }
    refuse(cx, refusal)
}

/// `quotactl(2)`: no file system has quotas.
pub(super) fn quotactl(cx: &Ctx<'_>, command: u32, refusal: &Refusal) -> SyscallResult {
    const KINDS: u32 = 3;
    if command & 0xff >= KINDS {
        return Err(Errno::EINVAL);
    }
    refuse(cx, refusal)
}

/// `iopl(2)`: nobody has any level but 0.
pub(super) fn iopl(cx: &Ctx<'_>, level: u32, refusal: &Refusal) -> SyscallResult {
    match level {
        0 => Ok(0),
        1..=3 => refuse(cx, refusal),
        _ => Err(Errno::EINVAL),
    }
}

/// `ioperm(2)`: nobody has any port.
pub(super) fn ioperm(cx: &Ctx<'_>, from: u64, count: u64, on: i32, refusal: &Refusal) -> SyscallResult {
    const PORTS: u64 = 65_536;
    if from.checked_add(count).is_none_or(|end| end <= from || end > PORTS) {
        return Err(Errno::EINVAL);
    }
    if on == 0 { Ok(0) } else { refuse(cx, refusal) }
}

/// `vhangup(2)`: without a terminal there is nothing to hang up.
pub(super) fn vhangup(cx: &Ctx<'_>, refusal: &Refusal) -> SyscallResult {
    if cx.task.creds.get().has(CAP_SYS_TTY_CONFIG) && tty::controlling_terminal().is_err() {
        return Ok(0);
    }
    refuse(cx, refusal)
}

/// `name_to_handle_at(2)`: as on overlays of Linux, no file has a handle.
pub(super) fn name_to_handle_at(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    handle: UserAddr,
    _mount: UserAddr,
    flags: u32,
) -> SyscallResult {
    const HANDLE_FID: u32 = 0x200;
    const SYMLINK_FOLLOW: u32 = 0x400;
    const EMPTY_PATH: u32 = 0x1000;
    const HANDLE_MAX: u32 = 128;
    if flags & !(HANDLE_FID | SYMLINK_FOLLOW | EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = cx.user().read_path(path)?;
    if !name.is_empty() {
        walk::resolve(cx, &Actor::of(cx), dirfd, &name, flags & SYMLINK_FOLLOW != 0)?;
    } else if flags & EMPTY_PATH == 0 {
        return Err(Errno::ENOENT);
    } else if dirfd != walk::AT_FDCWD {
        cx.file(dirfd)?;
    }
    if cx.user().read::<u32>(handle)? > HANDLE_MAX {
        return Err(Errno::EINVAL);
    }
    Err(Errno::EOPNOTSUPP)
}

/// `open_by_handle_at(2)`: a handle that was not given out is stale.
pub(super) fn open_by_handle_at(cx: &Ctx<'_>, mount: i32, handle: UserAddr) -> SyscallResult {
    if !cx.task.creds.get().has(CAP_DAC_READ_SEARCH) {
        return Err(Errno::EPERM);
    }
    if mount != walk::AT_FDCWD {
        cx.file(mount)?;
    }
    match cx.user().read::<u32>(handle)? {
        1..=128 => Err(Errno::ESTALE),
        _ => Err(Errno::EINVAL),
    }
}
