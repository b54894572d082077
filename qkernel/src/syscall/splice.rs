//! Moving data between pipes and files in the kernel: `splice(2)`, `tee(2)`, `vmsplice(2)`. All of them copy.

use alloc::sync::Arc;

use crate::fs::block::block_on;
use crate::fs::file::{At, File, OpenFlags};
use crate::fs::pipe::{Pipe, PipeEnd};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, UserAddr};
use machine::sched::wait::PollEvents;
use machine::sync::{Mutex, Rank};

/// Bytes moved in one attempt.
const CHUNK_BYTES: usize = 64 * 1024;
const SPLICE_F_NONBLOCK: u32 = 2;
const FLAGS: u32 = 0xf;

/// Held while two pipes are locked at once.
static TWO_PIPES: Mutex<()> = Mutex::new(Rank::TwoPipes, ());

/// Which side an attempt would have had to wait for.
enum Stuck {
    Input,
    Output,
    Failed(Errno),
}

/// The side that an attempt's error means, given whether the output was the side that wasn't ready.
fn stuck(error: Errno, output: bool) -> Stuck {
    match (error, output) {
        (Errno::EAGAIN, true) => Stuck::Output,
        (Errno::EAGAIN, false) => Stuck::Input,
        _ => Stuck::Failed(error),
    }
}

/// Repeats `attempt`, waiting for the side that isn't ready.
fn move_data(
    input: &File,
    output: &File,
    nonblock: bool,
    mut attempt: impl FnMut() -> core::result::Result<usize, Stuck>,
) -> Result<usize> {
    loop {
        let (file, events) = match attempt() {
            Ok(moved) => return Ok(moved),
            Err(Stuck::Failed(error)) => return Err(error),
            Err(Stuck::Input) => (input, PollEvents::READABLE),
            Err(Stuck::Output) => (output, PollEvents::WRITABLE),
        };
        let events = events | PollEvents::HUP | PollEvents::ERR;
        block_on(file, events, nonblock || file.is_nonblocking(), None, || {
            if file.ops.poll(file, None).intersects(events) { Ok(()) } else { Err(Errno::EAGAIN) }
        })?;
    }
}

fn pipe_of(file: &File) -> Option<&Arc<Pipe>> {
    file.as_ops::<PipeEnd>().map(PipeEnd::pipe)
}

/// The two files of a call, checked for their directions.
fn files(cx: &Ctx<'_>, input: i32, output: i32) -> Result<(Arc<File>, Arc<File>)> {
    let (input, output) = (cx.file(input)?, cx.file(output)?);
    if !input.flags().readable() || !output.flags().writable() {
        return Err(Errno::EBADF);
    }
    Ok((input, output))
}

/// A file's position for a call that may bring its own offset.
fn position(cx: &Ctx<'_>, file: &File, offset: UserAddr) -> Result<Option<u64>> {
    if offset.is_null() {
        return Ok(None);
    }
    if !file.ops.is_seekable() {
        return Err(Errno::ESPIPE);
    }
    let at: i64 = cx.user().read(offset)?;
    u64::try_from(at).map(Some).map_err(|_| Errno::EINVAL)
}

fn at(position: Option<u64>) -> At {
    position.map_or(At::Position, At::Offset)
}

/// `splice(2)`.
pub(super) fn splice(
    cx: &Ctx<'_>,
    input: i32,
    input_offset: UserAddr,
    output: i32,
    output_offset: UserAddr,
    len: usize,
    flags: u32,
) -> SyscallResult {
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let (input, output) = files(cx, input, output)?;
    if len == 0 {
        return Ok(0);
    }
    let from = position(cx, &input, input_offset)?;
    let to = position(cx, &output, output_offset)?;
    let nonblock = flags & SPLICE_F_NONBLOCK != 0;
    let len = len.min(CHUNK_BYTES);
    let moved = match (pipe_of(&input), pipe_of(&output)) {
        (Some(a), Some(b)) if Arc::ptr_eq(a, b) => return Err(Errno::EINVAL),
        (Some(a), Some(b)) => move_data(&input, &output, nonblock, || between_pipes(a, b, len))?,
        (Some(pipe), None) => {
            if output.flags().contains(OpenFlags::APPEND) {
                return Err(Errno::EINVAL);
            }
            move_data(&input, &output, nonblock, || out_of_pipe(pipe, &output, at(to), len))?
        }
        (None, Some(pipe)) => {
            move_data(&input, &output, nonblock, || into_pipe(&input, at(from), pipe, len))?
        }
        (None, None) => return Err(Errno::EINVAL),
    };
    for (address, position) in [(input_offset, from), (output_offset, to)] {
        if let Some(position) = position {
            cx.user().write(address, &position.saturating_add(moved as u64))?;
        }
    }
    Ok(moved as u64)
}

fn out_of_pipe(pipe: &Pipe, output: &File, to: At, len: usize) -> core::result::Result<usize, Stuck> {
    let mut output_stuck = false;
    let taken = pipe.take_with(len, |bytes| {
        let written = output.ops.write(output, &mut IoBuf::kernel(bytes), to);
        output_stuck = written == Err(Errno::EAGAIN);
        written
    });
    taken.map_err(|error| stuck(error, output_stuck))
}

fn into_pipe(input: &File, from: At, pipe: &Pipe, len: usize) -> core::result::Result<usize, Stuck> {
    let mut input_stuck = false;
    let put = pipe.put_with(len, |bytes| {
        let read = input.ops.read(input, &mut IoBuf::kernel(bytes), from);
        input_stuck = read == Err(Errno::EAGAIN);
        read
    });
    put.map_err(|error| stuck(error, !input_stuck))
}

fn between_pipes(from: &Pipe, to: &Pipe, len: usize) -> core::result::Result<usize, Stuck> {
    let _two = TWO_PIPES.lock();
    let mut full = false;
    let taken = from.take_with(len, |bytes| put_front(to, bytes, &mut full));
    taken.map_err(|error| stuck(error, full))
}

/// Puts as many of `bytes` into the pipe as fit.
fn put_front(to: &Pipe, bytes: &[u8], full: &mut bool) -> Result<usize> {
    let put = to.put_with(bytes.len(), |room| {
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    });
    *full = put == Err(Errno::EAGAIN);
    put
}

/// `tee(2)`.
pub(super) fn tee(cx: &Ctx<'_>, input: i32, output: i32, len: usize, flags: u32) -> SyscallResult {
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let (input, output) = files(cx, input, output)?;
    if len == 0 {
        return Ok(0);
    }
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

/// `vmsplice(2)`: a vectored write to, or read from, a pipe.
pub(super) fn vmsplice(cx: &Ctx<'_>, fd: i32, iov: UserAddr, count: u64, flags: u32) -> SyscallResult {
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
        if nonblock {
            file.ops.write(&file, &mut buf, At::Position)?
        } else {
            file.write(&mut buf, At::Position)?
        }
    } else if nonblock {
        file.ops.read(&file, &mut buf, At::Position)?
    } else {
        file.read(&mut buf, At::Position)?
    };
    Ok(moved as u64)
}
