//! Calls on what belongs to the host alone. They refuse a caller without the capability as Linux does, and are not there for
//! one that has it.

use crate::creds::{
    CAP_BPF, CAP_DAC_READ_SEARCH, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_BOOT, CAP_SYS_MODULE, CAP_SYS_PACCT,
    CAP_SYS_RAWIO, CAP_SYS_TTY_CONFIG,
};
use crate::fs::access::Actor;
use crate::fs::walk;
use crate::syscall::context::SyscallResult;
use crate::syscall::unknown::unknown;
use crate::task::context::Ctx;
use crate::tty;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// Refuses the call `number`: `refusal` without any of the capabilities.
fn refuse(cx: &Ctx<'_>, number: u64, capabilities: &[u32], refusal: Errno) -> SyscallResult {
    let creds = cx.task.creds.get();
    if capabilities.iter().any(|capability| creds.has(*capability)) { unknown(number) } else { Err(refusal) }
}

/// `acct(2)`.
pub(super) fn acct(cx: &Ctx<'_>) -> SyscallResult {
    refuse(cx, 163, &[CAP_SYS_PACCT], Errno::EPERM)
}

/// `swapon(2)`.
pub(super) fn swapon(cx: &Ctx<'_>, _path: UserAddr, flags: u32) -> SyscallResult {
    const VALID: u32 = 0x7_ffff;
    if flags & !VALID != 0 {
        return Err(Errno::EINVAL);
    }
    refuse(cx, 167, &[CAP_SYS_ADMIN], Errno::EPERM)
}

/// `swapoff(2)`.
pub(super) fn swapoff(cx: &Ctx<'_>) -> SyscallResult {
    refuse(cx, 168, &[CAP_SYS_ADMIN], Errno::EPERM)
}

/// `quotactl(2)`: no file system has quotas.
pub(super) fn quotactl(cx: &Ctx<'_>, command: u32) -> SyscallResult {
    const KINDS: u32 = 3;
    if command & 0xff >= KINDS {
        return Err(Errno::EINVAL);
    }
    refuse(cx, 179, &[CAP_SYS_ADMIN], Errno::EPERM)
}

/// `init_module(2)`.
pub(super) fn init_module(cx: &Ctx<'_>) -> SyscallResult {
    refuse(cx, 175, &[CAP_SYS_MODULE], Errno::EPERM)
}

/// `delete_module(2)`.
pub(super) fn delete_module(cx: &Ctx<'_>) -> SyscallResult {
    refuse(cx, 176, &[CAP_SYS_MODULE], Errno::EPERM)
}

/// `finit_module(2)`.
pub(super) fn finit_module(cx: &Ctx<'_>) -> SyscallResult {
    refuse(cx, 313, &[CAP_SYS_MODULE], Errno::EPERM)
}

/// `kexec_load(2)`.
pub(super) fn kexec_load(cx: &Ctx<'_>) -> SyscallResult {
    refuse(cx, 246, &[CAP_SYS_BOOT], Errno::EPERM)
}

/// `kexec_file_load(2)`.
pub(super) fn kexec_file_load(cx: &Ctx<'_>) -> SyscallResult {
    refuse(cx, 320, &[CAP_SYS_BOOT], Errno::EPERM)
}

/// `perf_event_open(2)`.
pub(super) fn perf_event_open(cx: &Ctx<'_>) -> SyscallResult {
    refuse(cx, 298, &[CAP_PERFMON, CAP_SYS_ADMIN], Errno::EACCES)
}

/// `bpf(2)`.
pub(super) fn bpf(cx: &Ctx<'_>) -> SyscallResult {
    refuse(cx, 321, &[CAP_BPF, CAP_SYS_ADMIN], Errno::EPERM)
}

/// `iopl(2)`: nobody has any level but 0.
pub(super) fn iopl(cx: &Ctx<'_>, level: u32) -> SyscallResult {
    match level {
        0 => Ok(0),
        1..=3 => refuse(cx, 172, &[CAP_SYS_RAWIO], Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

/// `ioperm(2)`: nobody has any port.
pub(super) fn ioperm(cx: &Ctx<'_>, from: u64, count: u64, on: i32) -> SyscallResult {
    const PORTS: u64 = 65_536;
    if from.checked_add(count).is_none_or(|end| end <= from || end > PORTS) {
        return Err(Errno::EINVAL);
    }
    if on == 0 { Ok(0) } else { refuse(cx, 173, &[CAP_SYS_RAWIO], Errno::EPERM) }
}

/// `vhangup(2)`: without a terminal there is nothing to hang up.
pub(super) fn vhangup(cx: &Ctx<'_>) -> SyscallResult {
    if cx.task.creds.get().has(CAP_SYS_TTY_CONFIG) && tty::controlling_terminal().is_err() {
        return Ok(0);
    }
    refuse(cx, 153, &[CAP_SYS_TTY_CONFIG], Errno::EPERM)
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
