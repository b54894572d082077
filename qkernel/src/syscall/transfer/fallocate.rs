//! `fallocate(2)`.

use crate::fs::inode::{S_IFDIR, S_IFIFO, S_IFREG};
use crate::fs::notify::Mask;
use crate::syscall::context::SyscallResult;
use crate::syscall::transfer::writable;
use crate::syscall::truncate::check_new_size;
use crate::task::context::Ctx;
use machine::errno::Errno;

/// `fallocate(2)`.
pub(in crate::syscall) fn fallocate(
    cx: &Ctx<'_>,
    fd: i32,
    mode: u32,
    offset: i64,
    len: i64,
) -> SyscallResult {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    const KNOWN: u32 = 0x7b;
    let (Ok(offset), Ok(len)) = (u64::try_from(offset), u64::try_from(len)) else {
        return Err(Errno::EINVAL);
    };
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    if mode & !KNOWN != 0 || mode & (PUNCH_HOLE | KEEP_SIZE) == PUNCH_HOLE {
        return Err(Errno::EOPNOTSUPP);
    }
    let file = writable(cx, fd)?;
    let now = file.ops.stat(&file)?;
    match now.kind() {
        S_IFREG => {}
        S_IFDIR => return Err(Errno::EISDIR),
        S_IFIFO => return Err(Errno::ESPIPE),
        _ => return Err(Errno::ENODEV),
    }
    let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64).ok_or(Errno::EFBIG)?;
    if mode & KEEP_SIZE == 0 {
        check_new_size(cx, end, || Ok(now.size))?;
    }
    file.ops.allocate(&file, mode, offset, len)?;
    file.notify(Mask::MODIFY);
    Ok(0)
}
