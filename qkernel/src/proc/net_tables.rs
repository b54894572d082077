//! The lines of `/proc/net`: the sandbox's own sockets, and the interfaces, routes and neighbours of its network.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use crate::net::host_tables;
use crate::net::registry;
use crate::net::registry::Open;
use crate::net::route;
use crate::net::route::{AF_INET, AF_INET6, Link};
use crate::net::{AF_UNIX, SOCK_DGRAM, SOCK_STREAM, Socket};
use crate::pseudo::Out;
use machine::errno::{Errno, Result};

const IPPROTO_TCP: u32 = 6;
const TCP_INFO: u32 = 11;
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;
const TCP_LISTEN: u8 = 10;

/// A table of sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    Tcp,
    Tcp6,
    Udp,
    Udp6,
    Unix,
    /// `/proc/net/sockstat`.
    Summary,
    /// `/proc/net/dev`.
    Interfaces,
    /// `/proc/net/if_inet6`.
    Addresses6,
    /// `/proc/net/route`.
    Routes,
    /// `/proc/net/ipv6_route`.
    Routes6,
    /// `/proc/net/arp`.
    Neighbours,
    /// `/proc/net/igmp`.
    Groups,
    /// `/proc/net/igmp6`.
    Groups6,
}

/// Writes the lines of a table. Facts that the host doesn't tell are left out. Errors: as of [`Out::entry`].
pub fn write(table: Table, out: &mut Out) -> Result<()> {
    let written = match table {
        Table::Tcp => sockets("tcp", AF_INET, SOCK_STREAM, out),
        Table::Tcp6 => sockets("tcp6", AF_INET6, SOCK_STREAM, out),
        Table::Udp => sockets("udp", AF_INET, SOCK_DGRAM, out),
        Table::Udp6 => sockets("udp6", AF_INET6, SOCK_DGRAM, out),
        Table::Unix => unix(out),
        Table::Summary => summary(out),
        Table::Interfaces => interfaces(out),
        Table::Addresses6 => addresses6(out),
        Table::Routes => routes(out),
        Table::Routes6 => routes6(out),
        Table::Neighbours => neighbours(out),
        Table::Groups => groups(out),
        Table::Groups6 => groups6(out),
    };
    match written {
        Err(error @ (Errno::EINTR | Errno::ENOMEM)) => Err(error),
        _ => Ok(()),
    }
}

/// An end of a connection as the tables show it.
struct End {
    address: Vec<u8>,
    port: u16,
}

impl End {
    /// The end at a `sockaddr`; a missing end is all zeros.
    fn new(name: Result<Vec<u8>>, family: u16) -> Self {
        let name = name.unwrap_or_default();
        let (at, len) = if family == u16::from(AF_INET) { (4, 4) } else { (8, 16) };
        let address = name.get(at..at + len).map_or_else(|| alloc::vec![0; len], <[u8]>::to_vec);
        let port = name.get(2..).and_then(<[u8]>::first_chunk).map_or(0, |port| u16::from_be_bytes(*port));
        Self { address, port }
    }

    /// Each word of the address as a number of this machine, as Linux shows it.
    fn write(&self, out: &mut Out) {
        for word in self.address.chunks_exact(4) {
            out.write_fmt(format_args!("{:08X}", word_of(word)));
        }
        out.write_fmt(format_args!(":{:04X}", self.port));
    }
}

fn word_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// State, and bytes sent and received that wait; of a listening socket the connections that wait.
fn state(socket: &dyn Socket, connected: bool) -> (u8, usize, usize) {
    let (mut received, sent) = socket.queued().unwrap_or_default();
    if socket.kind() != SOCK_STREAM {
        return (if connected { TCP_ESTABLISHED } else { TCP_CLOSE }, sent, received);
    }
    let info = socket.option(IPPROTO_TCP, TCP_INFO, 256).unwrap_or_default();
    let state = info.first().copied().unwrap_or(TCP_CLOSE);
    if state == TCP_LISTEN {
        // `tcpi_unacked`.
        received = info.get(24..28).map_or(0, |count| word_of(count) as usize);
    }
    (state, sent, received)
}

/// Ends the line that began at `start`, which has `width` bytes at least.
fn end_line(start: usize, width: usize, out: &mut Out) {
    let len = out.bytes.len() - start;
    let blanks = width.saturating_sub(len);
    out.write_fmt(format_args!("{:blanks$}\n", ""));
}

/// A table of Internet sockets: the sandbox's own, and those of others that are in its network.
fn sockets(name: &str, family: u8, kind: u32, out: &mut Out) -> Result<()> {
    let family = u16::from(family);
    let ours = |open: &Open| open.socket.family() == family && open.socket.kind() == kind;
    // Both ends of those of the sandbox's own that were written, and how many have them: the host's table has each of these, too.
    let mut written: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let mut number = 0;
    for open in registry::list().into_iter().filter(ours) {
        out.entry()?;
        let socket = &*open.socket;
        let peer = socket.peer_name();
        let (state, sent, received) = state(socket, peer.is_ok());
        let local = End::new(socket.local_name(), family);
        if kind == SOCK_STREAM && state == TCP_CLOSE || local.port == 0 {
            // As on Linux, a socket is in the table once it has a port.
            continue;
        }
        let row = begin_row(number, kind, out);
        let ends_at = out.bytes.len();
        local.write(out);
        out.push(b" ");
        End::new(peer, family).write(out);
        *written.entry(out.bytes.get(ends_at..).unwrap_or_default().to_vec()).or_default() += 1;
        let (uid, ino) = (open.uid, open.ino);
        out.write_fmt(format_args!(
            " {state:02X} {sent:08X}:{received:08X} 00:00000000 00000000 {uid:5}        0 {ino} "
        ));
        row.end(family, kind, out);
        number += 1;
    }
    let digits = if family == u16::from(AF_INET) { 8 } else { 32 };
    host_tables::lines(name, digits, |line| {
        let ends = [line.local.as_bytes(), b" ", line.remote.as_bytes()].concat();
        if let Some(left) = written.get_mut(&ends).filter(|left| **left > 0) {
            *left -= 1;
            return;
        }
        let row = begin_row(number, kind, out);
        out.push(&ends);
        let ([state, queues, timer, again], uid) = (line.state, line.uid);
        // No inode: a number of the host's would be taken for that of a socket in here.
        out.write_fmt(format_args!(" {state} {queues} {timer} {again} {uid:5}        0 0 "));
        row.end(family, kind, out);
        number += 1;
    })
}

/// A row of a table of sockets that has begun.
struct Row {
    start: usize,
}

fn begin_row(number: usize, kind: u32, out: &mut Out) -> Row {
    let start = out.bytes.len();
    let width = if kind == SOCK_STREAM { 4 } else { 5 };
    out.write_fmt(format_args!("{number:width$}: "));
    Row { start }
}

impl Row {
    fn end(self, family: u16, kind: u32, out: &mut Out) {
        let rest: &[u8] =
            if kind == SOCK_STREAM { b"1 0000000000000000 100 0 0 10 0" } else { b"2 0000000000000000 0" };
        out.push(rest);
        let wide = if kind == SOCK_STREAM { 149 } else { 127 };
        end_line(self.start, if family == u16::from(AF_INET) { wide } else { 0 }, out);
    }
}

fn unix(out: &mut Out) -> Result<()> {
    const ACCEPTS: u32 = 0x1_0000;
    const UNCONNECTED: u8 = 1;
    const CONNECTED: u8 = 3;
    for open in registry::list() {
        out.entry()?;
        if open.socket.family() != AF_UNIX {
            continue;
        }
        let flags = if open.socket.is_listening() { ACCEPTS } else { 0 };
        let state = if open.socket.peer_name().is_ok() { CONNECTED } else { UNCONNECTED };
        let (kind, ino) = (open.socket.kind(), open.ino);
        out.write_fmt(format_args!(
            "0000000000000000: 00000002 00000000 {flags:08X} {kind:04X} {state:02X} {ino:5}"
        ));
        let name = open.socket.local_name().unwrap_or_default();
        // After the family; an abstract name begins with a zero and has no end.
        let name = name.get(2..).unwrap_or_default();
        let is_abstract = name.first() == Some(&0) && name.len() > 1;
        let name = if is_abstract { name } else { name.split(|b| *b == 0).next().unwrap_or_default() };
        if !name.is_empty() {
            out.push(b" ");
            out.push(&name.iter().map(|b| if *b == 0 { b'@' } else { *b }).collect::<Vec<_>>());
        }
        out.push(b"\n");
    }
    Ok(())
}

/// `/proc/net/sockstat`.
fn summary(out: &mut Out) -> Result<()> {
    let all = registry::list();
    let count = |kind: u32| {
        all.iter()
            .filter(|open| open.socket.family() == u16::from(AF_INET) && open.socket.kind() == kind)
            .count()
    };
    let (used, tcp, udp) = (all.len(), count(SOCK_STREAM), count(SOCK_DGRAM));
    out.write_fmt(format_args!(
        "sockets: used {used}\nTCP: inuse {tcp} orphan 0 tw 0 alloc {tcp} mem 0\nUDP: inuse {udp} mem 0\n"
    ));
    out.push(b"UDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n");
    Ok(())
}

/// `/proc/net/dev`.
fn interfaces(out: &mut Out) -> Result<()> {
    for link in route::links()? {
        let s = &link.stats;
        let name = String::from_utf8_lossy(&link.name);
        // As in `struct rtnl_link_stats64`; sums as Linux makes them.
        out.write_fmt(format_args!(
            "{name:>6}: {:7} {:7} {:4} {:4} {:4} {:5} {:10} {:9} {:8} {:7} {:4} {:4} {:4} {:5} {:7} {:10}\n",
            s[2],
            s[0],
            s[4],
            s[6].wrapping_add(s[15]),
            s[14],
            s[10].wrapping_add(s[11]).wrapping_add(s[12]).wrapping_add(s[13]),
            s[21],
            s[8],
            s[3],
            s[1],
            s[5],
            s[7],
            s[18],
            s[9],
            s[17].wrapping_add(s[16]).wrapping_add(s[20]).wrapping_add(s[19]),
            s[22],
        ));
    }
    Ok(())
}

fn name_of(links: &[Link], index: u32) -> &[u8] {
    links.iter().find(|link| link.index == index).map_or(b"*", |link| &link.name)
}

fn push_hex(bytes: &[u8], len: usize, out: &mut Out) {
    for at in 0..len {
        out.write_fmt(format_args!("{:02x}", bytes.get(at).copied().unwrap_or(0)));
    }
}

/// `/proc/net/if_inet6`.
fn addresses6(out: &mut Out) -> Result<()> {
    let links = route::links()?;
    for address in route::addresses(AF_INET6)? {
        push_hex(&address.local, 16, out);
        // `IPV6_ADDR_LOOPBACK`, `_LINKLOCAL`, `_SITELOCAL` for RT_SCOPE_HOST, _LINK and _SITE.
        let scope = match address.scope {
            254 => 0x10,
            253 => 0x20,
            200 => 0x40,
            _ => 0,
        };
        let (index, prefix, flags) = (address.index, address.prefix, address.flags);
        out.write_fmt(format_args!(" {index:02x} {prefix:02x} {scope:02x} {flags:02x} "));
        let name = alloc::string::String::from_utf8_lossy(name_of(&links, index)).into_owned();
        out.write_fmt(format_args!("{name:>8}\n"));
    }
    Ok(())
}

/// The interfaces that are up and have an address of the family.
fn links_with(family: u8) -> Result<Vec<Link>> {
    const IFF_UP: u32 = 1;
    let addresses = route::addresses(family)?;
    let mut links = route::links()?;
    links.retain(|link| {
        link.flags & IFF_UP != 0 && addresses.iter().any(|address| address.index == link.index)
    });
    Ok(links)
}

/// `/proc/net/igmp`: the group of all hosts, in which every interface is. Which others the host's sockets joined it does
/// not tell.
fn groups(out: &mut Out) -> Result<()> {
    for link in links_with(AF_INET)? {
        let name = String::from_utf8_lossy(&link.name);
        let (index, all_hosts) = (link.index, u32::from_ne_bytes([224, 0, 0, 1]));
        out.write_fmt(format_args!("{index}\t{name:<10}: {:5} {:>7}\n", 1, "V3"));
        out.write_fmt(format_args!("\t\t\t\t{all_hosts:08X} {:5} 0:{:08X}\t\t0\n", 1, 0));
    }
    Ok(())
}

/// `/proc/net/igmp6`: the groups of all nodes of a link and of an interface, as above.
fn groups6(out: &mut Out) -> Result<()> {
    for link in links_with(AF_INET6)? {
        let name = String::from_utf8_lossy(&link.name);
        for (scope, flags) in [(2, 0x0c), (1, 0x08)] {
            let index = link.index;
            out.write_fmt(format_args!(
                "{index:<4} {name:<15} ff{scope:02x}{:028x} {:5} {flags:08X} 0\n",
                1, 1
            ));
        }
    }
    Ok(())
}

const RTF_UP: u32 = 1;
const RTF_GATEWAY: u32 = 2;
const RTF_HOST: u32 = 4;
const RTF_REJECT: u32 = 0x200;
const RTN_UNICAST: u8 = 1;
/// `RTN_UNREACHABLE` and `RTN_PROHIBIT`.
const REJECTS: [u8; 2] = [7, 8];

fn flags_of(route: &route::Route, longest: u8) -> u32 {
    let mut flags = RTF_UP;
    if !route.gateway.is_empty() {
        flags |= RTF_GATEWAY;
    }
    if route.prefix == longest {
        flags |= RTF_HOST;
    }
    if REJECTS.contains(&route.kind) {
        flags |= RTF_REJECT;
    }
    flags
}

/// `/proc/net/route`.
fn routes(out: &mut Out) -> Result<()> {
    let links = route::links()?;
    for route in route::routes(AF_INET)? {
        if route.kind != RTN_UNICAST && !REJECTS.contains(&route.kind) {
            continue;
        }
        let (to, gateway, metric) = (word_of(&route.to), word_of(&route.gateway), route.metric);
        let flags = flags_of(&route, 32);
        let mask = u32::MAX.checked_shl(32 - u32::from(route.prefix.min(32))).unwrap_or(0).to_be();
        let start = out.bytes.len();
        out.push(name_of(&links, route.index));
        out.write_fmt(format_args!(
            "\t{to:08X}\t{gateway:08X}\t{flags:04X}\t0\t0\t{metric}\t{mask:08X}\t0\t0\t0"
        ));
        end_line(start, 127, out);
    }
    Ok(())
}

/// `/proc/net/ipv6_route`.
fn routes6(out: &mut Out) -> Result<()> {
    let links = route::links()?;
    for route in route::routes(AF_INET6)? {
        push_hex(&route.to, 16, out);
        out.write_fmt(format_args!(" {:02x} ", route.prefix));
        push_hex(&[], 16, out);
        out.push(b" 00 ");
        push_hex(&route.gateway, 16, out);
        let (metric, flags) = (route.metric, flags_of(&route, 128));
        let name = alloc::string::String::from_utf8_lossy(name_of(&links, route.index)).into_owned();
        out.write_fmt(format_args!(" {metric:08x} 00000000 00000000 {flags:08x} {name:>8}\n"));
    }
    Ok(())
}

/// `/proc/net/arp`.
fn neighbours(out: &mut Out) -> Result<()> {
    const NUD_NOARP: u16 = 0x40;
    const NUD_PERMANENT: u16 = 0x80;
    /// Reachable, stale, delayed, probed, permanent: the address is known.
    const NUD_VALID: u16 = 0x2 | 0x4 | 0x8 | 0x10 | NUD_PERMANENT;
    let links = route::links()?;
    for neighbour in route::neighbours(AF_INET)? {
        if neighbour.state & NUD_NOARP != 0 {
            continue;
        }
        let Some(link) = links.iter().find(|link| link.index == neighbour.index) else { continue };
        let Some([a, b, c, d]) = neighbour.address.first_chunk().copied() else { continue };
        let flags = match neighbour.state {
            NUD_PERMANENT => 6,
            state if state & NUD_VALID != 0 => 2,
            _ => 0,
        };
        let mut hardware = alloc::string::String::new();
        for at in 0..6 {
            let byte = neighbour.hardware.get(at).copied().unwrap_or(0);
            let colon = if at == 0 { "" } else { ":" };
            let _ = core::fmt::Write::write_fmt(&mut hardware, format_args!("{colon}{byte:02x}"));
        }
        let address = alloc::format!("{a}.{b}.{c}.{d}");
        out.write_fmt(format_args!(
            "{address:<16} 0x{:<10x}0x{flags:<10x}{hardware:<17}     *        ",
            link.hardware
        ));
        out.push(&link.name);
        out.push(b"\n");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_shown_as_linux_does() {
        let mut out = Out::default();
        End::new(Ok([&[2, 0, 0x1f, 0x90, 127, 0, 0, 1][..], &[0; 8]].concat()), 2).write(&mut out);
        out.push(b" ");
        let mut name = alloc::vec![10, 0, 0, 22, 0, 0, 0, 0];
        name.extend([0; 15]);
        name.extend([1, 0, 0, 0, 0]);
        End::new(Ok(name), 10).write(&mut out);
        out.push(b" ");
        End::new(Err(machine::errno::Errno::ENOTCONN), 2).write(&mut out);
        assert_eq!(out.bytes, b"0100007F:1F90 00000000000000000000000001000000:0016 00000000:0000");
    }
}
