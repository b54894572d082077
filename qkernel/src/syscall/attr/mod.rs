//! Changing attributes: mode, owner, and the mask of new files.

pub(super) mod utime;

use crate::fs::access::Actor;
use crate::fs::path::Path;
use crate::fs::walk::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use crate::fs::{attr, walk};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use core::sync::atomic::Ordering;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

fn place_at(cx: &Ctx<'_>, actor: &Actor, dirfd: i32, path: UserAddr, flags: u32) -> Result<Path> {
    if flags & !(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = cx.user().read_path(path)?;
    match walk::resolve_at(cx, actor, dirfd, &name, flags)? {
        Some(place) => Ok(place),
        None => cx.file(dirfd)?.path.clone().ok_or(Errno::EPERM),
    }
}

/// `fchmodat2(2)`.
pub(super) fn fchmodat2(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, mode: u32, flags: u32) -> SyscallResult {
    let actor = Actor::of(cx);
    let place = place_at(cx, &actor, dirfd, path, flags)?;
    attr::chmod(&actor, &place, mode).map(|()| 0)
}

/// `fchmodat(2)`, the raw call without flags.
pub(super) fn fchmodat(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, mode: u32) -> SyscallResult {
    fchmodat2(cx, dirfd, path, mode, 0)
}

/// `chmod(2)`.
pub(super) fn chmod(cx: &Ctx<'_>, path: UserAddr, mode: u32) -> SyscallResult {
    fchmodat2(cx, AT_FDCWD, path, mode, 0)
}

/// `fchmod(2)`.
pub(super) fn fchmod(cx: &Ctx<'_>, fd: i32, mode: u32) -> SyscallResult {
    attr::fchmod(&Actor::of(cx), &*cx.opened(fd)?, mode).map(|()| 0)
}

/// An id argument; -1 leaves the id as it is.
fn id(raw: u32) -> Option<u32> {
    (raw != u32::MAX).then_some(raw)
}

/// `fchownat(2)`.
pub(super) fn fchownat(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    uid: u32,
    gid: u32,
    flags: u32,
) -> SyscallResult {
    let actor = Actor::of(cx);
    let place = place_at(cx, &actor, dirfd, path, flags)?;
    attr::chown(&actor, &place, id(uid), id(gid)).map(|()| 0)
}

/// `chown(2)`.
pub(super) fn chown(cx: &Ctx<'_>, path: UserAddr, uid: u32, gid: u32) -> SyscallResult {
    fchownat(cx, AT_FDCWD, path, uid, gid, 0)
}

/// `lchown(2)`.
pub(super) fn lchown(cx: &Ctx<'_>, path: UserAddr, uid: u32, gid: u32) -> SyscallResult {
    fchownat(cx, AT_FDCWD, path, uid, gid, AT_SYMLINK_NOFOLLOW)
}

/// `fchown(2)`.
pub(super) fn fchown(cx: &Ctx<'_>, fd: i32, uid: u32, gid: u32) -> SyscallResult {
    attr::fchown(&Actor::of(cx), &*cx.opened(fd)?, id(uid), id(gid)).map(|()| 0)
}

/// `umask(2)`.
pub(super) fn umask(cx: &Ctx<'_>, mask: u32) -> SyscallResult {
    let old = cx.task.fs.get().umask.swap(mask & 0o777, Ordering::Relaxed);
    Ok(u64::from(old))
}
