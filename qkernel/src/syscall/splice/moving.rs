//! Moving data between two files, of which either may have to be waited for.

use alloc::sync::Arc;

use crate::fs::block::block_on;
use crate::fs::file::File;
use crate::fs::pipe::{Pipe, PipeEnd};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::sched::wait::PollEvents;
use machine::sync::{Mutex, Rank};

/// Bytes moved in one attempt.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;
pub(super) const SPLICE_F_NONBLOCK: u32 = 2;
pub(super) const FLAGS: u32 = 0xf;

/// Held while two pipes are locked at once.
pub(super) static TWO_PIPES: Mutex<()> = Mutex::new(Rank::TwoPipes, ());

/// Which side an attempt would have had to wait for.
pub(super) enum Stuck {
    Input,
    Output,
    Failed(Errno),
}

/// The side that an attempt's error means, given whether the output was the side that wasn't ready.
pub(super) fn stuck(error: Errno, output: bool) -> Stuck {
    match (error, output) {
        (Errno::EAGAIN, true) => Stuck::Output,
        (Errno::EAGAIN, false) => Stuck::Input,
        _ => Stuck::Failed(error),
    }
}

/// Repeats `attempt`, waiting for the side that isn't ready.
pub(super) fn move_data(
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

pub(super) fn pipe_of(file: &File) -> Option<&Arc<Pipe>> {
    file.as_ops::<PipeEnd>().map(PipeEnd::pipe)
}

/// The two files of a call, checked for their directions.
pub(super) fn files(cx: &Ctx<'_>, input: i32, output: i32) -> Result<(Arc<File>, Arc<File>)> {
    let (input, output) = (cx.file(input)?, cx.file(output)?);
    if !input.flags().readable() || !output.flags().writable() {
        return Err(Errno::EBADF);
    }
    Ok((input, output))
}

/// Puts as many of `bytes` into the pipe as fit.
pub(super) fn put_front(to: &Pipe, bytes: &[u8], full: &mut bool) -> Result<usize> {
    let put = to.put_with(bytes.len(), |room| {
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    });
    *full = put == Err(Errno::EAGAIN);
    put
}
