//! Carries out the calls of sockets.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::super::arguments::Handle;
use super::super::file::{FileKind, HostFile, MountTraits};
use super::super::host_io::HostIo;
use super::request::{ReceiveRequest, SendRequest, SocketKind, SocketRequest};
use super::sys;
use crate::broker::Ids;
use crate::errno::Errno;

impl HostIo {
    pub(in crate::hostcall) fn carry_out_socket(&self, request: SocketRequest<'_>) -> Result<i64, Errno> {
        match request {
            SocketRequest::Create { kind, token } => {
                let fd = sys::socket(kind)?;
                self.insert_socket(fd, kind, token).map(i64::from)
            }
            SocketRequest::Bind { handle, address } => {
                sys::bind(self.net_socket(handle)?.0.as_fd(), &address)
            }
            SocketRequest::Connect { handle, address } => {
                sys::connect(self.net_socket(handle)?.0.as_fd(), &address)
            }
            SocketRequest::Listen { handle, backlog } => {
                sys::listen(self.net_socket(handle)?.0.as_fd(), backlog)
            }
            SocketRequest::Accept { handle, address, token } => {
                let (file, kind) = self.net_socket(handle)?;
                let (fd, len) = sys::accept(file.as_fd(), address)?;
                let accepted = self.insert_socket(fd, kind, token)?;
                Ok(i64::from(accepted) | i64::from(len) << 32)
            }
            SocketRequest::Name { handle, peer, address } => {
                sys::name(self.socket(handle)?.0.as_fd(), peer, address)
            }
            SocketRequest::Shutdown { handle, how } => sys::shutdown(self.socket(handle)?.0.as_fd(), how),
            SocketRequest::GetOption { handle, level, name, value } => {
                sys::get_option(self.socket(handle)?.0.as_fd(), level, name, value)
            }
            SocketRequest::SetOption { handle, level, name, value } => {
                sys::set_option(self.net_socket(handle)?.0.as_fd(), level, name, &value)
            }
            SocketRequest::Send(request) => self.send(&request),
            SocketRequest::Receive(request) => self.receive(*request),
            SocketRequest::SendFile { handle, file, offset, len } => {
                self.send_file(handle, file, offset, len)
            }
            SocketRequest::Query { handle, request } => sys::query(self.socket(handle)?.0.as_fd(), request),
            SocketRequest::ConnectNode { node, kind, token, ids } => {
                self.connect_node(node, kind, token, ids)
            }
        }
    }

    /// A socket by its handle; `ENOTSOCK`.
    fn socket(&self, handle: Handle) -> Result<(Arc<HostFile>, SocketKind), Errno> {
        let file = self.files().get(handle)?;
        match file.kind() {
            FileKind::Socket(kind) => Ok((file, kind)),
            _ => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// A socket of a network family by its handle; `ENOTSOCK`, and `EOPNOTSUPP` for a Unix socket: calls that name a
    /// place of the host must not be made on a connection to one of the host's.
    fn net_socket(&self, handle: Handle) -> Result<(Arc<HostFile>, SocketKind), Errno> {
        let (file, kind) = self.socket(handle)?;
        if kind.family == libc::AF_UNIX { Err(Errno(libc::EOPNOTSUPP)) } else { Ok((file, kind)) }
    }

    fn connect_node(&self, node: Handle, kind: i32, token: u64, ids: Ids) -> Result<i64, Errno> {
        let broker = self.broker().ok_or(Errno(libc::ECONNREFUSED))?;
        let node = self.files().get(node)?;
        let fd = broker.connect(node.as_fd(), kind, ids)?;
        self.insert_socket(fd, SocketKind { family: libc::AF_UNIX, kind, protocol: 0 }, token).map(i64::from)
    }

    pub(in crate::hostcall) fn insert_socket(
        &self,
        fd: OwnedFd,
        kind: SocketKind,
        token: u64,
    ) -> Result<Handle, Errno> {
        let handle = self.files().insert_for_program(HostFile::new(
            fd,
            FileKind::Socket(kind),
            false,
            MountTraits::default(),
        )?)?;
        let watched = self.files().get(handle).and_then(|file| self.io().watch(file.as_fd(), token));
        if let Err(error) = watched {
            let _ = self.files().remove(handle);
            // No room for another watch.
            return Err(if error == Errno(libc::ENOSPC) { Errno(libc::ENOBUFS) } else { error });
        }
        Ok(handle)
    }

    fn send(&self, request: &SendRequest<'_>) -> Result<i64, Errno> {
        let (file, kind) = self.socket(request.handle)?;
        // A place of the host, or descriptors of the VMM's.
        if kind.family == libc::AF_UNIX && !(request.address.is_empty() && request.control.is_empty()) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        sys::send(file.as_fd(), request)
    }

    fn send_file(&self, handle: Handle, file: Handle, offset: i64, len: usize) -> Result<i64, Errno> {
        let (socket, _) = self.socket(handle)?;
        let file = self.files().get(file)?;
        if file.kind() != FileKind::Regular || file.is_path_only() {
            return Err(Errno(libc::EINVAL));
        }
        sys::send_file(socket.as_fd(), file.as_fd(), offset, len)
    }

    fn receive(&self, mut request: ReceiveRequest<'_>) -> Result<i64, Errno> {
        let (file, kind) = self.socket(request.handle)?;
        // Descriptors that the peer sends must not become the VMM's: without room the host closes them.
        if kind.family == libc::AF_UNIX && !request.control.is_empty() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let received = sys::receive(file.as_fd(), &request)?;
        let message = &mut request.message;
        message.flags = received.flags;
        message.name_len = received.address_len;
        message.control_len = received.control_len;
        request.out.write(message);
        Ok(received.bytes)
    }
}
