//! The part of the socket interface that a sandbox may use. Everything else is refused here, whatever privileges the
//! VMM has.

use super::request::SocketKind;
use crate::errno::Errno;

/// Bytes that can be read, that wait to be acknowledged, that wait to be sent; whether reading stands at urgent data.
pub const SIOCINQ: u64 = 0x541b;
pub const SIOCOUTQ: u64 = 0x5411;
pub const SIOCOUTQNSD: u64 = 0x894b;
pub const SIOCATMARK: u64 = 0x8905;

/// `MSG_*` that may be given to a message to be sent.
pub const SEND_FLAGS: i32 = libc::MSG_OOB
    | libc::MSG_DONTROUTE
    | libc::MSG_EOR
    | libc::MSG_MORE
    | libc::MSG_CONFIRM
    | libc::MSG_FASTOPEN;
/// `MSG_*` that may be given to a receive.
pub const RECEIVE_FLAGS: i32 = libc::MSG_OOB | libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_ERRQUEUE;

/// Checks family, type and protocol.
pub fn kind(family: i32, kind: i32, protocol: i32) -> Result<SocketKind, Errno> {
    let allowed = match (family, kind) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM) => matches!(protocol, 0 | libc::IPPROTO_TCP),
        (libc::AF_INET, libc::SOCK_DGRAM) => matches!(protocol, 0 | libc::IPPROTO_UDP | libc::IPPROTO_ICMP),
        (libc::AF_INET6, libc::SOCK_DGRAM) => {
            matches!(protocol, 0 | libc::IPPROTO_UDP | libc::IPPROTO_ICMPV6)
        }
        _ => false,
    };
    if allowed { Ok(SocketKind { family, kind, protocol }) } else { Err(Errno(libc::EPERM)) }
}

/// Whether an option may be read, or set as well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Get,
    Both,
    /// May be set where a socket may choose its device ([`net`](crate::net)).
    Device,
}
use Access::{Both, Device, Get};

impl Access {
    fn may_set(self, may_choose_devices: bool) -> bool {
        self == Both || self == Device && may_choose_devices
    }
}

const SOL_UDP: i32 = 17;

/// Options of `SOL_SOCKET`.
const SOCKET: &[(i32, Access)] = &[
    (libc::SO_DEBUG, Get),
    (libc::SO_REUSEADDR, Both),
    (libc::SO_TYPE, Get),
    (libc::SO_ERROR, Get),
    (libc::SO_DONTROUTE, Both),
    (libc::SO_BROADCAST, Both),
    (libc::SO_SNDBUF, Both),
    (libc::SO_RCVBUF, Both),
    (libc::SO_KEEPALIVE, Both),
    (libc::SO_OOBINLINE, Both),
    (libc::SO_NO_CHECK, Both),
    (libc::SO_PRIORITY, Both),
    (libc::SO_LINGER, Both),
    (libc::SO_REUSEPORT, Both),
    (libc::SO_RCVLOWAT, Both),
    (libc::SO_SNDLOWAT, Get),
    (libc::SO_BINDTODEVICE, Device),
    (libc::SO_TIMESTAMP, Both),
    (libc::SO_ACCEPTCONN, Get),
    (libc::SO_TIMESTAMPNS, Both),
    (libc::SO_MARK, Get),
    (libc::SO_TIMESTAMPING, Both),
    (libc::SO_PROTOCOL, Get),
    (libc::SO_DOMAIN, Get),
    (libc::SO_RXQ_OVFL, Both),
    (libc::SO_PEEK_OFF, Both),
    (libc::SO_SELECT_ERR_QUEUE, Both),
    (libc::SO_MAX_PACING_RATE, Both),
    (libc::SO_INCOMING_CPU, Both),
    (55, Get),    // SO_MEMINFO
    (56, Get),    // SO_INCOMING_NAPI_ID
    (57, Get),    // SO_COOKIE
    (62, Device), // SO_BINDTOIFINDEX
    (63, Both),   // SO_TIMESTAMP_NEW
    (64, Both),   // SO_TIMESTAMPNS_NEW
    (65, Both),   // SO_TIMESTAMPING_NEW
    (72, Both),   // SO_BUF_LOCK
    (74, Both),   // SO_TXREHASH
];

/// Options of `IPPROTO_IP`.
const IP: &[(i32, Access)] = &[
    (libc::IP_TOS, Both),
    (libc::IP_TTL, Both),
    (libc::IP_OPTIONS, Get),
    (libc::IP_RECVOPTS, Both),
    (libc::IP_RETOPTS, Both),
    (libc::IP_PKTINFO, Both),
    (libc::IP_MTU_DISCOVER, Both),
    (libc::IP_RECVERR, Both),
    (libc::IP_RECVTTL, Both),
    (libc::IP_RECVTOS, Both),
    (libc::IP_MTU, Get),
    (libc::IP_FREEBIND, Both),
    (libc::IP_TRANSPARENT, Get),
    (libc::IP_RECVORIGDSTADDR, Both),
    (libc::IP_MINTTL, Both),
    (libc::IP_BIND_ADDRESS_NO_PORT, Both),
    (libc::IP_RECVFRAGSIZE, Both),
    (26, Both), // IP_RECVERR_RFC4884
    (libc::IP_MULTICAST_IF, Both),
    (libc::IP_MULTICAST_TTL, Both),
    (libc::IP_MULTICAST_LOOP, Both),
    (libc::IP_ADD_MEMBERSHIP, Both),
    (libc::IP_DROP_MEMBERSHIP, Both),
    (libc::IP_UNBLOCK_SOURCE, Both),
    (libc::IP_BLOCK_SOURCE, Both),
    (libc::IP_ADD_SOURCE_MEMBERSHIP, Both),
    (libc::IP_DROP_SOURCE_MEMBERSHIP, Both),
    (libc::MCAST_JOIN_GROUP, Both),
    (libc::MCAST_BLOCK_SOURCE, Both),
    (libc::MCAST_UNBLOCK_SOURCE, Both),
    (libc::MCAST_LEAVE_GROUP, Both),
    (libc::MCAST_JOIN_SOURCE_GROUP, Both),
    (libc::MCAST_LEAVE_SOURCE_GROUP, Both),
    (libc::IP_MULTICAST_ALL, Both),
    (libc::IP_UNICAST_IF, Device),
    (51, Both), // IP_LOCAL_PORT_RANGE
    (52, Get),  // IP_PROTOCOL
    (80, Get),  // SO_ORIGINAL_DST
];

/// Options of `IPPROTO_IPV6`.
const IPV6: &[(i32, Access)] = &[
    (libc::IPV6_2292PKTINFO, Both),
    (libc::IPV6_2292HOPLIMIT, Both),
    (libc::IPV6_UNICAST_HOPS, Both),
    (libc::IPV6_MULTICAST_IF, Both),
    (libc::IPV6_MULTICAST_HOPS, Both),
    (libc::IPV6_MULTICAST_LOOP, Both),
    (libc::IPV6_ADD_MEMBERSHIP, Both),
    (libc::IPV6_DROP_MEMBERSHIP, Both),
    (libc::IPV6_MTU_DISCOVER, Both),
    (libc::IPV6_MTU, Both),
    (libc::IPV6_RECVERR, Both),
    (libc::IPV6_V6ONLY, Both),
    (29, Both), // IPV6_MULTICAST_ALL
    (31, Both), // IPV6_RECVERR_RFC4884
    (33, Both), // IPV6_FLOWINFO_SEND
    (libc::MCAST_JOIN_GROUP, Both),
    (libc::MCAST_BLOCK_SOURCE, Both),
    (libc::MCAST_UNBLOCK_SOURCE, Both),
    (libc::MCAST_LEAVE_GROUP, Both),
    (libc::MCAST_JOIN_SOURCE_GROUP, Both),
    (libc::MCAST_LEAVE_SOURCE_GROUP, Both),
    (libc::IPV6_RECVPKTINFO, Both),
    (libc::IPV6_PKTINFO, Both),
    (libc::IPV6_RECVHOPLIMIT, Both),
    (libc::IPV6_RECVPATHMTU, Both),
    (libc::IPV6_PATHMTU, Get),
    (libc::IPV6_DONTFRAG, Both),
    (libc::IPV6_RECVTCLASS, Both),
    (libc::IPV6_TCLASS, Both),
    (libc::IPV6_AUTOFLOWLABEL, Both),
    (libc::IPV6_ADDR_PREFERENCES, Both),
    (libc::IPV6_MINHOPCOUNT, Both),
    (libc::IPV6_RECVORIGDSTADDR, Both),
    (libc::IPV6_UNICAST_IF, Device),
    (libc::IPV6_RECVFRAGSIZE, Both),
    (libc::IPV6_FREEBIND, Both),
    (80, Get), // IP6T_SO_ORIGINAL_DST
];

/// Options of `IPPROTO_TCP`.
const TCP: &[(i32, Access)] = &[
    (libc::TCP_NODELAY, Both),
    (libc::TCP_MAXSEG, Both),
    (libc::TCP_CORK, Both),
    (libc::TCP_KEEPIDLE, Both),
    (libc::TCP_KEEPINTVL, Both),
    (libc::TCP_KEEPCNT, Both),
    (libc::TCP_SYNCNT, Both),
    (libc::TCP_LINGER2, Both),
    (libc::TCP_DEFER_ACCEPT, Both),
    (libc::TCP_WINDOW_CLAMP, Both),
    (libc::TCP_INFO, Get),
    (libc::TCP_QUICKACK, Both),
    (libc::TCP_CONGESTION, Both),
    (libc::TCP_THIN_LINEAR_TIMEOUTS, Both),
    (libc::TCP_THIN_DUPACK, Both),
    (libc::TCP_USER_TIMEOUT, Both),
    (libc::TCP_FASTOPEN, Both),
    (libc::TCP_TIMESTAMP, Get),
    (libc::TCP_NOTSENT_LOWAT, Both),
    (libc::TCP_CC_INFO, Get),
    (libc::TCP_SAVE_SYN, Both),
    (libc::TCP_SAVED_SYN, Get),
    (libc::TCP_FASTOPEN_CONNECT, Both),
    (libc::TCP_FASTOPEN_NO_COOKIE, Both),
    (libc::TCP_INQ, Both),
    (37, Both), // TCP_TX_DELAY
];

/// Options of `IPPROTO_UDP`.
const UDP: &[(i32, Access)] = &[
    (libc::UDP_CORK, Both),
    (101, Both), // UDP_NO_CHECK6_TX
    (102, Both), // UDP_NO_CHECK6_RX
    (libc::UDP_SEGMENT, Both),
    (libc::UDP_GRO, Both),
];

/// Congestion controls; others might have the host load a module.
const CONGESTION: &[&[u8]] = &[b"reno", b"cubic", b"bbr", b"dctcp"];
/// Highest `SO_PRIORITY` that asks for no privilege.
const PRIORITY_MAX: i32 = 6;

/// The options of each level.
const LEVELS: &[(i32, &[(i32, Access)])] = &[
    (libc::SOL_SOCKET, SOCKET),
    (libc::IPPROTO_IP, IP),
    (libc::IPPROTO_IPV6, IPV6),
    (libc::IPPROTO_TCP, TCP),
    (SOL_UDP, UDP),
];

/// Level and name of each option that may be read, or of those that may be set.
pub fn options(to_set: bool, may_choose_devices: bool) -> impl Iterator<Item = (i32, i32)> {
    let of_level = move |(level, table): &'static (i32, &[(i32, Access)])| {
        let fitting = table.iter().filter(move |(_, access)| !to_set || access.may_set(may_choose_devices));
        fitting.map(|(name, _)| (*level, *name))
    };
    LEVELS.iter().flat_map(of_level)
}

fn access(level: i32, name: i32) -> Result<Access, Errno> {
    let found = LEVELS.iter().find(|(known, _)| *known == level);
    let (_, table) = found.ok_or(Errno(libc::ENOPROTOOPT))?;
    let entry = table.iter().find(|entry| entry.0 == name);
    entry.map(|entry| entry.1).ok_or(Errno(libc::ENOPROTOOPT))
}

/// Whether an option may be read; `ENOPROTOOPT`.
pub fn check_get(level: i32, name: i32) -> Result<(), Errno> {
    access(level, name).map(drop)
}

/// Whether an option may be set to this value.
pub fn check_set(level: i32, name: i32, value: &[u8], may_choose_devices: bool) -> Result<(), Errno> {
    if !access(level, name)?.may_set(may_choose_devices) {
        return Err(Errno(libc::ENOPROTOOPT));
    }
    let number =
        |at: usize| value.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| i32::from_ne_bytes(*bytes));
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_PRIORITY)
            if !number(0).is_some_and(|p| (0..=PRIORITY_MAX).contains(&p)) =>
        {
            Err(Errno(libc::EPERM))
        }
        // Closing would wait.
        (libc::SOL_SOCKET, libc::SO_LINGER) if number(0) != Some(0) && number(4) != Some(0) => {
            Err(Errno(libc::EINVAL))
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO | libc::IPV6_2292PKTINFO)
            if !may_choose_devices && names_interface(level, name, value) =>
        {
            Err(Errno(libc::EPERM))
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
            let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
            if CONGESTION.contains(&&value[..end]) { Ok(()) } else { Err(Errno(libc::ENOENT)) }
        }
        _ => Ok(()),
    }
}

/// Bytes of a `struct cmsghdr`.
const CMSG_BYTES: usize = 16;

/// Whether a `struct in_pktinfo` or `in6_pktinfo` names an interface.
fn names_interface(level: i32, kind: i32, info: &[u8]) -> bool {
    let at = match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => 0,
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO | libc::IPV6_2292PKTINFO) => 16,
        _ => return false,
    };
    info.get(at..).is_some_and(|index| index.iter().take(4).any(|byte| *byte != 0))
}

/// Whether a socket address is one of many, for which routes say nothing.
fn is_multicast(address: &[u8]) -> bool {
    let family = address.first_chunk().map_or(0, |bytes| i32::from(u16::from_ne_bytes(*bytes)));
    match family {
        libc::AF_INET => address.get(4).is_some_and(|first| first >> 4 == 0xe),
        libc::AF_INET6 => address.get(8) == Some(&0xff),
        _ => false,
    }
}

/// Checks that control data consists of whole messages of kinds that may be sent to this address; `EINVAL`. None leads around the
/// routes, unless devices may be chosen.
pub fn check_control(control: &[u8], address: &[u8], may_choose_devices: bool) -> Result<(), Errno> {
    let mut rest = control;
    while let Some((header, _)) = rest.split_first_chunk::<CMSG_BYTES>() {
        let word =
            |at: usize| i32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let len = usize::from_ne_bytes(*header.first_chunk().ok_or(Errno(libc::EINVAL))?);
        let allowed = match (word(8), word(12)) {
            (libc::SOL_SOCKET, kind) => kind == libc::SO_TIMESTAMPING || kind == 65,
            (libc::IPPROTO_IP, kind) => matches!(kind, libc::IP_TOS | libc::IP_TTL | libc::IP_PKTINFO),
            (libc::IPPROTO_IPV6, kind) => matches!(
                kind,
                libc::IPV6_PKTINFO
                    | libc::IPV6_2292PKTINFO
                    | libc::IPV6_HOPLIMIT
                    | libc::IPV6_2292HOPLIMIT
                    | libc::IPV6_TCLASS
                    | libc::IPV6_DONTFRAG
            ),
            (SOL_UDP, kind) => kind == libc::UDP_SEGMENT,
            _ => false,
        };
        let data = rest.get(CMSG_BYTES..len).unwrap_or_default();
        let leads_around =
            !may_choose_devices && names_interface(word(8), word(12), data) && !is_multicast(address);
        if !allowed || leads_around || len < CMSG_BYTES || len > rest.len() {
            return Err(Errno(libc::EINVAL));
        }
        rest = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(())
}
