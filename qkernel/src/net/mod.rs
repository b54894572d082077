//! Sockets: the code that all families share, and the families.

pub mod ancillary;
pub mod families;
pub mod filter;
pub mod host_tables;
pub mod inbox;
pub mod inet;
pub mod interfaces;
pub mod netlink;
pub mod options;
pub mod passing;
pub mod registry;
pub mod route;
pub mod settings;
pub mod socket;
pub mod socket_file;
pub mod talks;
pub mod unix;
pub mod unix_host;
pub mod unix_names;
pub mod visits;

use alloc::sync::Arc;

use crate::fs::anon;
use crate::net::ancillary::PeerCreds;
use crate::net::families::AF_PACKET;
use machine::errno::{Errno, Result};

pub use crate::net::families::{
    AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, AF_UNSPEC, MsgFlags, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM,
    SOL_SOCKET,
};
pub use crate::net::socket::{Destination, Outgoing, Socket};
pub use crate::net::socket_file::SocketFile;

/// Makes an unconnected socket.
pub fn new_socket(family: u32, kind: u32, protocol: u32) -> Result<Arc<dyn Socket>> {
    anon::check_room()?;
    match u16::try_from(family) {
        Ok(AF_UNIX) => Ok(unix::UnixSocket::new(kind, protocol)?),
        Ok(AF_NETLINK) => Ok(netlink::NetlinkSocket::new(kind, protocol)?),
        Ok(family @ (AF_INET | AF_INET6)) => Ok(inet::InetSocket::new(family, kind, protocol)?),
        Ok(AF_PACKET) => Err(Errno::EPERM),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

/// Two sockets connected to each other.
pub fn new_pair(family: u32, kind: u32, protocol: u32, creds: &PeerCreds) -> Result<[Arc<dyn Socket>; 2]> {
    anon::check_room()?;
    match u16::try_from(family) {
        Ok(AF_UNIX) => {
            let [a, b] = unix::pair(kind, protocol, creds)?;
            Ok([a, b])
        }
        Ok(AF_INET | AF_INET6) => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}
