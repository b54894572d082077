//! Ties of a sandbox that had another VMM: its kernel opens everything anew, under the handles that it has.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::arguments::{Handle, handle};
use super::decode::Request;
use super::file::{FileKind, HostFile, MountTraits};
use super::host_io::HostIo;
use super::sockets::request::SocketKind;
use super::sockets::sys as sockets;
use super::stream_kind::Stream;
use crate::checkpoint::ORPHANS_BYTES_MAX;
use crate::errno::Errno;
use crate::memory;
use crate::process;
use crate::sys;

/// How long a connection to this host may take to be made.
const CONNECT_MS: i32 = 2000;
/// Addresses of this host for itself, at any free port: `struct sockaddr_in` and `struct sockaddr_in6`.
const HERE: [u8; 16] = [2, 0, 0, 0, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
const HERE_6: [u8; 28] =
    [10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];

impl HostIo {
    pub(super) fn carry_out_tie(&self, request: Request<'_>) -> Result<i64, Errno> {
        match request {
            Request::Place { from, to } => self.place(from, to).map(|()| 0),
            Request::Placed => {
                self.files().end_placing();
                Ok(0)
            }
            Request::LostStream | Request::LostConnection { .. } if !self.files().is_placing() => {
                Err(Errno(libc::EPERM))
            }
            Request::LostStream => {
                let (fd, stream) = Stream::prepare(self.hung_up()?, self.proc_dir(), true)?;
                self.insert(HostFile::new(fd, FileKind::Stream(stream), false, MountTraits::default()))
            }
            Request::LostConnection { kind, token } => {
                let (fd, kind) = match reset_connection(kind) {
                    Ok(fd) => (fd, kind),
                    // What may be done with it is what may be with any Unix socket.
                    Err(_) => (self.hung_up()?, SocketKind { family: libc::AF_UNIX, ..kind }),
                };
                self.insert_socket(fd, kind, token).map(i64::from)
            }
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// Copies the content of a regular file to a file of an image, from an offset on, as long as that is wanted. Result: bytes.
    pub(crate) fn keep_content(
        &self,
        number: u64,
        image: &File,
        offset: u64,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<i64, Errno> {
        let file = self.files().get(handle(number)?)?;
        if file.kind() != FileKind::Regular {
            return Err(Errno(libc::EINVAL));
        }
        // One that only names the node cannot be read by.
        let name = Self::fd_name(file.as_fd());
        let from = File::from(sys::openat(self.proc_dir(), name.as_c_str(), libc::O_RDONLY, 0)?);
        let len = from.metadata()?.len();
        if offset.checked_add(len).is_none_or(|end| end > ORPHANS_BYTES_MAX) {
            return Err(Errno(libc::EFBIG));
        }
        // Holes stay holes.
        for piece in memory::data_of(&from.try_clone()?.into(), len)? {
            copy(
                from.as_fd(),
                piece.start,
                image.as_fd(),
                offset + piece.start,
                piece.end - piece.start,
                is_wanted,
            )?;
        }
        position(len)
    }

    /// Gives a regular file, which is empty, so many bytes that an image has kept from an offset on.
    pub(crate) fn put_content(&self, number: u64, image: &File, offset: u64, len: u64) -> Result<i64, Errno> {
        let file = self.files().get(handle(number)?)?;
        let end =
            offset.checked_add(len).filter(|end| *end <= ORPHANS_BYTES_MAX).ok_or(Errno(libc::EINVAL))?;
        if file.kind() != FileKind::Regular || file.is_path_only() {
            return Err(Errno(libc::EINVAL));
        }
        // The image may end with a hole, and is no shorter than its kernel says otherwise.
        let pieces = memory::data_of(&image.try_clone()?.into(), end)?;
        for piece in pieces.into_iter().filter(|piece| piece.end > offset) {
            let start = piece.start.max(offset);
            let copy = |len: u64| copy(image.as_fd(), start, file.as_fd(), start - offset, len, &|| true);
            let copied = self.writing(&file, start - offset, piece.end - start, copy)?;
            if copied.cast_unsigned() != piece.end - start {
                return Err(Errno(libc::ENOSPC));
            }
        }
        sys::ftruncate(file.as_fd(), position(len)?)?;
        position(len)
    }

    fn place(&self, from: Handle, to: Handle) -> Result<(), Errno> {
        let file = self.files().get(from)?;
        self.files().place(from, to)?;
        self.io().forget(from, &file);
        self.locks().closed(from);
        self.terminal.moved(from, to);
        self.watches().lock().moved(from, to);
        Ok(())
    }

    /// A stream whose other end is closed.
    fn hung_up(&self) -> Result<OwnedFd, Errno> {
        let lost = self.lost_stream.get().ok_or(Errno(libc::EPERM))?;
        Ok(lost.try_clone()?)
    }
}

fn position(offset: u64) -> Result<i64, Errno> {
    i64::try_from(offset).map_err(|_| Errno(libc::EINVAL))
}

/// Copies `len` bytes, as far as there are any and they are wanted. Result: how many.
fn copy(
    from: BorrowedFd<'_>,
    from_at: u64,
    to: BorrowedFd<'_>,
    to_at: u64,
    len: u64,
    is_wanted: &dyn Fn() -> bool,
) -> Result<i64, Errno> {
    let mut buffer = vec![0; 1 << 17];
    let (from_at, to_at, mut done) = (position(from_at)?, position(to_at)?, 0_i64);
    while let left @ 1.. = len - done.cast_unsigned() {
        if !is_wanted() {
            return Err(Errno(libc::ECANCELED));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        match sys::copy_step(from, from_at + done, to, to_at + done, &mut buffer[..most])? {
            0 => break,
            bytes => done += bytes,
        }
    }
    Ok(done)
}

/// A connection to nobody, whose other end was closed with a byte unread: the first call on it meets `ECONNRESET`, and those after it the
/// end.
fn reset_connection(kind: SocketKind) -> Result<OwnedFd, Errno> {
    let here = match kind.family {
        libc::AF_INET => &HERE[..],
        libc::AF_INET6 => &HERE_6,
        // A pair cannot be made in the jail.
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    let listener = sockets::socket(kind)?;
    sockets::bind(listener.as_fd(), here)?;
    sockets::listen(listener.as_fd(), 1)?;
    let mut address = [0; 28];
    let len = sockets::own_name(listener.as_fd(), &mut address)?;
    let ours = sockets::socket(kind)?;
    match sockets::connect(ours.as_fd(), &address[..len.min(address.len())]) {
        Ok(_) | Err(Errno(libc::EINPROGRESS)) => {}
        Err(error) => return Err(error),
    }
    // As a rule it is made at once.
    let _ = process::wait_readable([listener.as_raw_fd()], CONNECT_MS);
    let theirs = sockets::accept_any(listener.as_fd())?;
    sys::send_bytes(ours.as_fd(), &[0])?;
    drop(theirs);
    Ok(ours)
}
