//! Host sockets: the calls of [`abi::socket`].
//!
//! What a sandbox may make, set and send is listed in [`allow`]; nothing else reaches the host. Sockets never wait and
//! are closed on exec. Addresses, control data and option values are copied out of guest memory once and bounded.
#![deny(unsafe_code)]

pub mod allow;
mod decode;
mod sys;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};

pub use decode::decode;

use super::decode::Handle;
use super::files::{FileKind, HostFile, HostIo, MountTraits};
use super::guest::{GuestBox, GuestBuffers, GuestSlice};
use super::sys::Errno;
use abi::socket::Message;
use std::sync::Arc;

/// What a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketKind {
    pub family: i32,
    pub kind: i32,
    pub protocol: i32,
}

/// A socket call whose arguments have been checked.
#[derive(Debug)]
pub enum SocketRequest<'m> {
    Create { kind: SocketKind, token: u64 },
    Bind { handle: Handle, address: Vec<u8> },
    Connect { handle: Handle, address: Vec<u8> },
    Listen { handle: Handle, backlog: i32 },
    Accept { handle: Handle, address: GuestSlice<'m>, token: u64 },
    Name { handle: Handle, peer: bool, address: GuestSlice<'m> },
    Shutdown { handle: Handle, how: i32 },
    GetOption { handle: Handle, level: i32, name: i32, value: GuestSlice<'m> },
    SetOption { handle: Handle, level: i32, name: i32, value: Vec<u8> },
    Send(SendRequest<'m>),
    Receive(Box<ReceiveRequest<'m>>),
    SendFile { handle: Handle, file: Handle, offset: i64, len: usize },
    Query { handle: Handle, request: u64 },
}

/// A message to send.
#[derive(Debug)]
pub struct SendRequest<'m> {
    pub handle: Handle,
    pub buffers: GuestBuffers<'m>,
    /// Copied out; empty: to the peer.
    pub address: Vec<u8>,
    /// Copied out, every message in it listed.
    pub control: Vec<u8>,
    pub flags: i32,
}

/// Room for a message.
#[derive(Debug)]
pub struct ReceiveRequest<'m> {
    pub handle: Handle,
    pub buffers: GuestBuffers<'m>,
    pub address: GuestSlice<'m>,
    pub control: GuestSlice<'m>,
    pub flags: i32,
    /// As it was read, and where lengths and flags go.
    pub message: Message,
    pub out: GuestBox<'m, Message>,
}

impl HostIo {
    pub(super) fn carry_out_socket(&self, request: SocketRequest<'_>) -> Result<i64, Errno> {
        match request {
            SocketRequest::Create { kind, token } => {
                let fd = sys::socket(kind)?;
                self.insert_socket(fd, kind, token).map(i64::from)
            }
            SocketRequest::Bind { handle, address } => sys::bind(self.socket(handle)?.0.as_fd(), &address),
            SocketRequest::Connect { handle, address } => {
                sys::connect(self.socket(handle)?.0.as_fd(), &address)
            }
            SocketRequest::Listen { handle, backlog } => sys::listen(self.socket(handle)?.0.as_fd(), backlog),
            SocketRequest::Accept { handle, address, token } => {
                let (file, kind) = self.socket(handle)?;
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
                sys::set_option(self.socket(handle)?.0.as_fd(), level, name, &value)
            }
            SocketRequest::Send(request) => self.send(&request),
            SocketRequest::Receive(request) => self.receive(*request),
            SocketRequest::SendFile { handle, file, offset, len } => {
                self.send_file(handle, file, offset, len)
            }
            SocketRequest::Query { handle, request } => sys::query(self.socket(handle)?.0.as_fd(), request),
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

    fn insert_socket(&self, fd: OwnedFd, kind: SocketKind, token: u64) -> Result<Handle, Errno> {
        let handle =
            self.files().insert(HostFile::new(fd, FileKind::Socket(kind), false, MountTraits::default())?)?;
        let watched = self.files().get(handle).and_then(|file| self.io().watch(file.as_fd(), token));
        if let Err(error) = watched {
            let _ = self.files().remove(handle);
            // No room for another watch.
            return Err(if error == Errno(libc::ENOSPC) { Errno(libc::ENOBUFS) } else { error });
        }
        Ok(handle)
    }

    fn send(&self, request: &SendRequest<'_>) -> Result<i64, Errno> {
        sys::send(self.socket(request.handle)?.0.as_fd(), request)
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
        let (file, _) = self.socket(request.handle)?;
        let received = sys::receive(file.as_fd(), &request)?;
        let message = &mut request.message;
        message.flags = received.flags;
        message.name_len = received.address_len;
        message.control_len = received.control_len;
        request.out.write(message);
        Ok(received.bytes)
    }
}
