//! Advice about files: `fadvise64(2)`, `readahead(2)`.

use crate::fs::inode::{S_IFIFO, S_IFREG, S_IFSOCK};
use crate::syscall::context::SyscallResult;
use crate::syscall::transfer::readable;
use crate::task::context::Ctx;
use machine::errno::Errno;

/// `fadvise64(2)`: the host reads ahead by itself.
pub(in crate::syscall) fn fadvise64(
    cx: &Ctx<'_>,
    fd: i32,
    _offset: i64,
    len: i64,
    advice: u32,
) -> SyscallResult {
    let file = cx.opened(fd)?;
    if matches!(file.ops.stat(&file)?.kind(), S_IFIFO) {
        return Err(Errno::ESPIPE);
    }
    if len < 0 || advice > 5 { Err(Errno::EINVAL) } else { Ok(0) }
}

/// `readahead(2)`.
pub(in crate::syscall) fn readahead(cx: &Ctx<'_>, fd: i32, _offset: i64, _count: usize) -> SyscallResult {
    let file = readable(cx, fd)?;
    match file.ops.stat(&file)?.kind() {
        S_IFREG => Ok(0),
        S_IFSOCK | S_IFIFO => Err(Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
}
