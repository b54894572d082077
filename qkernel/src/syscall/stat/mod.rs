//! Asking about files: `stat(2)` and its relatives.

pub(super) mod statx;

use alloc::vec::Vec;

use crate::fs::access::Actor;
use crate::fs::file::File;
use crate::fs::hostfs::file::DIRECT_ALIGN;
use crate::fs::inode::Stat;
use crate::fs::inode::{S_IFIFO, S_IFREG};
use crate::fs::path::Path;
use crate::fs::walk;
use crate::fs::walk::Named;
use crate::fs::walk::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const AT_NO_AUTOMOUNT: u32 = 0x800;
const AT_STATX_SYNC_TYPE: u32 = 0x6000;

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

/// The attributes of a node that only a path to it tells: its mount, and its alignment for `O_DIRECT`.
struct Mounted {
    /// The mount's number.
    id: u64,
    /// It is the mount's root.
    is_root: bool,
    /// See [`Inode::direct_align`](crate::fs::inode::Inode::direct_align).
    direct_align: u32,
}

impl Mounted {
    fn of(path: &Path) -> Self {
        let direct_align = path.inode.direct_align();
        Self { id: path.mount.id, is_root: path.is_mount_root(), direct_align }
    }
}

/// The attributes of the node at a path. An empty path stands for the descriptor, where `flags` permit it.
fn stat_path(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, flags: u32) -> Result<(Stat, Option<Mounted>)> {
    let name =
        if path.is_null() && flags & AT_EMPTY_PATH != 0 { Vec::new() } else { cx.user().read_path(path)? };
    let actor = Actor::of(cx);
    if !name.is_empty() {
        let follow = flags & AT_SYMLINK_NOFOLLOW == 0;
        return match walk::resolve_for_stat(cx, &actor, dirfd, &name, follow)? {
            Named::Listed(stat, id) => {
                let direct_align = if stat.kind() == S_IFREG { DIRECT_ALIGN } else { 0 };
                Ok((stat, Some(Mounted { id, is_root: false, direct_align })))
            }
            Named::At(place) => {
                let stat = match place.inode.stat() {
                    // The host replaced the file since it was looked up.
                    Err(Errno::ESTALE) => walk::resolve(cx, &actor, dirfd, &name, follow)?.inode.stat()?,
                    stat => stat?,
                };
                Ok((stat, Some(Mounted::of(&place))))
            }
        };
    }
    match walk::resolve_at(cx, &actor, dirfd, &name, flags)? {
        Some(place) => Ok((place.inode.stat()?, Some(Mounted::of(&place)))),
        None => {
            let file = cx.file(dirfd)?;
            Ok((stat_file(&file)?, file.path.as_ref().map(Mounted::of)))
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
