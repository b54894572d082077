//! Kinds of streams on the host, and how each is read and written without waiting.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::fd_name::FdName;
use crate::errno::Errno;
use crate::sys;

/// The kind of a stream on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StreamKind {
    Pipe,
    Terminal,
    Socket,
    /// A regular file or block device, at its own position.
    File,
    /// Anything else that can be read or written, as `/dev/null`.
    Other,
    /// Nothing ever comes, not even the end, and what is written goes nowhere. The descriptor is both ends of a pipe.
    Silence,
}

/// A stream, and whether its descriptor is one of our own that never waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    pub(super) kind: StreamKind,
    pub(super) nonblocking: bool,
}

impl Stream {
    /// Finds out the kind of `fd`. A pipe or terminal is opened anew without waiting if the host allows it: the
    /// descriptor that was handed over is shared with other processes, whose flags must stay as they are. `is_own`: a
    /// descriptor that does not wait is shared with nobody.
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
        match sys::openat(proc_dir, FdName::new("", fd.as_fd()).as_c_str(), flags, 0) {
            Ok(own) => Ok((own, Self { kind, nonblocking: true })),
            Err(_) => Ok((fd, Self { kind, nonblocking: false })),
        }
    }

    /// A stream of which nobody has the other end.
    pub(super) fn silence(proc_dir: BorrowedFd<'_>) -> Result<(OwnedFd, Self), Errno> {
        let (reader, _writer) = std::io::pipe()?;
        let name = FdName::new("", reader.as_fd());
        let both = sys::openat(proc_dir, name.as_c_str(), libc::O_RDWR | libc::O_NONBLOCK, 0)?;
        Ok((both, Self { kind: StreamKind::Silence, nonblocking: true }))
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
