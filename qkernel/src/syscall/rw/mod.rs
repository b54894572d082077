//! Reading and writing: `read(2)`, `pread(2)`, `lseek(2)` and their counterparts.

pub(super) mod vectored;

use alloc::vec::Vec;

use crate::config::RW_MAX_BYTES;
use crate::fs::file::{At, OpenFlags, Way, Whence};
use crate::net::SocketFile;
use crate::signals::{SIGPIPE, Source};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::signal;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, UserAddr};

/// A buffer that reaches out of user memory is bad before a byte moves.
fn check_range(addr: UserAddr, len: u64) -> Result<()> {
    if addr.has_room(len) { Ok(()) } else { Err(Errno::EFAULT) }
}

fn offset(value: i64) -> Result<At> {
    u64::try_from(value).map(At::Offset).map_err(|_| Errno::EINVAL)
}

fn check_offset(at: At, len: usize) -> Result<()> {
    match at {
        At::Offset(offset) | At::Exactly(Some(offset))
            if offset.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64) =>
        {
            Err(Errno::EINVAL)
        }
        _ => Ok(()),
    }
}

fn do_read(cx: &Ctx<'_>, fd: i32, pieces: Vec<(UserAddr, usize)>, at: At) -> SyscallResult {
    let file = cx.file(fd)?;
    let mut buf = IoBuf::user_pieces(cx.aspace(), pieces);
    check_offset(at, buf.remaining())?;
    if file.flags().contains(OpenFlags::DIRECT) {
        file.ops.check_direct(&file, at, buf.remaining(), Way::Read)?;
    }
    count_read(cx, file.read(&mut buf, at).map(|moved| moved as u64))
}

fn do_write(cx: &Ctx<'_>, fd: i32, pieces: Vec<(UserAddr, usize)>, at: At) -> SyscallResult {
    let file = cx.file(fd)?;
    let mut buf = IoBuf::user_pieces(cx.aspace(), pieces);
    check_offset(at, buf.remaining())?;
    if file.flags().contains(OpenFlags::DIRECT) {
        file.ops.check_direct(&file, at, buf.remaining(), Way::Write)?;
    }
    let result = file.write(&mut buf, at);
    // Sockets know by themselves whether they send the signal: those of datagrams and packets do not.
    let moved =
        if SocketFile::of(&file).is_ok() { result.map(|moved| moved as u64) } else { written(cx, result) };
    count_write(cx, moved)
}

/// Counts a call that reads for `/proc/PID/io`, unless it was wrong in itself.
fn count_read(cx: &Ctx<'_>, moved: SyscallResult) -> SyscallResult {
    if is_counted(moved) {
        cx.task.thread.sched.reads.count(moved.unwrap_or(0));
    }
    moved
}

/// Counts a call that writes for `/proc/PID/io`, unless it was wrong in itself.
fn count_write(cx: &Ctx<'_>, moved: SyscallResult) -> SyscallResult {
    if is_counted(moved) {
        cx.task.thread.sched.writes.count(moved.unwrap_or(0));
    }
    moved
}

/// Counts a call that reads from one file and writes to another.
pub(super) fn count_copy(cx: &Ctx<'_>, moved: SyscallResult) -> SyscallResult {
    count_read(cx, count_write(cx, moved))
}

fn is_counted(moved: SyscallResult) -> bool {
    !matches!(moved, Err(Errno::EBADF | Errno::EINVAL | Errno::EFAULT))
}

/// The result of a write; `EPIPE` raises `SIGPIPE` as well.
pub fn written(cx: &Ctx<'_>, result: Result<usize>) -> SyscallResult {
    if result == Err(Errno::EPIPE) {
        signal::send_to_task(cx.task, SIGPIPE, Source::Kernel);
    }
    result.map(|moved| moved as u64)
}

fn one(addr: UserAddr, len: usize) -> Result<Vec<(UserAddr, usize)>> {
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
    let at = offset(at)?;
    cx.file(fd)?;
    do_read(cx, fd, one(addr, len)?, at)
}

/// `pwrite64(2)`.
pub(super) fn pwrite64(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len: usize, at: i64) -> SyscallResult {
    let at = offset(at)?;
    cx.file(fd)?;
    do_write(cx, fd, one(addr, len)?, at)
}

/// `lseek(2)`.
pub(super) fn lseek(cx: &Ctx<'_>, fd: i32, offset: i64, whence: u32) -> SyscallResult {
    let file = cx.opened(fd)?;
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
