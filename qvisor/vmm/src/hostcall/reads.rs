//! Reads of files whose content may be on a disk: what the host's page cache holds is had at once, and the rest is brought
//! there by an I/O thread.
//!
//! `preadv2(2)` with `RWF_NOWAIT` says which it is. Where a file system does not know that flag (overlayfs, tmpfs), the last
//! read decides: one that took long was from the disk, and the next one is left to an I/O thread, until one of those was
//! fast again.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::errno::Errno;
use crate::guest_memory::GuestBuffers;
use crate::sys;

/// A read that takes longer was from the disk, and a nanosecond more for each of its bytes.
const LONG: Duration = Duration::from_micros(60);
/// Bytes that a thread reads at a time to have them in the page cache.
const PART_BYTES: usize = 64 << 10;

/// The experience with reads of a file: whether they have to wait, as far as the file system and the last ones tell.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// The file system does not say whether it has to wait.
    is_blind: AtomicBool,
    /// The last read that could have told took long.
    are_slow: AtomicBool,
}

impl Reads {
    /// Reads what is in the page cache. `EAGAIN`: nothing, as far as is known.
    pub(super) fn read_cached(
        &self,
        fd: BorrowedFd<'_>,
        buffers: &GuestBuffers<'_>,
        offset: i64,
    ) -> Result<i64, Errno> {
        if !self.is_blind.load(Ordering::Relaxed) {
            match sys::preadv_cached(fd, buffers, offset) {
                Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)) => {
                    self.is_blind.store(true, Ordering::Relaxed);
                }
                // The end of the file; some hosts (Linux 5.9 and 5.10) say so elsewhere, too, so it is asked once more.
                Ok(0) => return sys::preadv(fd, buffers, offset),
                result => return result,
            }
        }
        if self.are_slow.load(Ordering::Relaxed) {
            return Err(Errno(libc::EAGAIN));
        }
        let start = Instant::now();
        let result = sys::preadv(fd, buffers, offset);
        self.note(start, u64::try_from(buffers.total()).unwrap_or(0));
        result
    }

    /// Has up to `len` bytes from `offset` on in the page cache.
    pub(super) fn warm(&self, fd: BorrowedFd<'_>, offset: i64, len: u64) -> Result<i64, Errno> {
        let start = Instant::now();
        let mut part = vec![0; PART_BYTES.min(usize::try_from(len).unwrap_or(PART_BYTES))];
        let (mut at, end) = (offset, offset.saturating_add_unsigned(len));
        while at < end {
            match sys::pread(fd, &mut part, at)? {
                0 => break,
                moved => at += moved,
            }
        }
        self.note(start, len);
        Ok(0)
    }

    fn note(&self, start: Instant, len: u64) {
        let is_slow = start.elapsed() > LONG + Duration::from_nanos(len);
        self.are_slow.store(is_slow, Ordering::Relaxed);
    }
}
