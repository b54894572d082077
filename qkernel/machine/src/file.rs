//! Reads and writes of host files and streams to and from user memory.

use abi::hostcall as hc;

use crate::blocking;
use crate::errno::{Errno, Result};
use crate::host::{self, Handle};
use crate::mm::IoBuf;
use crate::sched;

/// The offset that stands for the stream position.
const STREAM: u64 = u64::MAX;

/// `READ` at `offset` (`u64::MAX`: the stream position) into `buf`. While tasks wait for a CPU, what the host has to bring
/// from a disk comes while this task sleeps.
pub fn read(file: &Handle, offset: u64, buf: &mut IoBuf<'_>) -> Result<usize> {
    if offset == STREAM || !sched::has_waiting() {
        return read_with(file, offset, buf, false);
    }
    let mut done = 0;
    loop {
        match read_with(file, offset + done as u64, buf, true) {
            Ok(0) => return Ok(done),
            Ok(moved) => done += moved,
            Err(Errno::EAGAIN) => break,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
        if buf.is_empty() {
            return Ok(done);
        }
    }
    let (at, len) = (offset + done as u64, buf.remaining() as u64);
    // The read says what is wrong, if anything is.
    let _ = blocking::call(hc::ASYNC_WARM, [file.arg(), at, len.min(hc::WARM_MAX_BYTES)]);
    match read_with(file, at, buf, false) {
        Ok(moved) => Ok(done + moved),
        Err(_) if done > 0 => Ok(done),
        Err(error) => Err(error),
    }
}

fn read_with(file: &Handle, offset: u64, buf: &mut IoBuf<'_>, cached: bool) -> Result<usize> {
    buf.with_segments(true, |segments, done| host::transfer(hc::READ, file, offset, segments, done, cached))
}

/// `WRITE` at `offset` (`u64::MAX`: the stream position) from `buf`.
pub fn write(file: &Handle, offset: u64, buf: &mut IoBuf<'_>) -> Result<usize> {
    buf.with_segments(false, |segments, done| host::transfer(hc::WRITE, file, offset, segments, done, false))
}

/// Writes what the host still holds of the file to its disk, or of its content alone (`data_only`); the task sleeps
/// meanwhile.
pub fn sync(file: &Handle, data_only: bool) -> Result<()> {
    match blocking::call(hc::ASYNC_FSYNC, [file.arg(), u64::from(data_only), 0]) {
        // The host is at work on too much.
        Err(Errno::EAGAIN) => host::fsync(file, data_only),
        result => result.map(drop),
    }
}
