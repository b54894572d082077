//! `rename(2)` and its relatives.

use crate::fs::access::Actor;
use crate::fs::names;
use crate::fs::names::{RENAME_EXCHANGE, RENAME_NOREPLACE};
use crate::fs::walk::AT_FDCWD;
use crate::syscall::context::SyscallResult;
use crate::syscall::names::path_argument;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// `renameat2(2)`.
pub(in crate::syscall) fn renameat2(
    cx: &Ctx<'_>,
    old_dirfd: i32,
    old: UserAddr,
    new_dirfd: i32,
    new: UserAddr,
    flags: u32,
) -> SyscallResult {
    const BOTH: u32 = RENAME_NOREPLACE | RENAME_EXCHANGE;
    // RENAME_WHITEOUT is for overlay file systems, of which the sandbox makes none.
    if flags & !BOTH != 0 || flags == BOTH {
        return Err(Errno::EINVAL);
    }
    let actor = Actor::of(cx);
    let (old_start, old) = path_argument(cx, &actor, old_dirfd, old)?;
    let (new_start, new) = path_argument(cx, &actor, new_dirfd, new)?;
    names::rename(&actor, (old_start, &old), (new_start, &new), flags).map(|()| 0)
}

/// `renameat(2)`.
pub(in crate::syscall) fn renameat(
    cx: &Ctx<'_>,
    old_dirfd: i32,
    old: UserAddr,
    new_dirfd: i32,
    new: UserAddr,
) -> SyscallResult {
    renameat2(cx, old_dirfd, old, new_dirfd, new, 0)
}

/// `rename(2)`.
pub(in crate::syscall) fn rename(cx: &Ctx<'_>, old: UserAddr, new: UserAddr) -> SyscallResult {
    renameat2(cx, AT_FDCWD, old, AT_FDCWD, new, 0)
}
