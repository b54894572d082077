//! Making, removing, linking and renaming names.

use crate::creds::{CAP_DAC_READ_SEARCH, CAP_MKNOD};
use crate::fs::access::Actor;
use crate::fs::file::OpenFlags;
use crate::fs::inode::{NodeKind, S_IFBLK, S_IFCHR, S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK};
use crate::fs::names;
use crate::fs::names::{RENAME_EXCHANGE, RENAME_NOREPLACE};
use crate::fs::path::Path;
use crate::fs::walk;
use crate::fs::walk::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use abi::word::low32;
use alloc::vec::Vec;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

const AT_REMOVEDIR: u32 = 0x200;
const AT_SYMLINK_FOLLOW: u32 = 0x400;

/// A path argument: where it starts, and its text.
fn path_argument(cx: &Ctx<'_>, actor: &Actor, dirfd: i32, addr: UserAddr) -> Result<(Path, Vec<u8>)> {
    let text = cx.user().read_path(addr)?;
    if text.is_empty() {
        return Err(Errno::ENOENT);
    }
    Ok((walk::start(cx, actor, dirfd, &text)?, text))
}

/// `mkdirat(2)`.
pub(super) fn mkdirat(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, mode: u32) -> SyscallResult {
    let actor = Actor::of(cx);
    let (start, text) = path_argument(cx, &actor, dirfd, path)?;
    names::mkdir(&actor, start, &text, mode).map(|()| 0)
}

/// `mkdir(2)`.
pub(super) fn mkdir(cx: &Ctx<'_>, path: UserAddr, mode: u32) -> SyscallResult {
    mkdirat(cx, AT_FDCWD, path, mode)
}

/// `mknodat(2)`.
pub(super) fn mknodat(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, mode: u32, device: u64) -> SyscallResult {
    let actor = Actor::of(cx);
    let device = u64::from(low32(device));
    let kind = match mode & S_IFMT {
        0 | S_IFREG => NodeKind::Regular,
        S_IFIFO => NodeKind::Fifo,
        S_IFSOCK => NodeKind::Socket,
        S_IFCHR | S_IFBLK if !actor.creds.has(CAP_MKNOD) => return Err(Errno::EPERM),
        S_IFCHR => NodeKind::CharDevice(device),
        S_IFBLK => NodeKind::BlockDevice(device),
        crate::fs::inode::S_IFDIR => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    };
    let (start, text) = path_argument(cx, &actor, dirfd, path)?;
    let made = names::mknod(&actor, start, &text, kind, mode & !S_IFMT)?;
    if kind == NodeKind::Regular {
        // The file system kept a handle for the open that usually follows a creation. Opening the node here frees it.
        drop(made.inode.clone().open(OpenFlags::RDWR));
    }
    Ok(0)
}

/// `mknod(2)`.
pub(super) fn mknod(cx: &Ctx<'_>, path: UserAddr, mode: u32, device: u64) -> SyscallResult {
    mknodat(cx, AT_FDCWD, path, mode, device)
}

/// `unlinkat(2)`.
pub(super) fn unlinkat(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, flags: u32) -> SyscallResult {
    if flags & !AT_REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    let actor = Actor::of(cx);
    let (start, text) = path_argument(cx, &actor, dirfd, path)?;
    if flags & AT_REMOVEDIR != 0 {
        names::rmdir(&actor, start, &text)?;
    } else {
        names::unlink(&actor, start, &text)?;
    }
    Ok(0)
}

/// `unlink(2)`.
pub(super) fn unlink(cx: &Ctx<'_>, path: UserAddr) -> SyscallResult {
    unlinkat(cx, AT_FDCWD, path, 0)
}

/// `rmdir(2)`.
pub(super) fn rmdir(cx: &Ctx<'_>, path: UserAddr) -> SyscallResult {
    unlinkat(cx, AT_FDCWD, path, AT_REMOVEDIR)
}

/// `symlinkat(2)`.
pub(super) fn symlinkat(cx: &Ctx<'_>, target: UserAddr, dirfd: i32, path: UserAddr) -> SyscallResult {
    let actor = Actor::of(cx);
    let target = cx.user().read_path(target)?;
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    let (start, text) = path_argument(cx, &actor, dirfd, path)?;
    names::symlink(&actor, start, &text, &target).map(|()| 0)
}

/// `symlink(2)`.
pub(super) fn symlink(cx: &Ctx<'_>, target: UserAddr, path: UserAddr) -> SyscallResult {
    symlinkat(cx, target, AT_FDCWD, path)
}

/// `linkat(2)`.
pub(super) fn linkat(
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
pub(super) fn link(cx: &Ctx<'_>, old: UserAddr, new: UserAddr) -> SyscallResult {
    linkat(cx, AT_FDCWD, old, AT_FDCWD, new, 0)
}

/// `renameat2(2)`.
pub(super) fn renameat2(
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
pub(super) fn renameat(
    cx: &Ctx<'_>,
    old_dirfd: i32,
    old: UserAddr,
    new_dirfd: i32,
    new: UserAddr,
) -> SyscallResult {
    renameat2(cx, old_dirfd, old, new_dirfd, new, 0)
}

/// `rename(2)`.
pub(super) fn rename(cx: &Ctx<'_>, old: UserAddr, new: UserAddr) -> SyscallResult {
    renameat2(cx, AT_FDCWD, old, AT_FDCWD, new, 0)
}
