//! Reading and writing many pages with few calls, behind a trait that tests replace by one that fails on demand.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::page::PAGE_BYTES;

/// Most pieces of one call (`UIO_MAXIOV` is 1024); 1 MiB when every page is a piece of its own.
pub const PIECES_MAX: usize = 256;
/// Most bytes of one call.
pub const CALL_BYTES: usize = 4 << 20;

/// Vectored, positioned I/O. May move less than asked for, as `pwritev(2)` does.
pub trait Device: Send + Sync {
    fn write(&self, pieces: &[libc::iovec], offset: u64) -> io::Result<usize>;
    fn read(&self, pieces: &[libc::iovec], offset: u64) -> io::Result<usize>;
    /// Gives the file's blocks in `[offset, offset + len)` back; best effort.
    fn discard(&self, offset: u64, len: u64);
    /// Makes the file so long, without blocks; best effort. The host serialises writes that lengthen a file.
    fn lengthen(&self, len: u64);
}

impl Device for File {
    fn write(&self, pieces: &[libc::iovec], offset: u64) -> io::Result<usize> {
        let (fd, count, offset) = (self.as_raw_fd(), count_of(pieces), position(offset)?);
        // SAFETY: the pieces are pages of `crate::page::Page`, which are mapped; the kernel reports what it cannot read.
        retry(|| unsafe { libc::pwritev(fd, pieces.as_ptr(), count, offset) })
    }

    fn read(&self, pieces: &[libc::iovec], offset: u64) -> io::Result<usize> {
        let (fd, count, offset) = (self.as_raw_fd(), count_of(pieces), position(offset)?);
        // SAFETY: as above; the pages are writable.
        retry(|| unsafe { libc::preadv(fd, pieces.as_ptr(), count, offset) })
    }

    fn discard(&self, offset: u64, len: u64) {
        let (Ok(offset), Ok(len)) = (position(offset), position(len)) else { return };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: integers only.
        unsafe { libc::fallocate(self.as_raw_fd(), mode, offset, len) };
    }

    fn lengthen(&self, len: u64) {
        let _ = self.set_len(len);
    }
}

fn count_of(pieces: &[libc::iovec]) -> libc::c_int {
    libc::c_int::try_from(pieces.len()).unwrap_or(libc::c_int::MAX)
}

fn position(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(moved) => return Ok(moved),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Write,
    Read,
}

/// Moves pages that follow each other in the file from `offset` on; all of them, or an error.
pub fn transfer(device: &dyn Device, direction: Direction, addrs: &[*mut u8], offset: u64) -> io::Result<()> {
    let mut pieces: Vec<libc::iovec> = Vec::with_capacity(addrs.len().min(PIECES_MAX));
    let (mut next, mut offset) = (0, offset);
    while next < addrs.len() {
        pieces.clear();
        let mut bytes = 0;
        while next < addrs.len() && bytes < CALL_BYTES {
            let full = pieces.len() == PIECES_MAX;
            match pieces.last_mut() {
                // Neighbours in memory are one piece.
                Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == addrs[next] => {
                    last.iov_len += PAGE_BYTES;
                }
                _ if full => break,
                _ => pieces.push(libc::iovec { iov_base: addrs[next].cast(), iov_len: PAGE_BYTES }),
            }
            bytes += PAGE_BYTES;
            next += 1;
        }
        whole(device, direction, &mut pieces, offset)?;
        offset += bytes as u64;
    }
    Ok(())
}

/// Makes one call, and repeats it for the bytes that it left over.
fn whole(
    device: &dyn Device,
    direction: Direction,
    pieces: &mut [libc::iovec],
    mut offset: u64,
) -> io::Result<()> {
    let mut rest = pieces;
    while !rest.is_empty() {
        let mut moved = match direction {
            Direction::Write => device.write(rest, offset)?,
            Direction::Read => device.read(rest, offset)?,
        };
        if moved == 0 {
            return Err(match direction {
                Direction::Write => io::ErrorKind::WriteZero.into(),
                Direction::Read => io::ErrorKind::UnexpectedEof.into(),
            });
        }
        offset += moved as u64;
        while let Some(first) = rest.first_mut() {
            if moved < first.iov_len {
                first.iov_base = first.iov_base.cast::<u8>().wrapping_add(moved).cast();
                first.iov_len -= moved;
                break;
            }
            moved -= first.iov_len;
            rest = &mut rest[1..];
        }
    }
    Ok(())
}
