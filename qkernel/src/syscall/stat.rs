//! Asking about files: `stat(2)`, `statx(2)`, `access(2)`, `statfs(2)` and `readlink(2)`.

use abi::word::{low16, low32};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::creds::{CAP_ALL, Creds};
use crate::fs::access;
use crate::fs::access::{Actor, Want};
use crate::fs::file::File;
use crate::fs::inode::Stat;
use crate::fs::inode::{LinkTarget, S_IFIFO, S_IFLNK};
use crate::fs::path::Path;
use crate::fs::walk;
use crate::fs::walk::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const AT_EACCESS: u32 = 0x200;
const AT_NO_AUTOMOUNT: u32 = 0x800;
const AT_STATX_SYNC_TYPE: u32 = 0x6000;
const STATX_RESERVED: u32 = 0x8000_0000;
/// All fields that `stat(2)` has, and the time of birth.
const STATX_ALL: u32 = 0xfff;
const STATX_MNT_ID: u32 = 0x1000;

/// `struct stat` of x86-64.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct RawStat {
    dev: u64,
    ino: u64,
    nlink: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    pad: u32,
    rdev: u64,
    size: u64,
    blksize: u64,
    blocks: u64,
    times: [[i64; 2]; 3],
    unused: [u64; 3],
}
const _: () = assert!(size_of::<RawStat>() == 144);

/// `struct statx_timestamp`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct StatxTime {
    sec: i64,
    nsec: u32,
    pad: u32,
}

/// `struct statx`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct RawStatx {
    mask: u32,
    blksize: u32,
    attributes: u64,
    nlink: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    pad: u16,
    ino: u64,
    size: u64,
    blocks: u64,
    attributes_mask: u64,
    /// Access, birth, change, modification.
    times: [StatxTime; 4],
    rdev: [u32; 2],
    dev: [u32; 2],
    mnt_id: u64,
    unused: [u64; 13],
}
const _: () = assert!(size_of::<RawStatx>() == 256);

fn split(ns: i64) -> [i64; 2] {
    [ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000)]
}

fn raw_stat(stat: &Stat) -> RawStat {
    RawStat {
        dev: stat.dev,
        ino: stat.ino,
        nlink: u64::from(stat.nlink),
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        pad: 0,
        rdev: stat.rdev,
        size: stat.size,
        blksize: u64::from(stat.blksize),
        blocks: stat.blocks,
        times: [split(stat.atime_ns), split(stat.mtime_ns), split(stat.ctime_ns)],
        unused: [0; 3],
    }
}

fn statx_time(ns: i64) -> StatxTime {
    let [sec, nsec] = split(ns);
    StatxTime { sec, nsec: u32::try_from(nsec).unwrap_or(0), pad: 0 }
}

/// Major and minor of a device number in the form of `stat(2)`.
fn device_parts(dev: u64) -> [u32; 2] {
    let major = ((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff);
    let minor = (dev & 0xff) | ((dev >> 12) & !0xff);
    [low32(major), low32(minor)]
}

/// The attributes of the node at a path. An empty path stands for the descriptor, where `flags` permit it.
fn stat_path(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, flags: u32) -> Result<(Stat, Option<u64>)> {
    let name =
        if path.is_null() && flags & AT_EMPTY_PATH != 0 { Vec::new() } else { cx.user().read_path(path)? };
    let actor = Actor::of(cx);
    match walk::resolve_at(cx, &actor, dirfd, &name, flags)? {
        Some(place) => {
            let stat = match place.inode.stat() {
                // The host replaced the file since it was looked up.
                Err(Errno::ESTALE) => {
                    let again = walk::resolve_at(cx, &actor, dirfd, &name, flags)?.ok_or(Errno::ENOENT)?;
                    again.inode.stat()?
                }
                stat => stat?,
            };
            Ok((stat, Some(place.mount.id)))
        }
        None => {
            let file = cx.file(dirfd)?;
            Ok((stat_file(&file)?, file.path.as_ref().map(|path| path.mount.id)))
        }
    }
}

/// The attributes of an open file. Of an open FIFO they are the name's, not the pipe's.
fn stat_file(file: &File) -> Result<Stat> {
    match &file.path {
        Some(path) if path.inode.kind() == S_IFIFO => path.inode.stat(),
        _ => file.ops.stat(file),
    }
}

/// `stat(2)`.
pub(super) fn stat(cx: &Ctx<'_>, path: UserAddr, buf: UserAddr) -> SyscallResult {
    newfstatat(cx, AT_FDCWD, path, buf, 0)
}

/// `lstat(2)`.
pub(super) fn lstat(cx: &Ctx<'_>, path: UserAddr, buf: UserAddr) -> SyscallResult {
    newfstatat(cx, AT_FDCWD, path, buf, AT_SYMLINK_NOFOLLOW)
}

/// `fstat(2)`.
pub(super) fn fstat(cx: &Ctx<'_>, fd: i32, buf: UserAddr) -> SyscallResult {
    let file = cx.file(fd)?;
    cx.user().write(buf, &raw_stat(&stat_file(&file)?))?;
    Ok(0)
}

/// `newfstatat(2)`.
pub(super) fn newfstatat(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    buf: UserAddr,
    flags: u32,
) -> SyscallResult {
    if flags & !(AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_SYNC_TYPE) != 0 {
        return Err(Errno::EINVAL);
    }
    let (stat, _) = stat_path(cx, dirfd, path, flags)?;
    cx.user().write(buf, &raw_stat(&stat))?;
    Ok(0)
}

/// `statx(2)`: fills in more fields than were asked for, as it may.
pub(super) fn statx(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    flags: u32,
    mask: u32,
    buf: UserAddr,
) -> SyscallResult {
    let known = AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_SYNC_TYPE;
    if flags & !known != 0 || mask & STATX_RESERVED != 0 || flags & AT_STATX_SYNC_TYPE == AT_STATX_SYNC_TYPE {
        return Err(Errno::EINVAL);
    }
    let (stat, mount) = stat_path(cx, dirfd, path, flags)?;
    let times = [stat.atime_ns, stat.btime_ns, stat.ctime_ns, stat.mtime_ns];
    let raw = RawStatx {
        mask: STATX_ALL | if mount.is_some() { STATX_MNT_ID } else { 0 },
        blksize: stat.blksize,
        attributes: 0,
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        mode: low16(stat.mode.into()),
        pad: 0,
        ino: stat.ino,
        size: stat.size,
        blocks: stat.blocks,
        attributes_mask: 0,
        times: times.map(statx_time),
        rdev: device_parts(stat.rdev),
        dev: device_parts(stat.dev),
        mnt_id: mount.unwrap_or(0),
        unused: [0; 13],
    };
    cx.user().write(buf, &raw)?;
    Ok(0)
}

/// `access(2)`.
pub(super) fn access(cx: &Ctx<'_>, path: UserAddr, mode: u32) -> SyscallResult {
    faccessat2(cx, AT_FDCWD, path, mode, 0)
}

/// `faccessat(2)`, the raw call without flags.
pub(super) fn faccessat(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, mode: u32) -> SyscallResult {
    faccessat2(cx, dirfd, path, mode, 0)
}

/// `faccessat2(2)`.
pub(super) fn faccessat2(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, mode: u32, flags: u32) -> SyscallResult {
    let want = Want::from_bits(mode).ok_or(Errno::EINVAL)?;
    if flags & !(AT_EACCESS | AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = cx.user().read_path(path)?;
    let mut actor = Actor::of(cx);
    if flags & AT_EACCESS == 0 {
        actor.creds = real_creds(&actor.creds);
    }
    match walk::resolve_at(cx, &actor, dirfd, &name, flags)? {
        Some(place) => access::check(&actor.creds, &place, want)?,
        None => {
            let file = cx.file(dirfd)?;
            access::permitted(&actor.creds, &file.ops.stat(&file)?, want)?;
        }
    }
    Ok(0)
}

/// The credentials that `access(2)` checks: the real user's, with the capabilities that user would have.
fn real_creds(creds: &Arc<Creds>) -> Arc<Creds> {
    if creds.uid == creds.fsuid && creds.gid == creds.fsgid && creds.uid != 0 && creds.effective == 0 {
        return creds.clone();
    }
    let mut real = Creds::clone(creds);
    (real.fsuid, real.fsgid) = (creds.uid, creds.gid);
    real.effective = if creds.uid == 0 { creds.permitted & CAP_ALL } else { 0 };
    Arc::new(real)
}

/// `struct statfs`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct RawStatFs {
    kind: u64,
    bsize: u64,
    blocks: u64,
    bfree: u64,
    bavail: u64,
    files: u64,
    ffree: u64,
    fsid: u64,
    namelen: u64,
    frsize: u64,
    flags: u64,
    spare: [u64; 4],
}

fn put_statfs(cx: &Ctx<'_>, place: &Path, buf: UserAddr) -> SyscallResult {
    let stat = place.inode.statfs()?;
    let raw = RawStatFs {
        kind: stat.kind,
        bsize: stat.bsize,
        blocks: stat.blocks,
        bfree: stat.bfree,
        bavail: stat.bavail,
        files: stat.files,
        ffree: stat.ffree,
        fsid: place.mount.id,
        namelen: stat.namelen,
        frsize: stat.frsize,
        flags: place.mount.limits().statfs_flags(),
        spare: [0; 4],
    };
    cx.user().write(buf, &raw)?;
    Ok(0)
}

/// `statfs(2)`.
pub(super) fn statfs(cx: &Ctx<'_>, path: UserAddr, buf: UserAddr) -> SyscallResult {
    let name = cx.user().read_path(path)?;
    let place = walk::resolve(cx, &Actor::of(cx), AT_FDCWD, &name, true)?;
    put_statfs(cx, &place, buf)
}

/// `fstatfs(2)`.
pub(super) fn fstatfs(cx: &Ctx<'_>, fd: i32, buf: UserAddr) -> SyscallResult {
    const PIPEFS_MAGIC: u64 = 0x5049_5045;
    let file = cx.file(fd)?;
    if let Some(place) = &file.path {
        return put_statfs(cx, place, buf);
    }
    let raw = RawStatFs {
        kind: PIPEFS_MAGIC,
        bsize: 4096,
        blocks: 0,
        bfree: 0,
        bavail: 0,
        files: 0,
        ffree: 0,
        fsid: 0,
        namelen: 255,
        frsize: 4096,
        flags: 0,
        spare: [0; 4],
    };
    cx.user().write(buf, &raw)?;
    Ok(0)
}

/// `readlink(2)`.
pub(super) fn readlink(cx: &Ctx<'_>, path: UserAddr, buf: UserAddr, len: i32) -> SyscallResult {
    readlinkat(cx, AT_FDCWD, path, buf, len)
}

/// `readlinkat(2)`.
pub(super) fn readlinkat(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, buf: UserAddr, len: i32) -> SyscallResult {
    let len = usize::try_from(len).ok().filter(|len| *len > 0).ok_or(Errno::EINVAL)?;
    let name = cx.user().read_path(path)?;
    let empty = name.is_empty();
    let actor = Actor::of(cx);
    let place = match walk::resolve_at(cx, &actor, dirfd, &name, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)? {
        Some(place) if !empty => place,
        _ => cx.file(dirfd).map_err(|_| Errno::ENOENT)?.path.clone().ok_or(Errno::ENOENT)?,
    };
    if place.inode.kind() != S_IFLNK {
        return Err(if empty { Errno::ENOENT } else { Errno::EINVAL });
    }
    let text = match place.inode.readlink()? {
        LinkTarget::Text(text) => text,
        LinkTarget::Direct(target) => target.seen_from(&actor.fs.root()),
    };
    let len = len.min(text.len());
    cx.user().write_bytes(buf, &text[..len])?;
    Ok(len as u64)
}
