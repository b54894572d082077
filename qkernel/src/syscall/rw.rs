//! Reading and writing: `read(2)`, `pread(2)`, `readv(2)`, `preadv2(2)`, `lseek(2)` and their counterparts.

use alloc::vec::Vec;

use crate::config::RW_MAX_BYTES;
use crate::fs::file::{At, File, OpenFlags, Whence};
use crate::signals::{SIGPIPE, Source};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::signal;
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

/// A buffer that reaches out of user memory is bad before a byte moves.
fn check_range(addr: UserAddr, len: u64) -> Result<()> {
    if len == 0 || addr.has_room(len) { Ok(()) } else { Err(Errno::EFAULT) }
}

fn offset(value: i64) -> Result<At> {
    u64::try_from(value).map(At::Offset).map_err(|_| Errno::EINVAL)
}

fn check_offset(at: At, len: usize) -> Result<()> {
    match at {
        At::Offset(offset) if offset.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64) => {
            Err(Errno::EINVAL)
        }
        _ => Ok(()),
    }
}

fn do_read(cx: &Ctx<'_>, fd: i32, pieces: Vec<(UserAddr, usize)>, at: At) -> SyscallResult {
    let file = cx.file(fd)?;
    let mut buf = IoBuf::user_pieces(cx.aspace(), pieces);
    check_offset(at, buf.remaining())?;
    file.read(&mut buf, at).map(|moved| moved as u64)
}

fn do_write(cx: &Ctx<'_>, fd: i32, pieces: Vec<(UserAddr, usize)>, at: At) -> SyscallResult {
    let file = cx.file(fd)?;
    let mut buf = IoBuf::user_pieces(cx.aspace(), pieces);
    check_offset(at, buf.remaining())?;
    written(cx, file.write(&mut buf, at))
}

/// The result of a write; `EPIPE` raises `SIGPIPE` as well.
pub fn written(cx: &Ctx<'_>, result: Result<usize>) -> SyscallResult {
    if result == Err(Errno::EPIPE) {
        signal::send_to_task(cx.task, SIGPIPE, Source::Kernel);
    }
    result.map(|moved| moved as u64)
}

fn one(addr: UserAddr, len: usize) -> Result<Vec<(UserAddr, usize)>> {
    if i64::try_from(len).is_err() {
        return Err(Errno::EINVAL);
    }
    check_range(addr, len as u64)?;
    Ok(alloc::vec![(addr, len.min(RW_MAX_BYTES))])
}

/// `read(2)`.
pub(super) fn read(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len: usize) -> SyscallResult {
    cx.file(fd)?;
    do_read(cx, fd, one(addr, len)?, At::Position)
}

/// `write(2)`.
pub(super) fn write(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len: usize) -> SyscallResult {
    cx.file(fd)?;
    do_write(cx, fd, one(addr, len)?, At::Position)
}

/// `pread64(2)`.
pub(super) fn pread64(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len: usize, at: i64) -> SyscallResult {
    do_read(cx, fd, one(addr, len)?, offset(at)?)
}

/// `pwrite64(2)`.
pub(super) fn pwrite64(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len: usize, at: i64) -> SyscallResult {
    do_write(cx, fd, one(addr, len)?, offset(at)?)
}

/// `readv(2)`.
pub(super) fn readv(cx: &Ctx<'_>, fd: i32, iov: UserAddr, count: u64) -> SyscallResult {
    do_read(cx, fd, read_iovecs(cx, iov, count)?, At::Position)
}

/// `writev(2)`.
pub(super) fn writev(cx: &Ctx<'_>, fd: i32, iov: UserAddr, count: u64) -> SyscallResult {
    do_write(cx, fd, read_iovecs(cx, iov, count)?, At::Position)
}

/// `preadv(2)`. On x86-64 the offset is whole in the low word.
pub(super) fn preadv(cx: &Ctx<'_>, fd: i32, iov: UserAddr, count: u64, at: i64) -> SyscallResult {
    do_read(cx, fd, read_iovecs(cx, iov, count)?, offset(at)?)
}

/// `pwritev(2)`.
pub(super) fn pwritev(cx: &Ctx<'_>, fd: i32, iov: UserAddr, count: u64, at: i64) -> SyscallResult {
    do_write(cx, fd, read_iovecs(cx, iov, count)?, offset(at)?)
}

/// The position of a `preadv2(2)`: -1 means the description's own.
fn place(at: i64) -> Result<At> {
    if at == -1 { Ok(At::Position) } else { offset(at) }
}

/// `preadv2(2)`.
pub(super) fn preadv2(
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
    file.ops.read(&file, &mut IoBuf::user_pieces(cx.aspace(), pieces), at).map(|moved| moved as u64)
}

fn readable(cx: &Ctx<'_>, fd: i32) -> Result<alloc::sync::Arc<File>> {
    cx.file(fd).and_then(|file| if file.flags().readable() { Ok(file) } else { Err(Errno::EBADF) })
}

/// `pwritev2(2)`.
pub(super) fn pwritev2(
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

/// `lseek(2)`.
pub(super) fn lseek(cx: &Ctx<'_>, fd: i32, offset: i64, whence: u32) -> SyscallResult {
    let file = cx.file(fd)?;
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    let whence = match whence {
        0 => Whence::Set,
        1 => Whence::Current,
        2 => Whence::End,
        3 => Whence::Data,
        4 => Whence::Hole,
        _ => return Err(Errno::EINVAL),
    };
    file.ops.seek(&file, offset, whence)
}
