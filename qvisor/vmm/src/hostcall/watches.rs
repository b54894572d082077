//! The host's watches of nodes that others than the sandbox may change, in one instance of `inotify(7)`.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use abi::hostcall::WATCHES_MAX;
use serde::{Deserialize, Serialize};

use super::arguments::Handle;
use super::decode::Request;
use super::file::{FileKind, HostFile, MountTraits};
use super::host_io::HostIo;
use super::stream_kind::{Stream, StreamKind};
use crate::errno::Errno;
use crate::sys;

/// The watches that the sandbox has set: the instance of `inotify(7)`, and its descriptors.
#[derive(Default)]
pub(super) struct Watches {
    stream: Option<Handle>,
    /// The descriptors that were given and not removed.
    descriptors: BTreeSet<i32>,
}

impl HostIo {
    pub(super) fn carry_out_watch(&self, request: Request<'_>) -> Result<i64, Errno> {
        match request {
            Request::WatchOpen => {
                let mut watches = self.watches().lock();
                if watches.stream.is_some() {
                    return Err(Errno(libc::EBUSY));
                }
                let kind = FileKind::Stream(Stream { kind: StreamKind::Other, nonblocking: true });
                // It is no descriptor that is missing, but an instance: nothing is to be closed for it.
                let fd = sys::inotify().map_err(|error| match error {
                    Errno(libc::EMFILE) => Errno(libc::ENOSPC),
                    other => other,
                })?;
                let file = HostFile::new(fd, kind, false, MountTraits::default())?;
                let handle = self.files().insert(file)?;
                *watches = Watches { stream: Some(handle), descriptors: BTreeSet::new() };
                Ok(i64::from(handle))
            }
            Request::WatchAdd { stream, node, events } => {
                self.watches().lock().check(stream)?;
                let (file, node) = (self.files().get(stream)?, self.files().get(node)?);
                if matches!(node.kind(), FileKind::Stream(_) | FileKind::Socket(_)) {
                    return Err(Errno(libc::EINVAL));
                }
                let path = self.fd_path(node.as_fd());
                // Not under the lock: a file server may take its time.
                let descriptor = sys::inotify_add_watch(file.as_fd(), path.as_c_str(), events)?;
                let mut watches = self.watches().lock();
                let is_full = watches.descriptors.len() as u64 >= WATCHES_MAX;
                if is_full && !watches.descriptors.contains(&descriptor) {
                    let _ = sys::inotify_rm_watch(file.as_fd(), descriptor);
                    return Err(Errno(libc::ENOSPC));
                }
                watches.descriptors.insert(descriptor);
                Ok(i64::from(descriptor))
            }
            Request::WatchRemove { stream, descriptor } => {
                let mut watches = self.watches().lock();
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

/// The watches for the next VMM.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchPlan {
    stream: Handle,
    descriptors: BTreeSet<i32>,
}

impl WatchPlan {
    /// The handle by which the host tells.
    pub fn stream(&self) -> &Handle {
        &self.stream
    }
}

impl From<WatchPlan> for Watches {
    fn from(WatchPlan { stream, descriptors }: WatchPlan) -> Self {
        Self { stream: Some(stream), descriptors }
    }
}

impl Watches {
    /// The watches for the next VMM; `None` where nothing is watched.
    pub fn plan(&self) -> Option<WatchPlan> {
        self.stream.map(|stream| WatchPlan { stream, descriptors: self.descriptors.clone() })
    }

    /// It has got another handle.
    pub fn moved(&mut self, from: Handle, to: Handle) {
        self.stream.iter_mut().filter(|stream| **stream == from).for_each(|stream| *stream = to);
    }

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
