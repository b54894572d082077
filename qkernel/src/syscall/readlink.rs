//! `readlink(2)` and `readlinkat(2)`.

use crate::fs::access::Actor;
use crate::fs::inode::{LinkTarget, S_IFLNK};
use crate::fs::walk;
use crate::fs::walk::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;

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
    let target = place.inode.readlink()?;
    place.accessed();
    let text = match target {
        LinkTarget::Text(text) => text,
        LinkTarget::Direct(target) => target.seen_from(&actor.fs.root()),
    };
    let len = len.min(text.len());
    cx.user().write_bytes(buf, &text[..len])?;
    Ok(len as u64)
}
