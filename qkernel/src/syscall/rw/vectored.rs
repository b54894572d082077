//! Vectored reading and writing: `readv(2)`, `preadv2(2)` and their counterparts.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::config::RW_MAX_BYTES;
use crate::fs::file::{At, File, OpenFlags};
use crate::fs::notify::Mask;
use crate::net::SocketFile;
use crate::syscall::context::SyscallResult;
use crate::syscall::rw::{check_range, count_read, count_write, do_read, do_write, offset, written};
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
const RWF_NOAPPEND: u32 = 32;

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

/// The flags of a call that moves something: `EOPNOTSUPP` for those that are not known, or not supported here.
fn check_flags(flags: u32) -> Result<()> {
    const KNOWN: u32 = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND | RWF_NOAPPEND;
    if flags & !KNOWN != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

fn is_empty(pieces: &[(UserAddr, usize)]) -> bool {
    pieces.iter().all(|(_, len)| *len == 0)
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
    let at = place(at)?;
    let file = readable(cx, fd)?;
    let pieces = read_iovecs(cx, iov, count)?;
    if !is_empty(&pieces) {
        check_flags(flags)?;
    }
    if flags & RWF_NOWAIT == 0 {
        return do_read(cx, fd, pieces, at);
    }
    let moved = file.ops.read(&file, &mut IoBuf::user_pieces(cx.aspace(), pieces), at)?;
    if moved > 0 {
        file.accessed();
    }
    count_read(cx, Ok(moved as u64))
}

fn readable(cx: &Ctx<'_>, fd: i32) -> Result<Arc<File>> {
    cx.file(fd).and_then(|file| if file.flags().readable() { Ok(file) } else { Err(Errno::EBADF) })
}

/// Where a write with these flags goes.
fn write_place(file: &File, at: At, flags: u32) -> At {
    let appends = file.flags().contains(OpenFlags::APPEND);
    let offset = match at {
        At::Offset(offset) => Some(offset),
        _ => None,
    };
    match flags & (RWF_APPEND | RWF_NOAPPEND) {
        RWF_APPEND if !appends && file.ops.can_append() => At::End { moves: offset.is_none() },
        RWF_NOAPPEND if appends && file.ops.can_append() => At::Exactly(offset),
        _ => at,
    }
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
    let at = place(at)?;
    let file = cx.file(fd)?;
    if !file.flags().writable() {
        return Err(Errno::EBADF);
    }
    let pieces = read_iovecs(cx, iov, count)?;
    if !is_empty(&pieces) {
        check_flags(flags)?;
    }
    let moved = if flags & RWF_NOWAIT == 0 {
        do_write(cx, fd, pieces, write_place(&file, at, flags))?
    } else {
        write_at_once(cx, &file, pieces, at)?
    };
    if flags & (RWF_DSYNC | RWF_SYNC) != 0 {
        file.ops.sync(&file, flags & RWF_SYNC == 0)?;
    }
    Ok(moved)
}

/// Writes what there is room for, without waiting. Files whose writes may wait for a disk refuse that.
fn write_at_once(cx: &Ctx<'_>, file: &File, pieces: Vec<(UserAddr, usize)>, at: At) -> SyscallResult {
    if file.ops.is_seekable() {
        return Err(Errno::EOPNOTSUPP);
    }
    if !at.moves() {
        return Err(Errno::ESPIPE);
    }
    let result = file.ops.write(file, &mut IoBuf::user_pieces(cx.aspace(), pieces), at);
    if result.is_ok_and(|moved| moved > 0) {
        file.notify(Mask::MODIFY);
    }
    let moved =
        if SocketFile::of(file).is_ok() { result.map(|moved| moved as u64) } else { written(cx, result) };
    count_write(cx, moved)
}
