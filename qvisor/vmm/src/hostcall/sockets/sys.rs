//! The system calls of sockets, as safe functions.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::request::{ReceiveRequest, SendRequest, SocketKind};
use crate::errno::Errno;
use crate::guest_memory::GuestSlice;
use crate::sys::{owned, sys_call};

fn length(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn socklen(len: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(len).unwrap_or(0)
}

/// `socket(2)`, close-on-exec and non-blocking.
pub fn socket(kind: SocketKind) -> Result<OwnedFd, Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    sys_call!(libc::SYS_socket, kind.family, kind.kind | flags, kind.protocol).map(owned)
}

/// `bind(2)`.
pub fn bind(fd: BorrowedFd<'_>, address: &[u8]) -> Result<i64, Errno> {
    sys_call!(libc::SYS_bind, fd.as_raw_fd(), address.as_ptr(), address.len())
}

/// `connect(2)`.
pub fn connect(fd: BorrowedFd<'_>, address: &[u8]) -> Result<i64, Errno> {
    sys_call!(libc::SYS_connect, fd.as_raw_fd(), address.as_ptr(), address.len())
}

/// `listen(2)`.
pub fn listen(fd: BorrowedFd<'_>, backlog: i32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_listen, fd.as_raw_fd(), backlog)
}

/// `accept4(2)`: the connection, and the length of the peer's address.
pub fn accept(fd: BorrowedFd<'_>, address: GuestSlice<'_>) -> Result<(OwnedFd, u32), Errno> {
    let mut len = socklen(address.len());
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let accepted =
        sys_call!(libc::SYS_accept4, fd.as_raw_fd(), address.as_ptr(), &raw mut len, flags).map(owned)?;
    // A result has 31 bits for it.
    Ok((accepted, len.min(abi::socket::ADDRESS_MAX)))
}

/// `accept4(2)` of a connection from whomsoever.
pub fn accept_any(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let nowhere = std::ptr::null_mut::<u8>();
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    sys_call!(libc::SYS_accept4, fd.as_raw_fd(), nowhere, nowhere, flags).map(owned)
}

/// `getsockname(2)`; result: the address's length, which may be more than there is room for.
pub fn own_name(fd: BorrowedFd<'_>, address: &mut [u8]) -> Result<usize, Errno> {
    let mut len = socklen(address.len());
    sys_call!(libc::SYS_getsockname, fd.as_raw_fd(), address.as_mut_ptr(), &raw mut len)?;
    Ok(len as usize)
}

/// `getsockname(2)` or `getpeername(2)`; result: the address's length.
pub fn name(fd: BorrowedFd<'_>, peer: bool, address: GuestSlice<'_>) -> Result<i64, Errno> {
    let mut len = socklen(address.len());
    let number = if peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    let mut nowhere = 0_u8;
    let at = if address.is_empty() { &raw mut nowhere } else { address.as_ptr() };
    sys_call!(number, fd.as_raw_fd(), at, &raw mut len)?;
    Ok(i64::from(len))
}

/// `shutdown(2)`.
pub fn shutdown(fd: BorrowedFd<'_>, how: i32) -> Result<i64, Errno> {
    sys_call!(libc::SYS_shutdown, fd.as_raw_fd(), how)
}

/// `getsockopt(2)` into guest memory; result: the value's length.
pub fn get_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: GuestSlice<'_>) -> Result<i64, Errno> {
    let mut len = socklen(value.len());
    sys_call!(libc::SYS_getsockopt, fd.as_raw_fd(), level, name, value.as_ptr(), &raw mut len)?;
    Ok(i64::from(len))
}

/// `setsockopt(2)`.
pub fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> Result<i64, Errno> {
    sys_call!(libc::SYS_setsockopt, fd.as_raw_fd(), level, name, value.as_ptr(), value.len())
}

/// An `ioctl(2)` that answers one `int`.
pub fn query(fd: BorrowedFd<'_>, request: u64) -> Result<i64, Errno> {
    let mut answer = 0_i32;
    sys_call!(libc::SYS_ioctl, fd.as_raw_fd(), request, &raw mut answer)?;
    Ok(i64::from(answer.max(0)))
}

fn header() -> libc::msghdr {
    // SAFETY: `msghdr` is plain integers and pointers; null and zero mean "none".
    unsafe { std::mem::zeroed() }
}

/// `sendmsg(2)` that neither waits nor raises a signal.
pub fn send(fd: BorrowedFd<'_>, request: &SendRequest<'_>) -> Result<i64, Errno> {
    let mut message = header();
    message.msg_iov = request.buffers.iovecs().as_ptr().cast_mut();
    message.msg_iovlen = request.buffers.iovecs().len();
    if !request.address.is_empty() {
        message.msg_name = request.address.as_ptr().cast_mut().cast();
        message.msg_namelen = socklen(request.address.len());
    }
    if !request.control.is_empty() {
        message.msg_control = request.control.as_ptr().cast_mut().cast();
        message.msg_controllen = request.control.len();
    }
    let flags = request.flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    sys_call!(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const message, flags)
}

/// `sendfile(2)` from an offset.
pub fn send_file(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    mut offset: i64,
    len: usize,
) -> Result<i64, Errno> {
    sys_call!(libc::SYS_sendfile, socket.as_raw_fd(), file.as_raw_fd(), &raw mut offset, len)
}

/// The result of a receive besides the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub bytes: i64,
    pub flags: u32,
    pub address_len: u32,
    pub control_len: u32,
}

/// `recvmsg(2)` that never waits. Address and control data go straight to guest memory: the host only writes them.
pub fn receive(fd: BorrowedFd<'_>, request: &ReceiveRequest<'_>) -> Result<Received, Errno> {
    let mut message = header();
    message.msg_iov = request.buffers.iovecs().as_ptr().cast_mut();
    message.msg_iovlen = request.buffers.iovecs().len();
    if !request.address.is_empty() {
        message.msg_name = request.address.as_ptr().cast();
        message.msg_namelen = socklen(request.address.len());
    }
    if !request.control.is_empty() {
        message.msg_control = request.control.as_ptr().cast();
        message.msg_controllen = request.control.len();
    }
    let flags = request.flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let bytes = sys_call!(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut message, flags)?;
    Ok(Received {
        bytes,
        flags: (message.msg_flags & !libc::MSG_CMSG_CLOEXEC).cast_unsigned(),
        address_len: message.msg_namelen,
        control_len: length(i64::try_from(message.msg_controllen).unwrap_or(0)),
    })
}
