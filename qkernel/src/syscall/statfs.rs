//! `statfs(2)` and `fstatfs(2)`.

use crate::fs::access::Actor;
use crate::fs::inode::{S_IFIFO, S_IFSOCK};
use crate::fs::path::Path;
use crate::fs::walk;
use crate::fs::walk::AT_FDCWD;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::pidfd::{self, PidFile};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

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
    const SOCKFS_MAGIC: u64 = 0x534f_434b;
    const ANON_INODE_FS_MAGIC: u64 = 0x0904_1934;
    let file = cx.file(fd)?;
    if let Some(place) = &file.path {
        return put_statfs(cx, place, buf);
    }
    let raw = RawStatFs {
        kind: match file.ops.stat(&file)?.kind() {
            S_IFIFO => PIPEFS_MAGIC,
            S_IFSOCK => SOCKFS_MAGIC,
            _ if file.as_ops::<PidFile>().is_some() => pidfd::MAGIC,
            _ => ANON_INODE_FS_MAGIC,
        },
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
