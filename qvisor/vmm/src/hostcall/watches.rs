//! The host's watches of nodes that others than the sandbox may change, in one instance of `inotify(7)`.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use abi::hostcall::WATCHES_MAX;

use super::arguments::Handle;
use super::decode::Request;
use super::file::{FileKind, HostFile, MountTraits};
use super::host_io::HostIo;
use super::stream_kind::{Stream, StreamKind};
use crate::errno::Errno;
use crate::sys;

/// What the sandbox has watched.
#[derive(Default)]
pub(super) struct Watches {
    stream: Option<Handle>,
    /// The descriptors that were given and not removed.
    descriptors: BTreeSet<i32>,
}

impl HostIo {
    pub(super) fn carry_out_watch(&self, request: Request<'_>) -> Result<i64, Errno> {
        let mut watches = self.watches().lock();
        match request {
            Request::WatchOpen => {
                if watches.stream.is_some() {
                    return Err(Errno(libc::EBUSY));
                }
                let kind = FileKind::Stream(Stream { kind: StreamKind::Other, nonblocking: true });
                let file = HostFile::new(sys::inotify()?, kind, false, MountTraits::default())?;
                let handle = self.files().insert(file)?;
                *watches = Watches { stream: Some(handle), descriptors: BTreeSet::new() };
                Ok(i64::from(handle))
            }
            Request::WatchAdd { stream, node, events } => {
                watches.check(stream)?;
                if watches.descriptors.len() as u64 >= WATCHES_MAX {
                    return Err(Errno(libc::ENOSPC));
                }
                let (stream, node) = (self.files().get(stream)?, self.files().get(node)?);
                let path = self.fd_path(node.as_fd());
                let descriptor = sys::inotify_add_watch(stream.as_fd(), path.as_c_str(), events)?;
                watches.descriptors.insert(descriptor);
                Ok(i64::from(descriptor))
            }
            Request::WatchRemove { stream, descriptor } => {
                watches.check(stream)?;
                if !watches.descriptors.remove(&descriptor) {
                    return Err(Errno(libc::EINVAL));
                }
                sys::inotify_rm_watch(self.files().get(stream)?.as_fd(), descriptor)
            }
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}

impl Watches {
    /// It is closed.
    pub fn closed(&mut self, handle: Handle) {
        if self.stream == Some(handle) {
            *self = Self::default();
        }
    }

    fn check(&self, stream: Handle) -> Result<(), Errno> {
        if self.stream == Some(stream) { Ok(()) } else { Err(Errno(libc::EBADF)) }
    }
}
