//! Reads and writes of host files and streams to and from user memory.

use abi::hostcall as hc;

use crate::errno::Result;
use crate::host::{self, Handle};
use crate::mm::IoBuf;

/// `READ` at `offset` (`u64::MAX`: the stream position) into `buf`.
pub fn read(file: &Handle, offset: u64, buf: &mut IoBuf<'_>) -> Result<usize> {
    buf.with_segments(true, |segments, done| host::transfer(hc::READ, file, offset, segments, done))
}

/// `WRITE` at `offset` (`u64::MAX`: the stream position) from `buf`.
pub fn write(file: &Handle, offset: u64, buf: &mut IoBuf<'_>) -> Result<usize> {
    buf.with_segments(false, |segments, done| host::transfer(hc::WRITE, file, offset, segments, done))
}
