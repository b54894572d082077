//! Extended attributes: what `getxattr(2)` and its eleven relatives share.

pub(super) mod getxattr;
pub(super) mod setxattr;

use alloc::vec;
use alloc::vec::Vec;

use crate::creds::{CAP_SYS_ADMIN, Creds};
use crate::fs::access;
use crate::fs::access::{Actor, Want};
use crate::fs::inode::{S_IFDIR, S_IFREG, S_ISVTX};
use crate::fs::notify::Mask;
use crate::fs::path::Path;
use crate::fs::walk;
use crate::fs::walk::AT_FDCWD;
use crate::proc::fd::path_of;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::set_id::file_caps::FileCaps;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

const NAME_MAX_BYTES: usize = 255;
const VALUE_MAX_BYTES: usize = 65_536;
const LIST_MAX_BYTES: usize = 65_536;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const CAP_SETFCAP: u32 = 31;
/// Size of the first version of a file's capabilities.
const FIRST_CAPS_BYTES: usize = 12;

fn by_path(cx: &Ctx<'_>, path: UserAddr, follow: bool) -> Result<Path> {
    let name = cx.user().read_path(path)?;
    walk::resolve(cx, &Actor::of(cx), AT_FDCWD, &name, follow)
}

fn by_fd(cx: &Ctx<'_>, fd: i32) -> Result<Path> {
    Ok(path_of(&cx.opened(fd)?))
}

fn read_name(cx: &Ctx<'_>, addr: UserAddr) -> Result<Vec<u8>> {
    let name = cx.user().read_cstr(addr, NAME_MAX_BYTES + 1, Errno::ERANGE)?;
    if name.is_empty() {
        return Err(Errno::ERANGE);
    }
    let spaces: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
    if !spaces.iter().any(|space| name.starts_with(space)) {
        return Err(Errno::EOPNOTSUPP);
    }
    if spaces[..3].contains(&&*name) {
        return Err(Errno::EINVAL);
    }
    Ok(name)
}

/// Whether the caller may read (or change) the attribute.
fn check(creds: &Creds, place: &Path, name: &[u8], changes: bool) -> Result<()> {
    if changes {
        place.mount.check_writable()?;
    }
    if name.starts_with(b"security.") || name.starts_with(b"system.") {
        let needed = if name == b"security.capability" { CAP_SETFCAP } else { CAP_SYS_ADMIN };
        return if changes && name.starts_with(b"security.") && !creds.has(needed) {
            Err(Errno::EPERM)
        } else {
            Ok(())
        };
    }
    let refusal = if changes { Errno::EPERM } else { Errno::ENODATA };
    if name.starts_with(b"trusted.") {
        return if creds.has(CAP_SYS_ADMIN) { Ok(()) } else { Err(refusal) };
    }
    let kind = place.inode.kind();
    if !matches!(kind, S_IFREG | S_IFDIR) {
        return Err(refusal);
    }
    let stat = place.inode.stat()?;
    if changes && kind == S_IFDIR && stat.mode & S_ISVTX != 0 && !access::is_owner(creds, &stat) {
        return Err(Errno::EPERM);
    }
    access::permitted(creds, &stat, if changes { Want::WRITE } else { Want::READ })
}

/// Gives the caller `value`, or its size when there is no room at all.
fn give(cx: &Ctx<'_>, value: &[u8], addr: UserAddr, size: usize) -> SyscallResult {
    if size != 0 {
        if value.len() > size {
            return Err(Errno::ERANGE);
        }
        cx.user().write_bytes(addr, value)?;
    }
    Ok(value.len() as u64)
}

fn get(cx: &Ctx<'_>, place: &Path, name: UserAddr, addr: UserAddr, size: usize) -> SyscallResult {
    let name = read_name(cx, name)?;
    check(&cx.task.creds.get(), place, &name, false)?;
    give(cx, &place.inode.get_xattr(&name)?, addr, size)
}

fn set(cx: &Ctx<'_>, place: &Path, name: UserAddr, addr: UserAddr, size: usize, flags: u32) -> SyscallResult {
    if flags & !(XATTR_CREATE | XATTR_REPLACE) != 0 {
        return Err(Errno::EINVAL);
    }
    let name = read_name(cx, name)?;
    if size > VALUE_MAX_BYTES {
        return Err(Errno::E2BIG);
    }
    let mut value = vec![0u8; size];
    cx.user().read_bytes(addr, &mut value)?;
    check(&cx.task.creds.get(), place, &name, true)?;
    // The first version is read, and not written any more.
    if name == b"security.capability" && (size == FIRST_CAPS_BYTES || FileCaps::parse(&value).is_err()) {
        return Err(Errno::EINVAL);
    }
    place.inode.set_xattr(&name, &value, flags)?;
    place.notify(Mask::ATTRIB);
    Ok(0)
}

fn list(cx: &Ctx<'_>, place: &Path, addr: UserAddr, size: usize) -> SyscallResult {
    let mut names = place.inode.list_xattr()?;
    if !cx.task.creds.get().has(CAP_SYS_ADMIN) {
        let shown = names.split_inclusive(|byte| *byte == 0).filter(|name| !name.starts_with(b"trusted."));
        names = shown.flatten().copied().collect();
    }
    if names.len() > LIST_MAX_BYTES {
        return Err(Errno::E2BIG);
    }
    give(cx, &names, addr, size)
}

fn remove(cx: &Ctx<'_>, place: &Path, name: UserAddr) -> SyscallResult {
    let name = read_name(cx, name)?;
    check(&cx.task.creds.get(), place, &name, true)?;
    place.inode.remove_xattr(&name)?;
    place.notify(Mask::ATTRIB);
    Ok(0)
}
