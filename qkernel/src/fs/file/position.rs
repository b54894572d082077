//! Positions in files: where a write goes, how far it may go, and `lseek(2)`.

use crate::fs::caller;
use crate::limits::RLIMIT_FSIZE;
use crate::signals::{SIGXFSZ, Source};
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sync::Mutex;

use super::{At, File, Whence};

/// Performs a write that is positioned as `at` and the file's flags say. `lock` serialises writers of the inode; the
/// size is asked for under it when the file appends.
pub fn append_position(
    file: &File,
    at: At,
    lock: &Mutex<()>,
    size: impl FnOnce() -> Result<u64>,
    write: impl FnOnce(u64) -> Result<usize>,
) -> Result<usize> {
    let appends = at.appends(file.flags());
    if !at.moves() {
        let _one = lock.lock();
        // As on Linux, O_APPEND wins over the offset.
        return write(if appends { size()? } else { at.from(0) });
    }
    let mut position = file.pos.lock();
    let _one = lock.lock();
    let offset = if appends { size()? } else { *position };
    let moved = write(offset)?;
    if moved > 0 {
        *position = offset + moved as u64;
    }
    Ok(moved)
}

/// Shortens a write at `offset` of a regular file to what `RLIMIT_FSIZE` and the largest size allow; `EFBIG` when
/// nothing is left.
pub fn limit_write(offset: u64, buf: &mut IoBuf<'_>) -> Result<()> {
    if !buf.is_empty() {
        buf.truncate(room_to_write(offset)?);
    }
    Ok(())
}

/// The bytes that may be written at `offset` of a regular file; `EFBIG`: none, and its signal is sent.
pub fn room_to_write(offset: u64) -> Result<usize> {
    let caller = caller::current();
    let limit = caller.soft_limit(RLIMIT_FSIZE);
    let largest = limit.min(i64::MAX as u64);
    let room = largest.saturating_sub(offset);
    if room == 0 {
        if limit < i64::MAX as u64 {
            caller.send_signal(SIGXFSZ, Source::Kernel);
        }
        return Err(Errno::EFBIG);
    }
    Ok(usize::try_from(room).unwrap_or(usize::MAX))
}

/// `lseek(2)` of a regular file of this size.
pub fn seek_in_file(
    file: &File,
    offset: i64,
    whence: Whence,
    size: impl FnOnce() -> Result<u64>,
) -> Result<u64> {
    let mut position = file.pos.lock();
    let base = match whence {
        Whence::Set => 0,
        Whence::Current => *position,
        Whence::End => size()?,
        Whence::Data | Whence::Hole => return Err(Errno::EINVAL),
    };
    let target = i64::try_from(base).ok().and_then(|base| base.checked_add(offset)).ok_or(Errno::EINVAL)?;
    *position = u64::try_from(target).map_err(|_| Errno::EINVAL)?;
    Ok(*position)
}

/// `lseek(2)` of a directory: positions mean something only to the file system.
pub fn seek_in_dir(file: &File, offset: i64, whence: Whence) -> Result<u64> {
    match whence {
        Whence::Set | Whence::Current => seek_in_file(file, offset, whence, || Ok(0)),
        _ => Err(Errno::EINVAL),
    }
}
