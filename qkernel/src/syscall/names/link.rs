//! `link(2)` and `symlink(2)`.

use crate::creds::CAP_DAC_READ_SEARCH;
use crate::fs::access::Actor;
use crate::fs::names;
use crate::fs::walk;
use crate::fs::walk::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use crate::syscall::context::SyscallResult;
use crate::syscall::names::path_argument;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;

const AT_SYMLINK_FOLLOW: u32 = 0x400;

/// `symlinkat(2)`.
pub(in crate::syscall) fn symlinkat(
    cx: &Ctx<'_>,
    target: UserAddr,
    dirfd: i32,
    path: UserAddr,
) -> SyscallResult {
    let actor = Actor::of(cx);
    let target = cx.user().read_path(target)?;
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    let (start, text) = path_argument(cx, &actor, dirfd, path)?;
    names::symlink(&actor, start, &text, &target).map(|()| 0)
}

/// `symlink(2)`.
pub(in crate::syscall) fn symlink(cx: &Ctx<'_>, target: UserAddr, path: UserAddr) -> SyscallResult {
    symlinkat(cx, target, AT_FDCWD, path)
}

/// `linkat(2)`.
pub(in crate::syscall) fn linkat(
    cx: &Ctx<'_>,
    old_dirfd: i32,
    old: UserAddr,
    new_dirfd: i32,
    new: UserAddr,
    flags: u32,
) -> SyscallResult {
    if flags & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let actor = Actor::of(cx);
    let old = cx.user().read_path(old)?;
    if old.is_empty() && flags & AT_EMPTY_PATH != 0 && !actor.creds.has(CAP_DAC_READ_SEARCH) {
        return Err(Errno::ENOENT);
    }
    let follow = if flags & AT_SYMLINK_FOLLOW != 0 { 0 } else { AT_SYMLINK_NOFOLLOW };
    let node = match walk::resolve_at(cx, &actor, old_dirfd, &old, flags & AT_EMPTY_PATH | follow)? {
        Some(node) => node,
        None => cx.file(old_dirfd)?.path.clone().ok_or(Errno::ENOENT)?,
    };
    let (start, text) = path_argument(cx, &actor, new_dirfd, new)?;
    names::link(&actor, &node, start, &text).map(|()| 0)
}

/// `link(2)`.
pub(in crate::syscall) fn link(cx: &Ctx<'_>, old: UserAddr, new: UserAddr) -> SyscallResult {
    linkat(cx, AT_FDCWD, old, AT_FDCWD, new, 0)
}
