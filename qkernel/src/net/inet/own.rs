//! TCP connections of which the sandbox has both ends: a snapshot keeps them, with all bytes that no program has read yet. Of one whose
//! other end has ended writing, whoever has that, it keeps the bytes.
//!
//! While no task runs the bytes are taken out of the host's sockets, both those that have arrived and those that their senders' sockets
//! still hold, and kept by the sockets that are to receive them ([`super::unread`]), in the sandbox that goes on as well. Nothing is lost
//! by that if there is no snapshot in the end.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::net::families::{AF_INET, AF_INET6, SOCK_STREAM, SOL_SOCKET};
use crate::net::registry;
use crate::net::socket::Socket;
use machine::errno::{Errno, Result};
use machine::host;
use machine::mm::{IoBuf, account};
use machine::platform;
use machine::reopen::{self, Connections, End, Endpoint, Pair};
use machine::sched::wait::PollEvents;
use machine::socket as hs;
use machine::time;

use super::ioctl::{SIOCATMARK, SIOCINQ, SIOCOUTQ};
use super::unread::Pieces;
use super::{ENDED_READS, ENDED_WRITES, IPPROTO_TCP, InetSocket};

/// Most unread bytes of a connection's direction, and of all together. A connection with more is not kept.
const DIRECTION_BYTES: usize = 16 << 20;
const ALL_BYTES: usize = 64 << 20;
/// Bytes that are taken at once.
const PIECE_BYTES: usize = 64 << 10;
/// How long bytes on their way are waited for, of all connections together. Over loopback they arrive at once.
const PATIENCE_NS: u64 = 50_000_000;
/// How long at once.
const WAIT_NS: u64 = 20_000;
const SO_RCVLOWAT: u32 = 18;
const TCP_NODELAY: u32 = 1;
const TCP_INFO: u32 = 11;
const TCP_QUICKACK: u32 = 12;
/// Bytes of `struct tcp_info`, and places of what is looked at.
const INFO_BYTES: usize = 216;
const INFO_BYTES_RECEIVED: usize = 128;
const INFO_NOT_SENT: usize = 144;
const INFO_BYTES_SENT: usize = 200;
const INFO_BYTES_RETRANSMITTED: usize = 208;

/// Finds the connections that can be kept, which are returned, and takes their unread bytes. Only while no task runs; until [`let_go`] the
/// host's news of them wake nobody.
pub fn hold() -> Connections {
    let open = registry::list();
    let ends = Ends::of(&open);
    // Former snapshots have had some kept, which nobody has read.
    let already: usize = streams(&open).map(|socket| socket.unread.len()).sum();
    let mut budget = Budget { bytes: ALL_BYTES.saturating_sub(already), wait_ns: PATIENCE_NS };
    let mut kept = Connections::default();
    for (one, other) in ends.pairs() {
        if kept.pairs.try_reserve(1).is_ok() && keep(one, other, &mut budget).is_ok() {
            let is_first = !one.socket.handle.is_accepted();
            let (connecting, accepted) = if is_first { (one, other) } else { (other, one) };
            kept.pairs.push(Pair { connecting: connecting.noted(), accepted: accepted.noted() });
        }
    }
    let alone = streams(&open).filter(|socket| !socket.readiness.is_hushed());
    for socket in alone.filter(|socket| has_ended(socket).is_ok_and(|ended| ended)) {
        socket.readiness.hush();
        if kept.ended.try_reserve(1).is_ok() && drain_ended(socket, &mut budget).is_ok() {
            kept.ended.push(socket.handle.raw());
        }
    }
    kept
}

/// The connections among open sockets, and what may become one.
fn streams(open: &[registry::Open]) -> impl Iterator<Item = &InetSocket> {
    open.iter().filter_map(|open| stream_of(&open.socket)).filter(|socket| !socket.is_listening())
}

/// Tells those who wait for the connections what has happened, once the memory has been taken, or is not.
pub fn let_go() {
    for open in registry::list() {
        if let Some(socket) = stream_of(&open.socket) {
            socket.readiness.end_hush();
        }
    }
}

fn stream_of(socket: &Arc<dyn Socket>) -> Option<&InetSocket> {
    let socket = socket.as_any().downcast_ref::<InetSocket>()?;
    let is_tcp = socket.kind == SOCK_STREAM && socket.protocol == IPPROTO_TCP;
    (is_tcp && matches!(socket.family, AF_INET | AF_INET6)).then_some(socket)
}

/// Bytes and time that all connections together may still take.
struct Budget {
    bytes: usize,
    wait_ns: u64,
}

/// One end of a connection to whomsoever.
struct Side<'a> {
    socket: &'a InetSocket,
    address: Vec<u8>,
    peer: Vec<u8>,
}

impl Side<'_> {
    fn noted(&self) -> End {
        let ended = self.socket.ended.load(Ordering::Relaxed);
        End {
            number: self.socket.handle.raw(),
            address: self.address.clone(),
            peer: self.peer.clone(),
            is_read_shut: ended & ENDED_READS != 0,
            is_write_shut: ended & ENDED_WRITES != 0,
        }
    }
}

/// Ends of connections by their own address and that of the other end.
struct Ends<'a>(BTreeMap<(Endpoint, Endpoint), Side<'a>>);

impl<'a> Ends<'a> {
    fn of(open: &'a [registry::Open]) -> Self {
        let end = |socket: &'a InetSocket| {
            let address = hs::name(&socket.handle, false).ok()?;
            let peer = hs::name(&socket.handle, true).ok()?;
            let key = (reopen::endpoint(&address)?, reopen::endpoint(&peer)?);
            Some((key, Side { socket, address, peer }))
        };
        Self(streams(open).filter_map(end).collect())
    }

    /// Each connection once.
    fn pairs(&self) -> impl Iterator<Item = (&Side<'a>, &Side<'a>)> {
        self.0.iter().filter_map(|((own, peer), end)| {
            // One that is connected to itself has no other end.
            let other = self.0.get(&(*peer, *own)).filter(|_| own < peer)?;
            Some((end, other))
        })
    }
}

/// Takes the unread bytes of both directions, if the connection can be made anew.
fn keep(one: &Side<'_>, other: &Side<'_>, budget: &mut Budget) -> Result<()> {
    one.socket.readiness.hush();
    other.socket.readiness.hush();
    drain(one.socket, other.socket, budget)?;
    drain(other.socket, one.socket, budget)
}

/// Whether there is urgent data, whose place among the others would be lost.
fn has_urgent(socket: &InetSocket) -> Result<bool> {
    let found = host::poll_now(&socket.handle, PollEvents::PRI.bits())?;
    let is_there = PollEvents::from_bits_truncate(found).intersects(PollEvents::PRI);
    Ok(is_there || query(socket, SIOCATMARK)? != 0)
}

fn query(socket: &InetSocket, request: u32) -> Result<usize> {
    hs::query(&socket.handle, request).map(|bytes| bytes as usize)
}

/// Whether so many bytes may be taken.
fn check(to: &InetSocket, waiting: usize, budget: &Budget) -> Result<()> {
    if has_urgent(to)? {
        return Err(Errno::EBUSY);
    }
    if waiting > budget.bytes || waiting.saturating_add(to.unread.len()) > DIRECTION_BYTES {
        return Err(Errno::ENOBUFS);
    }
    // The host would not tell of bytes that are enough only together with those that it has no more.
    if waiting > 0 && to.least_received()? > 1 { Err(Errno::EBUSY) } else { Ok(()) }
}

/// Whether nothing more comes from the other end, and no error.
fn has_ended(socket: &InetSocket) -> Result<bool> {
    let found = PollEvents::from_bits_truncate(host::poll_now(&socket.handle, PollEvents::RDHUP.bits())?);
    let is_by_itself = socket.ended.load(Ordering::Relaxed) & ENDED_READS != 0;
    Ok(found.contains(PollEvents::RDHUP) && !found.contains(PollEvents::ERR) && !is_by_itself)
}

/// Has a socket keep all bytes that have come before the end.
fn drain_ended(to: &InetSocket, budget: &mut Budget) -> Result<()> {
    let mut kept = to.unread.lock_to_add().ok_or(Errno::EBUSY)?;
    check(to, query(to, SIOCINQ)?, budget)?;
    take_arrived(to, &mut kept, budget)
}

/// Has `to` keep all bytes that `from` has sent and nobody has read.
fn drain(from: &InetSocket, to: &InetSocket, budget: &mut Budget) -> Result<()> {
    let mut kept = to.unread.lock_to_add().ok_or(Errno::EBUSY)?;
    check(to, query(to, SIOCINQ)?.saturating_add(query(from, SIOCOUTQ)?), budget)?;
    loop {
        take_arrived(to, &mut kept, budget)?;
        // What arrives while that is asked is taken in the next turn.
        if has_all_arrived(from, to)? && query(to, SIOCINQ)? == 0 {
            return Ok(());
        }
        nudge(from, to);
        wait_for_arrival(to, budget)?;
    }
}

/// Takes all bytes that have arrived.
fn take_arrived(to: &InetSocket, kept: &mut Pieces, budget: &mut Budget) -> Result<()> {
    while let arrived @ 1.. = query(to, SIOCINQ)? {
        if has_urgent(to)? {
            return Err(Errno::EBUSY);
        }
        let taken = take_piece(to, kept, arrived.min(PIECE_BYTES))?;
        budget.bytes = budget.bytes.saturating_sub(taken);
        if taken == 0 || budget.bytes == 0 || to.unread.len() > DIRECTION_BYTES {
            return Err(Errno::ENOBUFS);
        }
    }
    // At a mark the host says that nothing has arrived, whatever lies behind it.
    if has_urgent(to)? { Err(Errno::EBUSY) } else { Ok(()) }
}

/// Waits for bytes, or for what says that there are none, for as long as the budget lasts.
fn wait_for_arrival(to: &InetSocket, budget: &mut Budget) -> Result<()> {
    let start_ns = time::monotonic_ns();
    let waited_ns = || time::monotonic_ns().saturating_sub(start_ns);
    while query(to, SIOCINQ)? == 0 && waited_ns() < WAIT_NS {
        platform::relax();
    }
    budget.wait_ns = budget.wait_ns.saturating_sub(waited_ns());
    if budget.wait_ns == 0 { Err(Errno::ETIMEDOUT) } else { Ok(()) }
}

/// Moves bytes from the host's socket to those that are kept. Result: how many.
fn take_piece(socket: &InetSocket, kept: &mut Pieces, len: usize) -> Result<usize> {
    let mut piece = account::filled(0_u8, len)?;
    let mut with = hs::Receive::default();
    let got = hs::receive(&socket.handle, &mut IoBuf::kernel(&mut piece), false, &mut with)
        .inspect_err(|error| socket.keep_error(*error))?;
    piece.truncate(got);
    if got > 0 {
        socket.unread.add(kept, piece);
        // The host does not tell of these any more.
        socket.readiness.misses();
    }
    Ok(got)
}

/// Has bytes sent that wait for more, or for an acknowledgement that is held back.
fn nudge(from: &InetSocket, to: &InetSocket) {
    let (on, off) = (1_i32.to_ne_bytes(), 0_i32.to_ne_bytes());
    let _ = hs::set_option(&to.handle, IPPROTO_TCP, TCP_QUICKACK, &on);
    let is_off = hs::option(&from.handle, IPPROTO_TCP, TCP_NODELAY, 4).is_ok_and(|value| value == off);
    // Set once more it pushes as well.
    if hs::set_option(&from.handle, IPPROTO_TCP, TCP_NODELAY, &on).is_ok() && is_off {
        let _ = hs::set_option(&from.handle, IPPROTO_TCP, TCP_NODELAY, &off);
    }
}

/// Whether everything that `from` was given to send has come to `to`.
fn has_all_arrived(from: &InetSocket, to: &InetSocket) -> Result<bool> {
    if query(from, SIOCOUTQ)? == 0 {
        return Ok(true);
    }
    // Bytes that have come may not be acknowledged yet.
    let (sender, receiver) = (info(from)?, info(to)?);
    let word = |info: &[u8], at: usize| {
        info.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
    };
    let not_sent =
        sender.get(INFO_NOT_SENT..).and_then(<[u8]>::first_chunk).map(|word| u32::from_ne_bytes(*word));
    let sent = word(&sender, INFO_BYTES_SENT).saturating_sub(word(&sender, INFO_BYTES_RETRANSMITTED));
    // The end of a stream counts as one that was received, and comes behind all others.
    Ok(sender.len() == INFO_BYTES && not_sent == Some(0) && word(&receiver, INFO_BYTES_RECEIVED) >= sent)
}

fn info(socket: &InetSocket) -> Result<Vec<u8>> {
    hs::option(&socket.handle, IPPROTO_TCP, TCP_INFO, INFO_BYTES)
}

impl InetSocket {
    /// `SO_RCVLOWAT`.
    fn least_received(&self) -> Result<i32> {
        let value = hs::option(&self.handle, SOL_SOCKET, SO_RCVLOWAT, 4)?;
        value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::EIO)
    }
}
