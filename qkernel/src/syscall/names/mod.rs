//! Making and removing names: `mkdir(2)`, `mknod(2)`, `unlink(2)`, `rmdir(2)`.

pub(super) mod link;
pub(super) mod rename;

use crate::creds::CAP_MKNOD;
use crate::fs::access::Actor;
use crate::fs::file::OpenFlags;
use crate::fs::inode::{NodeKind, S_IFBLK, S_IFCHR, S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK};
use crate::fs::names;
use crate::fs::path::Path;
use crate::fs::walk;
use crate::fs::walk::AT_FDCWD;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use abi::word::low32;
use alloc::vec::Vec;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

const AT_REMOVEDIR: u32 = 0x200;

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
        // The mark of a removed name in an overlay is for everybody.
        S_IFCHR if device == 0 => NodeKind::CharDevice(device),
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
