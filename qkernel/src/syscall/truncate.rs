//! `truncate(2)` and `ftruncate(2)`.

use crate::fs::access::Actor;
use crate::fs::file::OpenFlags;
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

/// A new size, within the caller's limit.
fn size(cx: &Ctx<'_>, raw: i64) -> Result<u64> {
    let size = u64::try_from(raw).map_err(|_| Errno::EINVAL)?;
    if size > cx.limit(RLIMIT_FSIZE) {
        signal::send_to_task(cx.task, SIGXFSZ, Source::Kernel);
        return Err(Errno::EFBIG);
    }
    Ok(size)
}

/// `truncate(2)`.
pub(super) fn truncate(cx: &Ctx<'_>, path: UserAddr, len: i64) -> SyscallResult {
    if len < 0 {
        return Err(Errno::EINVAL);
    }
    let name: Vec<u8> = cx.user().read_path(path)?;
    let actor = Actor::of(cx);
    let place = walk::resolve(cx, &actor, AT_FDCWD, &name, true)?;
    attr::truncate(&actor, &place, size(cx, len)?).map(|()| 0)
}

/// `ftruncate(2)`.
pub(super) fn ftruncate(cx: &Ctx<'_>, fd: i32, len: i64) -> SyscallResult {
    if len < 0 {
        return Err(Errno::EINVAL);
    }
    let file = cx.file(fd)?;
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    if !file.flags().writable() {
        return Err(Errno::EINVAL);
    }
    file.ops.truncate(&file, size(cx, len)?).map(|()| 0)
}
