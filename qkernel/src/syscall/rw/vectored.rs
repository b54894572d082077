//! Vectored reading and writing: `readv(2)`, `preadv2(2)` and their counterparts.

use alloc::vec::Vec;

use crate::config::RW_MAX_BYTES;
use crate::fs::file::{At, File, OpenFlags};
use crate::fs::notify::Mask;
use crate::syscall::context::SyscallResult;
use crate::syscall::rw::{check_range, do_read, do_write, offset};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, UserAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most pieces of one vectored call (`UIO_MAXIOV`).
pub const IOV_MAX: usize = 1024;

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
pub struct IoVec {
    base: UserAddr,
    len: u64,
}

/// `RWF_*` of `preadv2(2)`.
const RWF_HIPRI: u32 = 1;
const RWF_DSYNC: u32 = 2;
const RWF_SYNC: u32 = 4;
const RWF_NOWAIT: u32 = 8;
const RWF_APPEND: u32 = 16;

/// The pieces of a vectored call, cut to what one call may move.
pub fn read_iovecs(cx: &Ctx<'_>, addr: UserAddr, count: u64) -> Result<Vec<(UserAddr, usize)>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= IOV_MAX).ok_or(Errno::EINVAL)?;
    let vectors: Vec<IoVec> = cx.user().read_array(addr, count)?;
    let mut left = RW_MAX_BYTES;
    let mut pieces = Vec::with_capacity(count);
    for vector in vectors {
        let len = i64::try_from(vector.len).map_err(|_| Errno::EINVAL)?;
        check_range(vector.base, vector.len)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(left);
        left -= len;
        pieces.push((vector.base, len));
    }
    Ok(pieces)
}

/// The pieces as they are, which another address space may have; `EINVAL` for lengths that are negative.
pub fn read_raw_iovecs(cx: &Ctx<'_>, addr: UserAddr, count: u64) -> Result<Vec<(UserAddr, u64)>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= IOV_MAX).ok_or(Errno::EINVAL)?;
    let vectors: Vec<IoVec> = cx.user().read_array(addr, count)?;
    if vectors.iter().any(|vector| i64::try_from(vector.len).is_err()) {
        return Err(Errno::EINVAL);
    }
    Ok(vectors.into_iter().map(|vector| (vector.base, vector.len)).collect())
}

/// `readv(2)`.
pub(in crate::syscall) fn readv(cx: &Ctx<'_>, fd: i32, iov: UserAddr, count: u64) -> SyscallResult {
    cx.file(fd)?;
    do_read(cx, fd, read_iovecs(cx, iov, count)?, At::Position)
}

/// `writev(2)`.
pub(in crate::syscall) fn writev(cx: &Ctx<'_>, fd: i32, iov: UserAddr, count: u64) -> SyscallResult {
    cx.file(fd)?;
    do_write(cx, fd, read_iovecs(cx, iov, count)?, At::Position)
}

/// `preadv(2)`. On x86-64 the offset is whole in the low word.
pub(in crate::syscall) fn preadv(cx: &Ctx<'_>, fd: i32, iov: UserAddr, count: u64, at: i64) -> SyscallResult {
    let at = offset(at)?;
    cx.file(fd)?;
    do_read(cx, fd, read_iovecs(cx, iov, count)?, at)
}

/// `pwritev(2)`.
pub(in crate::syscall) fn pwritev(
    cx: &Ctx<'_>,
    fd: i32,
    iov: UserAddr,
    count: u64,
    at: i64,
) -> SyscallResult {
    let at = offset(at)?;
    cx.file(fd)?;
    do_write(cx, fd, read_iovecs(cx, iov, count)?, at)
}

/// The position of a `preadv2(2)`: -1 means the description's own.
fn place(at: i64) -> Result<At> {
    if at == -1 { Ok(At::Position) } else { offset(at) }
}

/// `preadv2(2)`.
pub(in crate::syscall) fn preadv2(
    cx: &Ctx<'_>,
    fd: i32,
    iov: UserAddr,
    count: u64,
    at: i64,
    _high: u64,
    flags: u32,
) -> SyscallResult {
    if flags & !(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let pieces = read_iovecs(cx, iov, count)?;
    let at = place(at)?;
    if flags & RWF_NOWAIT == 0 {
        return do_read(cx, fd, pieces, at);
    }
    let file = readable(cx, fd)?;
    let moved = file.ops.read(&file, &mut IoBuf::user_pieces(cx.aspace(), pieces), at)?;
    if moved > 0 {
        file.notify(Mask::ACCESS);
    }
    Ok(moved as u64)
}

fn readable(cx: &Ctx<'_>, fd: i32) -> Result<alloc::sync::Arc<File>> {
    cx.file(fd).and_then(|file| if file.flags().readable() { Ok(file) } else { Err(Errno::EBADF) })
}

/// `pwritev2(2)`.
pub(in crate::syscall) fn pwritev2(
    cx: &Ctx<'_>,
    fd: i32,
    iov: UserAddr,
    count: u64,
    at: i64,
    _high: u64,
    flags: u32,
) -> SyscallResult {
    if flags & !(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let file = cx.file(fd)?;
    if flags & RWF_APPEND != 0 && !file.flags().contains(OpenFlags::APPEND) {
        return Err(Errno::EOPNOTSUPP);
    }
    let moved = do_write(cx, fd, read_iovecs(cx, iov, count)?, place(at)?)?;
    if flags & (RWF_DSYNC | RWF_SYNC) != 0 {
        file.ops.sync(&file, flags & RWF_SYNC == 0)?;
    }
    Ok(moved)
}
