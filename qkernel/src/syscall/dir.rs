//! The task's place in the tree: `getcwd(2)`, `chdir(2)`, `chroot(2)`.

use crate::config::PATH_MAX;
use crate::creds::CAP_SYS_CHROOT;
use crate::fs::access;
use crate::fs::access::Actor;
use crate::fs::inode::S_IFDIR;
use crate::fs::path::Path;
use crate::fs::walk;
use crate::fs::walk::AT_FDCWD;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// `getcwd(2)`: the raw call returns the length, its NUL included.
pub(super) fn getcwd(cx: &Ctx<'_>, buf: UserAddr, size: u64) -> SyscallResult {
    let fs = cx.task.fs.get();
    let cwd = fs.cwd();
    if cwd.dentry.is_gone() {
        return Err(Errno::ENOENT);
    }
    let mut text = match cwd.below(&fs.root()) {
        Some(text) => text,
        None => [b"(unreachable)", cwd.absolute().as_slice()].concat(),
    };
    text.push(0);
    if text.len() > PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if text.len() as u64 > size {
        return Err(Errno::ERANGE);
    }
    cx.user().write_bytes(buf, &text)?;
    Ok(text.len() as u64)
}

fn check_dir(actor: &Actor, path: &Path) -> Result<()> {
    if path.inode.kind() != S_IFDIR {
        return Err(Errno::ENOTDIR);
    }
    access::check_search(&actor.creds, &path.inode)
}

/// `chdir(2)`.
pub(super) fn chdir(cx: &Ctx<'_>, path: UserAddr) -> SyscallResult {
    let name = cx.user().read_path(path)?;
    let actor = Actor::of(cx);
    let place = walk::resolve(cx, &actor, AT_FDCWD, &name, true)?;
    check_dir(&actor, &place)?;
    actor.fs.set_cwd(place);
    Ok(0)
}

/// `fchdir(2)`.
pub(super) fn fchdir(cx: &Ctx<'_>, fd: i32) -> SyscallResult {
    let actor = Actor::of(cx);
    let place = cx.file(fd)?.path.clone().ok_or(Errno::ENOTDIR)?;
    check_dir(&actor, &place)?;
    actor.fs.set_cwd(place);
    Ok(0)
}

/// `chroot(2)`.
pub(super) fn chroot(cx: &Ctx<'_>, path: UserAddr) -> SyscallResult {
    let name = cx.user().read_path(path)?;
    let actor = Actor::of(cx);
    let place = walk::resolve(cx, &actor, AT_FDCWD, &name, true)?;
    check_dir(&actor, &place)?;
    if !actor.creds.has(CAP_SYS_CHROOT) {
        return Err(Errno::EPERM);
    }
    actor.fs.set_root(place);
    Ok(0)
}
