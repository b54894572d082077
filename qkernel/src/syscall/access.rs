//! `access(2)` and its relatives.

use alloc::sync::Arc;

use crate::creds::{CAP_ALL, Creds};
use crate::fs::access;
use crate::fs::access::{Actor, Want};
use crate::fs::walk;
use crate::fs::walk::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;

const AT_EACCESS: u32 = 0x200;

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
