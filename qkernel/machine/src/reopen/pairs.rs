//! Connections of which the sandbox has both ends, made anew as pairs, and such as end once their unread bytes are read.
//!
//! Pairs come before sockets that listen: each is made through a listener of its own at the address that the accepted end has. Linux lets
//! another socket listen there afterwards, since all of them may share the address until they are all made.

use alloc::vec::Vec;

use super::{SO_REUSEADDR, SOL_SOCKET, Why, failed, with_port};
use crate::errno::{Errno, Result};
use crate::host::{self, Handle};
use crate::objects::{SetOption, Tied};
use crate::platform;
use crate::rank::Rank;
use crate::socket;
use crate::spin::SpinLock;
use crate::time;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SHUT_RD: u32 = 0;
const SHUT_WR: u32 = 1;
const BACKLOG: usize = 64;
/// Connections of others that are turned away while one is made.
const STRANGERS_MAX: u32 = 16;
/// How long one may take, and all together. Over loopback they are made at once.
const PATIENCE_NS: u64 = 1_000_000_000;
const PATIENCE_ALL_NS: u64 = 5_000_000_000;

/// One end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Of its handle.
    pub number: u32,
    /// The address that it has, and that of the other end as it sees it: bytes of a `sockaddr`.
    pub address: Vec<u8>,
    /// See above.
    pub peer: Vec<u8>,
    /// It has ended reading.
    pub is_read_shut: bool,
    /// It has ended writing.
    pub is_write_shut: bool,
}

/// A connection of which the sandbox has both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The end that connects.
    pub connecting: End,
    /// The end that is accepted.
    pub accepted: End,
}

/// The connections whose unread bytes an image has.
#[derive(Debug, Default)]
pub struct Connections {
    /// Those of which the sandbox has both ends.
    pub pairs: Vec<Pair>,
    /// The handles of those whose other end has ended writing: there is nothing to be read but those bytes.
    pub ended: Vec<u32>,
}

/// Those of the last image.
static KEPT: SpinLock<Connections> =
    SpinLock::new(Rank::Objects, Connections { pairs: Vec::new(), ended: Vec::new() });

/// Has the memory that is taken next know of these, and of no others.
pub fn note_connections(kept: Connections) {
    let former = core::mem::replace(&mut *KEPT.lock(), kept);
    drop(former);
}

/// An internet address and port, in which one of IPv4 is the same in both families.
pub type Endpoint = ([u8; 16], u16);

/// The address and port of a `sockaddr`.
#[must_use]
pub fn endpoint(address: &[u8]) -> Option<Endpoint> {
    let port = u16::from_be_bytes(*address.get(2..)?.first_chunk()?);
    match u16::from_ne_bytes(*address.first_chunk()?) {
        AF_INET => {
            let mut mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
            mapped[12..].copy_from_slice(address.get(4..8)?);
            Some((mapped, port))
        }
        AF_INET6 => Some((*address.get(8..)?.first_chunk()?, port)),
        _ => None,
    }
}

/// Makes those anew that the image has noted, as far as that can be done. Result: the numbers of their handles, which are placed.
pub(super) fn make_all(old: &[(u32, Tied)], ports: &[(u16, u16)]) -> core::result::Result<Vec<u32>, Why> {
    let Connections { mut pairs, ended } = core::mem::take(&mut *KEPT.lock());
    pairs.sort_unstable_by(|one, other| one.accepted.address.cmp(&other.accepted.address));
    let until_ns = time::monotonic_ns().saturating_add(PATIENCE_ALL_NS);
    let mut placed = Vec::new();
    for number in ended {
        let Some(known) = known(old, number) else { continue };
        make_ended(&known, until_ns)
            .and_then(|made| made.place(number))
            .map_err(|error| failed("replace a connection that has ended", error))?;
        placed.push(number);
    }
    for group in pairs.chunk_by(|one, other| one.accepted.address == other.accepted.address) {
        let Some(first) = group.first() else { continue };
        let Ok(listener) = listen_at(&with_port(&first.accepted.address, ports)) else { continue };
        for pair in group.iter().take_while(|_| time::monotonic_ns() < until_ns) {
            let ends = (known(old, pair.connecting.number), known(old, pair.accepted.number));
            let (Some(connecting), Some(accepted)) = ends else { continue };
            // One that cannot be made is lost, as those to others are.
            let Ok((ours, theirs)) = make(pair, &connecting, &accepted, &listener, ports) else { continue };
            for (end, number) in [(ours, pair.connecting.number), (theirs, pair.accepted.number)] {
                end.place(number).map_err(|error| failed("place a connection", error))?;
                placed.push(number);
            }
        }
    }
    Ok(placed)
}

/// Once everything else has its address: ends share theirs only if programs have said so.
pub(super) fn end_sharing(old: &[(u32, Tied)], placed: &[u32]) {
    for number in placed {
        let Some(known) = known(old, *number) else { continue };
        let option = known.options.iter().find(|option| is_reuse(option));
        let value = option.map_or(&[0; 4][..], |option| &option.value);
        // Of one that the other end's program has shut down, nothing is lost by that.
        let _ = socket::set_option_of(*number, SOL_SOCKET, SO_REUSEADDR, value);
    }
}

/// A connection that is lost, which nobody is told as an error any more.
fn make_ended(known: &Known<'_>, until_ns: u64) -> Result<Handle> {
    const SO_ERROR: u32 = 4;
    // An error, or the end where the host has no such connections.
    const POLLERR_OR_HUP: u32 = 8 | 16;
    let made = host::lost(known.family, known.kind, known.token)?;
    let until_ns = time::monotonic_ns().saturating_add(PATIENCE_NS).min(until_ns);
    while host::poll_now(&made, 0)? & POLLERR_OR_HUP == 0 && time::monotonic_ns() < until_ns {
        platform::relax();
    }
    socket::option(&made, SOL_SOCKET, SO_ERROR, size_of::<i32>())?;
    Ok(made)
}

/// The facts of an end that its row has.
struct Known<'a> {
    family: u32,
    kind: u32,
    protocol: u32,
    token: u64,
    options: &'a [SetOption],
}

fn known(old: &[(u32, Tied)], number: u32) -> Option<Known<'_>> {
    let at = old.binary_search_by_key(&number, |(number, _)| *number).ok()?;
    match &old.get(at)?.1 {
        Tied::Socket(it) => Some(Known {
            family: it.family,
            kind: it.kind,
            protocol: it.protocol,
            token: it.token,
            options: &it.options,
        }),
        Tied::Connection(it) => Some(Known {
            family: it.family,
            kind: it.kind,
            protocol: 0,
            token: it.token,
            options: &it.options,
        }),
        _ => None,
    }
}

fn is_reuse(option: &SetOption) -> bool {
    (option.level, option.name) == (SOL_SOCKET, SO_REUSEADDR)
}

fn share(made: &Handle) -> Result<()> {
    socket::set_option(made, SOL_SOCKET, SO_REUSEADDR, &1_i32.to_ne_bytes())
}

/// The address, at any port.
fn at_any_port(address: &[u8]) -> Vec<u8> {
    at_port_of(address, &[0; 4])
}

/// The address, at the port of another one.
fn at_port_of(address: &[u8], other: &[u8]) -> Vec<u8> {
    let mut address = address.to_vec();
    if let (Some(port), Some(theirs)) = (address.get_mut(2..4), other.get(2..4)) {
        port.copy_from_slice(theirs);
    }
    address
}

/// A socket that listens at an address; if somebody else has its port, at another one.
fn listen_at(address: &[u8]) -> Result<Handle> {
    let family = u16::from_ne_bytes(*address.first_chunk().ok_or(Errno::EINVAL)?);
    let listen = |address: &[u8]| {
        // No program is told of it.
        let made = socket::socket(family.into(), super::SOCK_STREAM, 0, 0)?;
        share(&made)?;
        socket::bind(&made, address)?;
        socket::listen(&made, BACKLOG)?;
        Ok(made)
    };
    listen(address).or_else(|_: Errno| listen(&at_any_port(address)))
}

/// Makes both ends, in the state that they had.
fn make(
    pair: &Pair,
    connecting: &Known<'_>,
    accepted: &Known<'_>,
    listener: &Handle,
    ports: &[(u16, u16)],
) -> Result<(Handle, Handle)> {
    let own = with_port(&pair.connecting.address, ports);
    let to = at_port_of(&pair.connecting.peer, &socket::name(listener, false)?);
    // The former connection between the same addresses may not be over yet for the host.
    let ours = connect(connecting, &own, &to).or_else(|_| connect(connecting, &at_any_port(&own), &to))?;
    let theirs = accept_from(&ours, listener, accepted.token)?;
    for option in accepted.options.iter().filter(|option| !is_reuse(option)) {
        // Not all that a socket that listens hands down can be set here.
        let _ = socket::set_option(&theirs, option.level, option.name, &option.value);
    }
    for (made, end) in [(&ours, &pair.connecting), (&theirs, &pair.accepted)] {
        if end.is_write_shut {
            socket::shutdown(made, SHUT_WR)?;
        }
        if end.is_read_shut {
            socket::shutdown(made, SHUT_RD)?;
        }
    }
    Ok((ours, theirs))
}

/// A socket that connects from an address to another one.
fn connect(known: &Known<'_>, own: &[u8], to: &[u8]) -> Result<Handle> {
    let made = socket::socket(known.family, known.kind, known.protocol, known.token)?;
    for option in known.options {
        // The connection is worth more.
        let _ = socket::set_option(&made, option.level, option.name, &option.value);
    }
    share(&made)?;
    socket::bind(&made, own)?;
    match socket::connect(&made, to) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(made),
        Err(error) => Err(error),
    }
}

/// Accepts the connection from `ours`, and none of others.
fn accept_from(ours: &Handle, listener: &Handle, token: u64) -> Result<Handle> {
    let from = endpoint(&socket::name(ours, false)?).ok_or(Errno::EIO)?;
    let until_ns = time::monotonic_ns().saturating_add(PATIENCE_NS);
    let mut strangers = 0;
    while strangers < STRANGERS_MAX {
        match socket::accept(listener, token) {
            Ok((accepted, peer)) if endpoint(&peer) == Some(from) => return Ok(accepted),
            Ok(_) => strangers += 1,
            Err(Errno::EAGAIN) if time::monotonic_ns() < until_ns => platform::relax(),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::ECONNABORTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_are_compared() {
        let four = [2, 0, 0x1f, 0x90, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut six = [0; 28];
        (six[0], six[2], six[3]) = (10, 0x1f, 0x90);
        six[18..24].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
        assert_eq!(endpoint(&four), endpoint(&six));
        assert_eq!(endpoint(&four).map(|(_, port)| port), Some(8080));
        six[23] = 2;
        assert_ne!(endpoint(&four), endpoint(&six));
        for bad in [&four[..7], &six[..23], &[1, 0, 0, 0], &[2], &[]] {
            assert_eq!(endpoint(bad), None);
        }
    }

    #[test]
    fn an_address_takes_anothers_port() {
        let mut address = [2, 0, 0x1f, 0x90, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(at_any_port(&address)[..5], [2, 0, 0, 0, 127]);
        let moved = at_port_of(&address, &[10, 0, 0, 81]);
        (address[2], address[3]) = (0, 81);
        assert_eq!(moved, address);
        assert_eq!(at_port_of(&[2], &[0; 4]), [2]);
    }
}
