//! Host sockets: hostcalls of the network families. Addresses are raw `sockaddr` bytes, as Linux lays them out.
//!
//! A socket is a handle: `CLOSE`, `STAT` and `POLL_NOW` work on it. No call waits: where Linux
//! would, the answer is `-EAGAIN` (`-EINPROGRESS` for a connection). A socket is made with a token; from then on each
//! change of its readiness is an `EVENT_READY` with that token, whose value says what holds when the kernel takes it.
//! There is one such event for each change (`EPOLLET`), and none is lost.

use crate::hostcall::Segment;

/// (family, type, protocol, token): result: a handle. Families: `AF_INET`, `AF_INET6`.
/// Tokens are below `1 << 63`.
pub const SOCKET: u32 = 64;
/// (handle, address phys, address len)
pub const SOCK_BIND: u32 = 65;
/// (handle, address phys, address len); `AF_UNSPEC` dissolves a connection.
pub const SOCK_CONNECT: u32 = 66;
/// (handle, backlog)
pub const SOCK_LISTEN: u32 = 67;
/// (handle, address phys, address room, token): result: handle of the connection | address len << 32.
pub const SOCK_ACCEPT: u32 = 68;
/// (handle, 0 local or 1 peer, address phys, address room): result: length of the address.
pub const SOCK_NAME: u32 = 69;
/// (handle, how): `shutdown(2)`.
pub const SOCK_SHUTDOWN: u32 = 70;
/// (handle, level, name, value phys, value room): result: length of the value.
pub const SOCK_GET_OPTION: u32 = 71;
/// (handle, level, name, value phys, value len). `SO_LINGER` with a time is refused: closing never waits.
pub const SOCK_SET_OPTION: u32 = 72;
/// (handle, [`Message`] phys): result: bytes sent.
pub const SOCK_SEND: u32 = 73;
/// (handle, [`Message`] phys): result: bytes received; updates the lengths and the flags of the message.
pub const SOCK_RECEIVE: u32 = 74;
/// (handle, request: `SIOCINQ`, `SIOCOUTQ`, `SIOCATMARK`…): result: the number the request answers.
pub const SOCK_QUERY: u32 = 75;
/// (handle, handle of a regular file, offset, len): sends what the file holds from the offset on; result: bytes sent,
/// 0 at the end of the file.
pub const SOCK_SEND_FILE: u32 = 77;

/// (`O_PATH` handle of a socket's node, type, token, ids phys, count of ids): an `AF_UNIX` socket, a stream or packet stream, that is connected to it.
/// The ids (u32) are the program's: user, group, and at most [`GROUPS_MAX`] further groups. Result: a handle, for which only
/// data, `SOCK_SHUTDOWN`, `SOCK_GET_OPTION` and `SOCK_QUERY` are. `EAGAIN`: the backlog is full; `ECONNREFUSED` as well where the
/// sandbox may connect to no such socket.
pub const SOCK_CONNECT_NODE: u32 = 78;
/// Most further groups of [`SOCK_CONNECT_NODE`].
pub const GROUPS_MAX: u64 = 32;

/// A message, as `struct msghdr`. Written by the kernel, read once by the VMM.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Array of [`Segment`]s.
    pub segments_phys: u64,
    /// How many segments the message has.
    pub segments: u32,
    /// `MSG_*`; after [`SOCK_RECEIVE`] those that Linux returned.
    pub flags: u32,
    /// The place of the address.
    pub name_phys: u64,
    /// The place of the control data.
    pub control_phys: u64,
    /// Length (to send) or room (to receive) of the address; after [`SOCK_RECEIVE`] its length.
    pub name_len: u32,
    /// Length (to send) or room (to receive) of the control data in bytes; after [`SOCK_RECEIVE`] its length.
    pub control_len: u32,
}
pin_layout!(
    Message, 40,
    segments_phys: 0, segments: 8, flags: 12, name_phys: 16, control_phys: 24, name_len: 32, control_len:
    36,
);
const _: () = assert!(size_of::<Segment>() == 16);

/// Longest address in bytes (`struct sockaddr_storage`).
pub const ADDRESS_MAX: u32 = 128;
/// Longest option value in bytes.
pub const OPTION_MAX: u32 = 4096;
/// Longest control data in bytes.
pub const CONTROL_MAX: u32 = 16 << 10;

/// (request phys, request len, reply phys, reply room, strict): asks the host's network (`NETLINK_ROUTE`) one question.
/// The request is one `nlmsghdr` with what belongs to it: a kind of `RTM_GET*` and attributes that the VMM knows to be
/// harmless, else `-EPERM`. Result: bytes of the reply messages, or `-EMSGSIZE` when there are more than fit.
/// `strict`: as `NETLINK_GET_STRICT_CHK`.
pub const ROUTE_QUERY: u32 = 76;
/// Longest request of [`ROUTE_QUERY`] in bytes.
pub const ROUTE_REQUEST_MAX: u64 = 1024;
/// Longest reply of [`ROUTE_QUERY`] in bytes.
pub const ROUTE_REPLY_MAX: u64 = 1 << 20;
