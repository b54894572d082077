//! Duplicating descriptors: `dup(2)` and its relatives.

use crate::config::NR_OPEN;
use crate::fs::file::OpenFlags;
use crate::limits::RLIMIT_NOFILE;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::Errno;

pub(super) fn limit(cx: &Ctx<'_>) -> u64 {
    cx.limit(RLIMIT_NOFILE).min(NR_OPEN)
}

/// `dup(2)`.
pub(super) fn dup(cx: &Ctx<'_>, fd: i32) -> SyscallResult {
    cx.install(cx.file(fd)?, false)
}

fn duplicate_to(cx: &Ctx<'_>, old: i32, new: i32, close_on_exec: bool) -> SyscallResult {
    let file = cx.file(old)?;
    if let Some(closed) = cx.files().replace(new, file, close_on_exec, limit(cx))? {
        cx.files().closed(closed);
    }
    Ok(u64::from(new.cast_unsigned()))
}

/// `dup2(2)`.
pub(super) fn dup2(cx: &Ctx<'_>, old: i32, new: i32) -> SyscallResult {
    if old == new {
        cx.file(old)?;
        return Ok(u64::from(new.cast_unsigned()));
    }
    duplicate_to(cx, old, new, false)
}

/// `dup3(2)`.
pub(super) fn dup3(cx: &Ctx<'_>, old: i32, new: i32, flags: u32) -> SyscallResult {
    let flags = OpenFlags::from_bits_retain(flags);
    if old == new || !OpenFlags::CLOEXEC.contains(flags) {
        return Err(Errno::EINVAL);
    }
    duplicate_to(cx, old, new, flags.contains(OpenFlags::CLOEXEC))
}
