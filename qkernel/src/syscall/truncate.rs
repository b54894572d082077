//! `truncate(2)` and `ftruncate(2)`.

use crate::fs::access::Actor;
use crate::fs::inode::Inode;
use crate::fs::notify::Mask;
use crate::fs::walk::AT_FDCWD;
use crate::fs::{attr, walk};
use crate::limits::RLIMIT_FSIZE;
use crate::signals::{SIGXFSZ, Source};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::signal;
use alloc::vec::Vec;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// A file that is `now` bytes long may become `size` bytes long: only a growing one is held to `RLIMIT_FSIZE`.
pub(super) fn check_new_size(cx: &Ctx<'_>, size: u64, now: impl FnOnce() -> Result<u64>) -> Result<()> {
    if size > cx.limit(RLIMIT_FSIZE) && size > now()? {
        signal::send_to_task(cx.task, SIGXFSZ, Source::Kernel);
        return Err(Errno::EFBIG);
    }
    Ok(())
}

/// `truncate(2)`.
pub(super) fn truncate(cx: &Ctx<'_>, path: UserAddr, len: i64) -> SyscallResult {
    let size = u64::try_from(len).map_err(|_| Errno::EINVAL)?;
    let name: Vec<u8> = cx.user().read_path(path)?;
    let actor = Actor::of(cx);
    let place = walk::resolve(cx, &actor, AT_FDCWD, &name, true)?;
    let may_become = |inode: &dyn Inode| check_new_size(cx, size, || Ok(inode.stat()?.size));
    attr::truncate(&actor, &place, size, may_become).map(|()| 0)
}

/// `ftruncate(2)`.
pub(super) fn ftruncate(cx: &Ctx<'_>, fd: i32, len: i64) -> SyscallResult {
    let size = u64::try_from(len).map_err(|_| Errno::EINVAL)?;
    let file = cx.opened(fd)?;
    if !file.flags().writable() {
        return Err(Errno::EINVAL);
    }
    check_new_size(cx, size, || Ok(file.ops.stat(&file)?.size))?;
    file.ops.truncate(&file, size)?;
    file.notify(Mask::MODIFY);
    Ok(0)
}
