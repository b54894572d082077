//! Reading and writing: positioned on files, without waiting on streams; readiness.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::decode::{Offset, Request};
use super::files::{FileKind, HostFile, HostIo};
use super::guest::GuestBuffers;
use super::sys::{self, Errno};

/// Bytes that a writable pipe takes without waiting.
const PIPE_CHUNK: usize = libc::PIPE_BUF;
/// Bytes that a writable terminal takes without waiting, as a rule: Linux calls it writable when 256 fit.
const TTY_CHUNK: usize = 256;

/// What a stream is on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    Pipe,
    Terminal,
    Socket,
    /// A regular file or block device, at its own position.
    File,
    /// Anything else that can be read or written, as `/dev/null`.
    Other,
}

/// A stream, and whether its descriptor is one of our own that never waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    kind: StreamKind,
    nonblocking: bool,
}

impl Stream {
    /// Finds out what `fd` is. A pipe or terminal is opened anew without waiting if the host lets us: the descriptor
    /// we were handed is shared with strangers, whose flags must stay as they are. `is_own`: it is not, if it does not
    /// wait.
    pub(super) fn prepare(
        fd: OwnedFd,
        proc_dir: BorrowedFd<'_>,
        is_own: bool,
    ) -> Result<(OwnedFd, Self), Errno> {
        let kind = match u32::from(sys::statx(fd.as_fd(), c"")?.stx_mode) & libc::S_IFMT {
            libc::S_IFIFO => StreamKind::Pipe,
            libc::S_IFSOCK => StreamKind::Socket,
            libc::S_IFREG | libc::S_IFBLK => StreamKind::File,
            libc::S_IFCHR if sys::is_tty(fd.as_fd()) => StreamKind::Terminal,
            libc::S_IFDIR => return Err(Errno(libc::EISDIR)),
            _ => StreamKind::Other,
        };
        if !matches!(kind, StreamKind::Pipe | StreamKind::Terminal) {
            return Ok((fd, Self { kind, nonblocking: false }));
        }
        let found = sys::status_flags(fd.as_fd())?;
        if is_own && found & libc::O_NONBLOCK != 0 {
            return Ok((fd, Self { kind, nonblocking: true }));
        }
        let flags = found & libc::O_ACCMODE | libc::O_NONBLOCK | libc::O_NOCTTY;
        match sys::openat(proc_dir, HostIo::fd_name(fd.as_fd()).as_c_str(), flags, 0) {
            Ok(own) => Ok((own, Self { kind, nonblocking: true })),
            Err(_) => Ok((fd, Self { kind, nonblocking: false })),
        }
    }

    #[must_use]
    pub fn kind(self) -> StreamKind {
        self.kind
    }

    #[must_use]
    pub fn is_terminal(self) -> bool {
        self.kind == StreamKind::Terminal
    }
}

impl HostIo {
    pub(super) fn carry_out_stream(&self, request: Request<'_>) -> Result<i64, Errno> {
        match request {
            Request::Read { handle, buffers, offset } => {
                let file = self.files().get(handle)?;
                match (offset, file.kind()) {
                    (Offset::At(offset), _) => sys::preadv(file.as_fd(), buffers.iovecs(), offset),
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
                            sys::pwritev(file.as_fd(), buffers.iovecs(), offset)
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
                self.io().submit_fsync(self.files().get(handle)?, data_only, token)
            }
            Request::TtyWinsize { rows, columns } => {
                let handle = self.terminal.get().ok_or(Errno(libc::ENOTTY))?;
                sys::set_winsize(self.files().get(*handle)?.as_fd(), rows, columns)
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
        StreamKind::Socket => sys::receive(fd, buffers.iovecs()),
        StreamKind::File => sys::readv(fd, buffers.iovecs(), false),
        _ if stream.nonblocking => sys::readv(fd, buffers.iovecs(), false),
        _ => {
            check_ready(file, libc::POLLIN)?;
            match sys::readv(fd, buffers.iovecs(), true) {
                // Not known to this kind of stream. Another reader may now be faster than we are; we would wait then.
                Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS | libc::ESPIPE)) => {
                    sys::readv(fd, buffers.iovecs(), false)
                }
                result => result,
            }
        }
    }
}

fn write_stream(file: &HostFile, stream: Stream, mut buffers: GuestBuffers<'_>) -> Result<i64, Errno> {
    let fd = file.as_fd();
    match stream.kind {
        StreamKind::Socket => sys::send(fd, buffers.iovecs()),
        StreamKind::File => sys::writev(fd, buffers.iovecs(), false),
        _ if stream.nonblocking => sys::writev(fd, buffers.iovecs(), false),
        kind => {
            check_ready(file, libc::POLLOUT)?;
            match sys::writev(fd, buffers.iovecs(), true) {
                Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS | libc::ESPIPE)) => {}
                result => return result,
            }
            match kind {
                StreamKind::Pipe => buffers.truncate(PIPE_CHUNK),
                StreamKind::Terminal => buffers.truncate(TTY_CHUNK),
                _ => {}
            }
            sys::writev(fd, buffers.iovecs(), false)
        }
    }
}
