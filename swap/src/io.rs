//! Reading and writing many pages with few calls, behind a trait that tests replace by one that fails on demand.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

pub use crate::piece::Piece;

/// Most pieces of one call (`UIO_MAXIOV` is 1024); 1 MiB when every page is a piece of its own.
pub const PIECES_MAX: usize = 256;
/// Most bytes of one call.
pub const CALL_BYTES: usize = 4 << 20;

/// Vectored, positioned I/O. May move less than asked for, as `pwritev(2)` does.
pub trait Device: Send + Sync {
    /// Writes pieces that follow each other in the file from `offset` on; returns how many bytes were moved.
    fn write(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize>;
    /// Reads into pieces that follow each other in the file from `offset` on; returns how many bytes were moved.
    fn read(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize>;
    /// Gives the file's blocks in `[offset, offset + len)` back; best effort.
    fn discard(&self, offset: u64, len: u64);
    /// Makes the file so long, without blocks; best effort. The host serialises writes that lengthen a file.
    fn lengthen(&self, len: u64);
    /// How long the file is, in bytes.
    fn file_len(&self) -> io::Result<u64>;
    /// The file's descriptor, if it is one of this process's.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Device for File {
    fn write(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize> {
        let (fd, count, offset) = (self.as_raw_fd(), count_of(pieces), position(offset)?);
        // SAFETY: the promise of `Piece::new`; the kernel reports what it cannot read.
        retry(|| unsafe { libc::pwritev(fd, Piece::as_iovecs(pieces), count, offset) })
    }

    fn read(&self, pieces: &[Piece<'_>], offset: u64) -> io::Result<usize> {
        let (fd, count, offset) = (self.as_raw_fd(), count_of(pieces), position(offset)?);
        // SAFETY: as above.
        retry(|| unsafe { libc::preadv(fd, Piece::as_iovecs(pieces), count, offset) })
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

    fn file_len(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

fn count_of(pieces: &[Piece<'_>]) -> libc::c_int {
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
    /// From memory to the file.
    Write,
    /// From the file to memory.
    Read,
}

/// Moves pieces that follow each other in the file from `offset` on; all of them, or an error.
pub fn transfer(
    device: &dyn Device,
    direction: Direction,
    pieces: &[Piece<'_>],
    mut offset: u64,
) -> io::Result<()> {
    let mut call: Vec<Piece<'_>> = Vec::with_capacity(pieces.len().min(PIECES_MAX));
    let mut rest = pieces;
    while !rest.is_empty() {
        call.clear();
        let mut bytes = 0;
        while let Some((next, later)) = rest.split_first().filter(|_| bytes < CALL_BYTES) {
            // Neighbours in memory are one piece.
            match call.last_mut().and_then(|last| last.joined(*next).map(|both| *last = both)) {
                Some(()) => {}
                None if call.len() == PIECES_MAX => break,
                None => call.push(*next),
            }
            bytes += next.len();
            rest = later;
        }
        whole(device, direction, &mut call, offset)?;
        offset += bytes as u64;
    }
    Ok(())
}

/// Makes one call, and repeats it for the bytes that it left over.
fn whole(
    device: &dyn Device,
    direction: Direction,
    pieces: &mut [Piece<'_>],
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
            if moved < first.len() {
                *first = first.skip(moved);
                break;
            }
            moved -= first.len();
            rest = &mut rest[1..];
        }
    }
    Ok(())
}
