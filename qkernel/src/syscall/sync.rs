//! Writing files out: `fsync(2)`, `sync(2)` and their relatives.

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::Errno;

fn sync_file(cx: &Ctx<'_>, fd: i32, data_only: bool) -> SyscallResult {
    let file = cx.opened(fd)?;
    file.ops.sync(&file, data_only).map(|()| 0)
}

/// `fsync(2)`.
pub(super) fn fsync(cx: &Ctx<'_>, fd: i32) -> SyscallResult {
    sync_file(cx, fd, false)
}

/// `fdatasync(2)`.
pub(super) fn fdatasync(cx: &Ctx<'_>, fd: i32) -> SyscallResult {
    sync_file(cx, fd, true)
}

/// `sync(2)`: nothing is kept back from the host, whose disks are the host's business.
pub(super) fn sync(_cx: &Ctx<'_>) -> SyscallResult {
    Ok(0)
}

/// `syncfs(2)`: see [`sync`].
pub(super) fn syncfs(cx: &Ctx<'_>, fd: i32) -> SyscallResult {
    cx.opened(fd).map(|_| 0)
}

/// `sync_file_range(2)`: as much as `fdatasync(2)`.
pub(super) fn sync_file_range(cx: &Ctx<'_>, fd: i32, offset: i64, len: i64, flags: u32) -> SyscallResult {
    if flags & !7 != 0 || offset < 0 || len < 0 {
        return Err(Errno::EINVAL);
    }
    sync_file(cx, fd, true).map_err(|error| if error == Errno::EINVAL { Errno::ESPIPE } else { error })
}
