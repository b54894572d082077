//! Families of sockets and their kinds, and the flags of messages.

use bitflags::bitflags;

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;
pub const AF_UNSPEC: u16 = 0;
pub const AF_UNIX: u16 = 1;
pub const AF_NETLINK: u16 = 16;
pub const AF_PACKET: u16 = 17;
pub const SOCK_STREAM: u32 = 1;
pub const SOCK_DGRAM: u32 = 2;
pub const SOCK_RAW: u32 = 3;
pub const SOCK_SEQPACKET: u32 = 5;
pub const SOL_SOCKET: u32 = 1;

bitflags! {
    /// `MSG_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MsgFlags: u32 {
        const OOB = 0x1;
        const PEEK = 0x2;
        const DONTROUTE = 0x4;
        const CTRUNC = 0x8;
        const TRUNC = 0x20;
        const DONTWAIT = 0x40;
        const EOR = 0x80;
        const WAITALL = 0x100;
        const CONFIRM = 0x800;
        const ERRQUEUE = 0x2000;
        const NOSIGNAL = 0x4000;
        const MORE = 0x8000;
        const WAITFORONE = 0x1_0000;
        const ZEROCOPY = 0x400_0000;
        const FASTOPEN = 0x2000_0000;
        const CMSG_CLOEXEC = 0x4000_0000;
    }
}

impl Default for MsgFlags {
    fn default() -> Self {
        Self::empty()
    }
}
