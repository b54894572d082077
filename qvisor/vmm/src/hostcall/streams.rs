//! Reading and writing: positioned on files, without waiting on streams; readiness.

use std::os::fd::AsFd;

use super::decode::{Offset, Request};
use super::file::{FileKind, HostFile};
use super::host_io::HostIo;
use super::io_threads::Urgency;
use super::stream_kind::{Stream, StreamKind};
use crate::errno::Errno;
use crate::guest_memory::GuestBuffers;
use crate::sys;

/// Bytes that a writable pipe takes without waiting.
const PIPE_CHUNK: usize = libc::PIPE_BUF;
/// Bytes that a writable terminal takes without waiting, as a rule: Linux calls it writable when 256 fit.
const TTY_CHUNK: usize = 256;

impl HostIo {
    pub(super) fn carry_out_stream(&self, request: Request<'_>) -> Result<i64, Errno> {
        match request {
            Request::Read { handle, buffers, offset, cached } => {
                let file = self.files().get(handle)?;
                match (offset, file.kind()) {
                    (Offset::At(offset), FileKind::Regular) if cached => {
                        file.reads.read_cached(file.as_fd(), &buffers, offset)
                    }
                    (Offset::At(offset), _) => sys::preadv(file.as_fd(), &buffers, offset),
                    (Offset::Stream, FileKind::Stream(stream)) => read_stream(&file, stream, &buffers),
                    (Offset::Stream, _) => Err(Errno(libc::EINVAL)),
                }
            }
            Request::Write { handle, buffers, offset } => {
                let file = self.files().get(handle)?;
                match (offset, file.kind()) {
                    (Offset::At(offset), _) => {
                        let (at, total) = (u64::try_from(offset).unwrap_or(0), buffers.total());
                        let mut buffers = buffers;
                        self.writing(&file, at, total as u64, |len| {
                            buffers.truncate(usize::try_from(len).unwrap_or(total));
                            sys::pwritev(file.as_fd(), &buffers, offset)
                        })
                    }
                    (Offset::Stream, FileKind::Stream(stream)) => write_stream(&file, stream, buffers),
                    (Offset::Stream, _) => Err(Errno(libc::EINVAL)),
                }
            }
            Request::PollArm { handle, events, token } => {
                let file = self.files().get(handle)?;
                self.io().arm(handle, &file, events, token)
            }
            Request::PollNow { handle, events } => {
                let file = self.files().get(handle)?;
                poll(&file, events)
            }
            Request::SubmitFsync { handle, data_only, token } => {
                let file = self.files().get(handle)?;
                let sync = move || sys::fsync(file.as_fd(), data_only).unwrap_or_else(Errno::as_result);
                self.io().submit(token, Urgency::File, Box::new(sync))
            }
            Request::SubmitWarm { handle, offset, len, token } => {
                let file = self.files().get(handle)?;
                let warm =
                    move || file.reads.warm(file.as_fd(), offset, len).unwrap_or_else(Errno::as_result);
                self.io().submit(token, Urgency::File, Box::new(warm))
            }
            Request::TtyWinsize { rows, columns } => {
                let handle = self.terminal.get().ok_or(Errno(libc::ENOTTY))?;
                sys::set_winsize(self.files().get(handle)?.as_fd(), rows, columns)
            }
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}

fn poll(file: &HostFile, events: u32) -> Result<i64, Errno> {
    let events = i16::try_from(events).map_err(|_| Errno(libc::EINVAL))?;
    sys::poll_now(file.as_fd(), events).map(|ready| i64::from(ready.cast_unsigned()))
}

/// `EAGAIN` unless the stream has one of the events, an error or a hang-up to report.
fn check_ready(file: &HostFile, events: i16) -> Result<(), Errno> {
    if sys::poll_now(file.as_fd(), events)? == 0 { Err(Errno(libc::EAGAIN)) } else { Ok(()) }
}

fn read_stream(file: &HostFile, stream: Stream, buffers: &GuestBuffers<'_>) -> Result<i64, Errno> {
    let fd = file.as_fd();
    match stream.kind {
        StreamKind::Silence => Err(Errno(libc::EAGAIN)),
        StreamKind::Socket => sys::receive(fd, buffers),
        StreamKind::File => sys::readv(fd, buffers, false),
        _ if stream.nonblocking => sys::readv(fd, buffers, false),
        _ => {
            check_ready(file, libc::POLLIN)?;
            match sys::readv(fd, buffers, true) {
                // Not known to this kind of stream. Another reader may now be faster than we are; we would wait then.
                Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS | libc::ESPIPE)) => sys::readv(fd, buffers, false),
                result => result,
            }
        }
    }
}

fn write_stream(file: &HostFile, stream: Stream, mut buffers: GuestBuffers<'_>) -> Result<i64, Errno> {
    let fd = file.as_fd();
    match stream.kind {
        StreamKind::Silence => Ok(i64::try_from(buffers.total()).unwrap_or(i64::MAX)),
        StreamKind::Socket => sys::send(fd, &buffers),
        StreamKind::File => sys::writev(fd, &buffers, false),
        _ if stream.nonblocking => sys::writev(fd, &buffers, false),
        kind => {
            check_ready(file, libc::POLLOUT)?;
            match sys::writev(fd, &buffers, true) {
                Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS | libc::ESPIPE)) => {}
                result => return result,
            }
            match kind {
                StreamKind::Pipe => buffers.truncate(PIPE_CHUNK),
                StreamKind::Terminal => buffers.truncate(TTY_CHUNK),
                _ => {}
            }
            sys::writev(fd, &buffers, false)
        }
    }
}
