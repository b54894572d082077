//! `tee(2)` and `vmsplice(2)`.

use alloc::sync::Arc;

use crate::fs::file::At;
use crate::syscall::context::SyscallResult;
use crate::syscall::splice::moving::{
    CHUNK_BYTES, FLAGS, SPLICE_F_NONBLOCK, TWO_PIPES, files, move_data, pipe_of, put_front, stuck,
};
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::{IoBuf, UserAddr};

/// `tee(2)`.
pub(in crate::syscall) fn tee(
    cx: &Ctx<'_>,
    input: i32,
    output: i32,
    len: usize,
    flags: u32,
) -> SyscallResult {
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let (input, output) = files(cx, input, output)?;
    let (Some(from), Some(to)) = (pipe_of(&input), pipe_of(&output)) else { return Err(Errno::EINVAL) };
    if Arc::ptr_eq(from, to) {
        return Err(Errno::EINVAL);
    }
    let nonblock = flags & SPLICE_F_NONBLOCK != 0;
    let moved = move_data(&input, &output, nonblock, || {
        let _two = TWO_PIPES.lock();
        let mut full = false;
        let copied = from.peek_with(len.min(CHUNK_BYTES), |bytes| put_front(to, bytes, &mut full));
        copied.map_err(|error| stuck(error, full))
    })?;
    Ok(moved as u64)
}

/// `vmsplice(2)`: a vectored write to, or read from, a pipe. It waits for room, but not for room for all.
pub(in crate::syscall) fn vmsplice(
    cx: &Ctx<'_>,
    fd: i32,
    iov: UserAddr,
    count: u64,
    flags: u32,
) -> SyscallResult {
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let file = cx.file(fd)?;
    if pipe_of(&file).is_none() {
        return Err(Errno::EBADF);
    }
    if count > 1024 {
        return Err(Errno::EINVAL);
    }
    let mut buf = IoBuf::user_pieces(cx.aspace(), crate::syscall::message::read_pieces(cx, iov, count)?);
    let nonblock = flags & SPLICE_F_NONBLOCK != 0;
    let moved = if file.flags().writable() {
        if nonblock { file.ops.write(&file, &mut buf, At::Position)? } else { file.write_some(&mut buf)? }
    } else if nonblock {
        file.ops.read(&file, &mut buf, At::Position)?
    } else {
        file.read(&mut buf, At::Position)?
    };
    Ok(moved as u64)
}
