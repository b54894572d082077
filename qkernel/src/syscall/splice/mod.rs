//! Moving data between pipes and files in the kernel: `splice(2)`. All copy.

mod moving;
pub(super) mod tee;

use alloc::sync::Arc;

use crate::fs::file::{At, File, OpenFlags};
use crate::fs::notify::Mask;
use crate::fs::pipe::Pipe;
use crate::syscall::context::SyscallResult;
use crate::syscall::splice::moving::{
    CHUNK_BYTES, FLAGS, SPLICE_F_NONBLOCK, Stuck, TWO_PIPES, files, move_data, pipe_of, put_front, stuck,
};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, UserAddr};

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
    if len == 0 {
        return Ok(0);
    }
    let (input, output) = files(cx, input, output)?;
    let from = position(cx, &input, input_offset)?;
    let to = position(cx, &output, output_offset)?;
    let nonblock = flags & SPLICE_F_NONBLOCK != 0;
    let len = len.min(CHUNK_BYTES);
    let moved = match (pipe_of(&input), pipe_of(&output)) {
        (Some(a), Some(b)) if Arc::ptr_eq(a, b) => return Err(Errno::EINVAL),
        (Some(a), Some(b)) => move_data(&input, &output, nonblock, || between_pipes(a, b, len))?,
        (Some(pipe), None) => {
            if output.flags().contains(OpenFlags::APPEND) || !output.ops.takes_splices() {
                return Err(Errno::EINVAL);
            }
            move_data(&input, &output, nonblock, || out_of_pipe(pipe, &output, at(to), len))?
        }
        (None, Some(_)) if !input.ops.can_be_spliced() => return Err(Errno::EINVAL),
        (None, Some(pipe)) => {
            let moved = move_data(&input, &output, nonblock, || into_pipe(&input, at(from), pipe, len));
            moved.map_err(|error| if error == Errno::EISDIR { Errno::EINVAL } else { error })?
        }
        (None, None) => return Err(Errno::EINVAL),
    };
    if moved > 0 {
        input.accessed();
        output.notify(Mask::MODIFY);
    }
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
