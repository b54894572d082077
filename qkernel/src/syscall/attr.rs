//! Changing attributes: mode, owner, times, size, and the mask of new files.

use crate::fs::access::Actor;
use crate::fs::file::OpenFlags;
use crate::fs::inode::SetTime;
use crate::fs::path::Path;
use crate::fs::walk::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use crate::fs::{attr, walk};
use crate::limits::RLIMIT_FSIZE;
use crate::signals::{SIGXFSZ, Source};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::signal;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

const UTIME_NOW: i64 = 0x3fff_ffff;
const UTIME_OMIT: i64 = 0x3fff_fffe;

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

/// The place an open file was opened at. Files without one have attributes that cannot be changed.
fn place_of(cx: &Ctx<'_>, fd: i32) -> Result<Path> {
    let file = cx.file(fd)?;
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    file.path.clone().ok_or(Errno::EPERM)
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
    attr::chmod(&Actor::of(cx), &place_of(cx, fd)?, mode).map(|()| 0)
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
    attr::chown(&Actor::of(cx), &place_of(cx, fd)?, id(uid), id(gid)).map(|()| 0)
}

/// `umask(2)`.
pub(super) fn umask(cx: &Ctx<'_>, mask: u32) -> SyscallResult {
    let old = cx.task.fs.get().umask.swap(mask & 0o777, Ordering::Relaxed);
    Ok(u64::from(old))
}

fn set_times(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    times: [Option<SetTime>; 2],
    flags: u32,
) -> SyscallResult {
    let actor = Actor::of(cx);
    let place = if path.is_null() && dirfd != AT_FDCWD {
        place_of(cx, dirfd)?
    } else {
        place_at(cx, &actor, dirfd, path, flags)?
    };
    attr::set_times(&actor, &place, times[0], times[1]).map(|()| 0)
}

/// Nanoseconds of seconds and a part that is less than one second.
fn time(sec: i64, part: i64, parts: i64) -> Result<Option<SetTime>> {
    if !(0..parts).contains(&part) {
        return Err(Errno::EINVAL);
    }
    let ns = part * (1_000_000_000 / parts);
    Ok(Some(SetTime::At(sec.saturating_mul(1_000_000_000).saturating_add(ns))))
}

/// `utimensat(2)`.
pub(super) fn utimensat(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    times: UserAddr,
    flags: u32,
) -> SyscallResult {
    let mut set = [Some(SetTime::Now); 2];
    if let Some(raw) = cx.user().read_opt::<[[i64; 2]; 2]>(times)? {
        for (set, [sec, nsec]) in set.iter_mut().zip(raw) {
            *set = match nsec {
                UTIME_NOW => Some(SetTime::Now),
                UTIME_OMIT => None,
                _ => time(sec, nsec, 1_000_000_000)?,
            };
        }
    }
    set_times(cx, dirfd, path, set, flags)
}

/// `futimesat(2)`.
pub(super) fn futimesat(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, times: UserAddr) -> SyscallResult {
    let mut set = [Some(SetTime::Now); 2];
    if let Some(raw) = cx.user().read_opt::<[[i64; 2]; 2]>(times)? {
        for (set, [sec, usec]) in set.iter_mut().zip(raw) {
            *set = time(sec, usec, 1_000_000)?;
        }
    }
    set_times(cx, dirfd, path, set, 0)
}

/// `utimes(2)`.
pub(super) fn utimes(cx: &Ctx<'_>, path: UserAddr, times: UserAddr) -> SyscallResult {
    futimesat(cx, AT_FDCWD, path, times)
}

/// `utime(2)`.
pub(super) fn utime(cx: &Ctx<'_>, path: UserAddr, times: UserAddr) -> SyscallResult {
    let mut set = [Some(SetTime::Now); 2];
    if let Some(raw) = cx.user().read_opt::<[i64; 2]>(times)? {
        set = [time(raw[0], 0, 1)?, time(raw[1], 0, 1)?];
    }
    set_times(cx, AT_FDCWD, path, set, 0)
}

/// A new size, within the caller's limit.
fn size(cx: &Ctx<'_>, raw: i64) -> Result<u64> {
    let size = u64::try_from(raw).map_err(|_| Errno::EINVAL)?;
    if size > cx.limit(RLIMIT_FSIZE) {
        signal::send_to_task(cx.task, SIGXFSZ, Source::Kernel);
        return Err(Errno::EFBIG);
    }
    Ok(size)
}

/// `truncate(2)`.
pub(super) fn truncate(cx: &Ctx<'_>, path: UserAddr, len: i64) -> SyscallResult {
    if len < 0 {
        return Err(Errno::EINVAL);
    }
    let name: Vec<u8> = cx.user().read_path(path)?;
    let actor = Actor::of(cx);
    let place = walk::resolve(cx, &actor, AT_FDCWD, &name, true)?;
    attr::truncate(&actor, &place, size(cx, len)?).map(|()| 0)
}

/// `ftruncate(2)`.
pub(super) fn ftruncate(cx: &Ctx<'_>, fd: i32, len: i64) -> SyscallResult {
    if len < 0 {
        return Err(Errno::EINVAL);
    }
    let file = cx.file(fd)?;
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    if !file.flags().writable() {
        return Err(Errno::EINVAL);
    }
    file.ops.truncate(&file, size(cx, len)?).map(|()| 0)
}
