//! Hostcalls of sockets as typed functions. None of them waits: `EAGAIN`, or `EINPROGRESS` for a connection.

use abi::socket::{self as nr, ADDRESS_MAX, Message, OPTION_MAX};
use abi::word::{len32, low32, to_usize};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::errno::{Errno, Result};
use crate::host::{self, Handle};
use crate::mm::{IoBuf, account};
use crate::objects::{ConnectionOrigin, Origin, SetOption, SocketOrigin};
use crate::outside;
use crate::platform::{call, phys_of};

/// The family of the host's Unix sockets.
const AF_UNIX: u32 = 1;

/// Makes a socket whose readiness is told by events with `token`.
pub fn socket(family: u32, kind: u32, protocol: u32, token: u64) -> Result<Handle> {
    let origin = SocketOrigin { family, kind, protocol, token, ..SocketOrigin::default() };
    let args = [family.into(), kind.into(), protocol.into(), token, 0, 0];
    host::open_by(nr::SOCKET, args, Origin::Socket(Box::new(origin)))
}

/// A socket of the type `kind` that is connected to a Unix socket of the host, `node`, an `O_PATH` handle. `ids`: user, group and
/// further groups of the program.
pub fn connect_node(node: &Handle, kind: u32, token: u64, ids: &[u32]) -> Result<Handle> {
    let ids = &ids[..ids.len().min(2 + to_usize(nr::GROUPS_MAX))];
    let args = [node.arg(), kind.into(), token, phys_of(ids.as_ptr()), ids.len() as u64, 0];
    outside::note();
    let origin = ConnectionOrigin { family: AF_UNIX, kind, token, options: Vec::new() };
    host::open_by(nr::SOCK_CONNECT_NODE, args, Origin::Connection(origin))
}

fn with_bytes(number: u32, socket: &Handle, bytes: &[u8]) -> Result<()> {
    call(number, [socket.arg(), phys_of(bytes.as_ptr()), bytes.len() as u64, 0, 0, 0]).map(drop)
}

/// `bind(2)`; the address as `sockaddr` bytes.
pub fn bind(socket: &Handle, address: &[u8]) -> Result<()> {
    with_bytes(nr::SOCK_BIND, socket, address)
}

/// `connect(2)`.
pub fn connect(socket: &Handle, address: &[u8]) -> Result<()> {
    outside::note();
    with_bytes(nr::SOCK_CONNECT, socket, address)
}

/// `listen(2)`.
pub fn listen(socket: &Handle, backlog: usize) -> Result<()> {
    call(nr::SOCK_LISTEN, [socket.arg(), backlog as u64, 0, 0, 0, 0]).map(drop)
}

/// `accept(2)`: the connection, told of by `token`, and the peer's address.
pub fn accept(socket: &Handle, token: u64) -> Result<(Handle, Vec<u8>)> {
    let mut address = vec![0u8; ADDRESS_MAX as usize];
    let args = [socket.arg(), phys_of(address.as_ptr()), address.len() as u64, token, 0, 0];
    let kind_of = |origin: &Origin| match origin {
        Origin::Socket(socket) => (socket.family, socket.kind),
        _ => (0, 0),
    };
    let (family, kind) = socket.origin(kind_of).unwrap_or_default();
    let origin = Origin::Connection(ConnectionOrigin { family, kind, token, options: Vec::new() });
    let (connection, len) = host::open_by_with_rest(nr::SOCK_ACCEPT, args, origin)?;
    address.truncate(len as usize);
    inherit_options(&connection, socket);
    Ok((connection, address))
}

/// Notes of a connection that it has the options of the socket that listens; none if there is no memory for them.
fn inherit_options(connection: &Handle, listener: &Handle) {
    let bytes_of = |option: &SetOption| size_of::<SetOption>() + option.value.len();
    let bytes = listener.origin(|origin| origin.options().iter().map(bytes_of).sum()).unwrap_or(0);
    if bytes > 0 && account::check(bytes).is_ok() {
        connection.inherit_options(listener.origin(|origin| origin.options().to_vec()).unwrap_or_default());
    }
}

/// `getsockname(2)` or `getpeername(2)`.
pub fn name(socket: &Handle, peer: bool) -> Result<Vec<u8>> {
    let mut address = vec![0u8; ADDRESS_MAX as usize];
    let args = [socket.arg(), u64::from(peer), phys_of(address.as_ptr()), address.len() as u64, 0, 0];
    let len = call(nr::SOCK_NAME, args)?;
    address.truncate(to_usize(len));
    Ok(address)
}

/// `shutdown(2)`.
pub fn shutdown(socket: &Handle, how: u32) -> Result<()> {
    call(nr::SOCK_SHUTDOWN, [socket.arg(), how.into(), 0, 0, 0, 0]).map(drop)
}

/// `getsockopt(2)` with room for `room` bytes.
pub fn option(socket: &Handle, level: u32, name: u32, room: usize) -> Result<Vec<u8>> {
    let mut value = vec![0u8; room.min(OPTION_MAX as usize)];
    let at = phys_of(value.as_ptr());
    let args = [socket.arg(), level.into(), name.into(), at, value.len() as u64, 0];
    let len = call(nr::SOCK_GET_OPTION, args)?;
    value.truncate(to_usize(len));
    Ok(value)
}

/// `setsockopt(2)`.
pub fn set_option(socket: &Handle, level: u32, name: u32, value: &[u8]) -> Result<()> {
    set_option_of(socket.raw(), level, name, value)
}

/// `setsockopt(2)` of the socket behind a handle that has this number.
pub(crate) fn set_option_of(number: u32, level: u32, name: u32, value: &[u8]) -> Result<()> {
    let args = [number.into(), level.into(), name.into(), phys_of(value.as_ptr()), value.len() as u64, 0];
    call(nr::SOCK_SET_OPTION, args).map(drop)
}

/// A number about a socket (`SIOCINQ` and the like).
pub fn query(socket: &Handle, request: u32) -> Result<u32> {
    call(nr::SOCK_QUERY, [socket.arg(), request.into(), 0, 0, 0, 0]).map(low32)
}

/// Sends what `buf` holds in one call: all of a message, or as much of a stream's data as there is room for
/// (`whole` is false). Empty `address`: to the peer. Returns the bytes sent, and the bytes the host was offered.
pub fn send(
    socket: &Handle,
    buf: &mut IoBuf<'_>,
    whole: bool,
    flags: u32,
    address: &[u8],
    control: &[u8],
) -> Result<(usize, usize)> {
    buf.with_message(false, whole, |segments, offered| {
        let message = Message {
            segments_phys: phys_of(segments.as_ptr()),
            segments: len32(segments.len()),
            flags,
            name_phys: phys_of(address.as_ptr()),
            control_phys: phys_of(control.as_ptr()),
            name_len: len32(address.len()),
            control_len: len32(control.len()),
        };
        let sent = call(nr::SOCK_SEND, [socket.arg(), phys_of(&raw const message), 0, 0, 0, 0])?;
        outside::note();
        Ok((to_usize(sent), (to_usize(sent), offered)))
    })
}

/// Sends up to `len` bytes of a host file from `offset` on; 0 at its end.
pub fn send_file(socket: &Handle, file: &Handle, offset: u64, len: usize) -> Result<usize> {
    let args = [socket.arg(), file.arg(), offset, len as u64, 0, 0];
    let sent = call(nr::SOCK_SEND_FILE, args)?;
    outside::note();
    Ok(to_usize(sent).min(len))
}

/// A receive's requests besides bytes, and its results.
#[derive(Default)]
pub struct Receive {
    /// `MSG_*` in and out.
    pub flags: u32,
    /// The address: before the call as long as there is room for it, then as long as the address is.
    pub address: Vec<u8>,
    /// The control data: before the call as long as there is room for them, then as long as they are.
    pub control: Vec<u8>,
    /// Bytes the message has (with `MSG_TRUNC` maybe more than there was room for).
    pub full: usize,
    /// Bytes there was room for.
    pub offered: usize,
}

/// Receives into `buf` in one call; returns the bytes put there.
pub fn receive(socket: &Handle, buf: &mut IoBuf<'_>, whole: bool, with: &mut Receive) -> Result<usize> {
    buf.with_message(true, whole, |segments, offered| {
        let mut message = Message {
            segments_phys: phys_of(segments.as_ptr()),
            segments: len32(segments.len()),
            flags: with.flags,
            name_phys: phys_of(with.address.as_ptr()),
            control_phys: phys_of(with.control.as_ptr()),
            name_len: len32(with.address.len()),
            control_len: len32(with.control.len()),
        };
        let got = to_usize(call(nr::SOCK_RECEIVE, [socket.arg(), phys_of(&raw mut message), 0, 0, 0, 0])?);
        with.flags = message.flags;
        with.address.truncate(message.name_len as usize);
        with.control.truncate(message.control_len as usize);
        (with.full, with.offered) = (got, offered);
        Ok((got.min(offered), got))
    })
    .map(|got| got.min(with.offered))
}

/// Handles the bad end of a buffer after [`receive`] of a message that was cut short.
pub fn check_fault(with: &Receive, wanted: usize) -> Result<()> {
    if with.full > with.offered && with.offered < wanted { Err(Errno::EFAULT) } else { Ok(()) }
}
