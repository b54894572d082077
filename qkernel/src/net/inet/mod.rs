//! `AF_INET` and `AF_INET6`: TCP, UDP and ICMP datagrams over sockets of the host.
//!
//! A socket here is a handle and its cached readiness. Bytes go straight between the host's socket and user memory. The
//! host's socket never waits; waiting is done here, for the edges the host tells of.

mod filtered;
mod ioctl;
mod local_ports;
mod options;
pub mod own;
mod transfer;
mod unread;
mod zero_copy;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering};

use crate::creds::CAP_NET_BIND_SERVICE;
use crate::fs::caller::CallerCtx;
use crate::fs::host_poll::readiness::{Direction, Moment, Readiness};
use crate::fs::poll::PollTable;
use crate::net::ancillary::PeerCreds;
use crate::net::families::{AF_INET, AF_UNSPEC, MsgFlags, SOCK_DGRAM, SOCK_RAW, SOCK_STREAM, SOL_SOCKET};
use crate::net::filter::Filter;
use crate::net::inbox::{ReceiveHow, Received};
use crate::net::inet::local_ports::Unbound;
use crate::net::inet::unread::Unread;
use crate::net::inet::zero_copy::ZeroCopy;
use crate::net::options::Options;
use crate::net::settings;
use crate::net::socket::{Destination, Outgoing, Socket};
use crate::net::talks::{self, Talk};
use crate::net::visits::{self, Visit};
use machine::errno::{Errno, Result};
use machine::host;
use machine::host::Handle;
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;
use machine::socket as hs;
use machine::sync::{Mutex, Once, Rank, SpinLock};

/// Numbers of the ABI.
pub const IPPROTO_IP: u32 = 0;
pub const IPPROTO_IPV6: u32 = 41;
pub const IPV6_2292PKTINFO: u32 = 2;
pub const IPV6_PKTINFO: u32 = 50;
const IPPROTO_ICMP: u32 = 1;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const IPPROTO_ICMPV6: u32 = 58;
const SO_ERROR: u32 = 4;
/// An internet socket.
pub struct InetSocket {
    handle: Handle,
    family: u16,
    kind: u32,
    protocol: u32,
    readiness: Arc<Readiness>,
    listening: AtomicBool,
    /// `IP_UNICAST_IF` and `IPV6_UNICAST_IF` where no device may be chosen: kept, in network order, and not followed.
    unicast_interfaces: [AtomicU32; 2],
    /// `MSG_ZEROCOPY`.
    zero_copy: SpinLock<ZeroCopy>,
    /// The program's filter, which leaves out messages, or their ends (`SO_ATTACH_FILTER`).
    filter: SpinLock<Option<Arc<Filter>>>,
    /// Held while a filter judges the next message.
    judging: Mutex<()>,
    /// `shutdown(2)` ended reading. The host tells that only to who waits in its own call.
    reads_ended: AtomicBool,
    /// An error that came too late for the call that met it.
    late_error: AtomicU32,
    /// The peer's address from `accept(2)`, until it is asked for.
    accepted_from: SpinLock<Option<Vec<u8>>>,
    /// It was accepted from somebody who does not restart the idle time.
    _visit: Option<Visit>,
    /// The request or question that goes on over the connection, if that is watched.
    talk: Once<Arc<Talk>>,
    /// The port that it listens at, for those whom it accepts.
    port: AtomicU16,
    /// Bytes that come before those that the host has.
    unread: Unread,
    /// Directions that `shutdown(2)` has ended: [`ENDED_READS`], [`ENDED_WRITES`].
    ended: AtomicU8,
}

const ENDED_READS: u8 = 1;
const ENDED_WRITES: u8 = 2;

/// The protocol that a socket of this type speaks; errors as Linux gives them.
fn protocol_of(family: u16, kind: u32, protocol: u32) -> Result<u32> {
    let icmp = if family == AF_INET { IPPROTO_ICMP } else { IPPROTO_ICMPV6 };
    match (kind, protocol) {
        (SOCK_STREAM, 0 | IPPROTO_TCP) => Ok(IPPROTO_TCP),
        (SOCK_DGRAM, 0 | IPPROTO_UDP) => Ok(IPPROTO_UDP),
        (SOCK_DGRAM, _) if protocol == icmp => Ok(icmp),
        (_, 256..) => Err(Errno::EINVAL),
        (SOCK_STREAM | SOCK_DGRAM, _) => Err(Errno::EPROTONOSUPPORT),
        (SOCK_RAW, 0) => Err(Errno::EPROTONOSUPPORT),
        (SOCK_RAW, _) => Err(Errno::EPERM),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

/// Returns Linux's name of a protocol of the family.
pub fn protocol_name(family: u16, protocol: u32) -> &'static [u8] {
    match (protocol, family == AF_INET) {
        (IPPROTO_TCP, true) => b"TCP",
        (IPPROTO_TCP, false) => b"TCPv6",
        (IPPROTO_UDP, true) => b"UDP",
        (IPPROTO_UDP, false) => b"UDPv6",
        (_, true) => b"PING",
        (_, false) => b"PINGv6",
    }
}

impl InetSocket {
    fn unbound(&self) -> Unbound<'_> {
        Unbound {
            handle: &self.handle,
            family: self.family,
            is_ipv4: self.family == AF_INET,
            has_ports: matches!(self.protocol, IPPROTO_TCP | IPPROTO_UDP),
        }
    }

    /// An unconnected socket.
    pub fn new(family: u16, kind: u32, protocol: u32) -> Result<Arc<Self>> {
        let protocol = protocol_of(family, kind, protocol)?;
        let readiness = Readiness::new();
        // Of a datagram its sender tells.
        readiness.count(kind == SOCK_STREAM || !visits::are_told_apart());
        let handle = hs::socket(family.into(), kind, protocol, readiness.token())?;
        Ok(Arc::new(Self::with(handle, readiness, family, kind, protocol, None)))
    }

    /// A socket of another family, which the host has connected.
    pub fn connected(handle: Handle, readiness: Arc<Readiness>, family: u16, kind: u32) -> Self {
        let socket = Self::with(handle, readiness, family, kind, 0, None);
        socket.begins_to_connect(&[]);
        socket
    }

    fn with(
        handle: Handle,
        readiness: Arc<Readiness>,
        family: u16,
        kind: u32,
        protocol: u32,
        visit: Option<Visit>,
    ) -> Self {
        Self {
            handle,
            family,
            kind,
            protocol,
            readiness,
            listening: AtomicBool::new(false),
            unicast_interfaces: [const { AtomicU32::new(0) }; 2],
            zero_copy: SpinLock::new(Rank::Leaf, ZeroCopy::default()),
            filter: SpinLock::new(Rank::Leaf, None),
            judging: Mutex::new(Rank::Inbox, ()),
            reads_ended: AtomicBool::new(false),
            late_error: AtomicU32::new(0),
            accepted_from: SpinLock::new(Rank::Leaf, None),
            _visit: visit,
            talk: Once::new(),
            port: AtomicU16::new(0),
            unread: Unread::new(),
            ended: AtomicU8::new(0),
        }
    }

    /// The connection begins to be made: what goes on over it is watched.
    fn begins_to_connect(&self, address: &[u8]) {
        self.note_peer(Some(address));
        // What ended before was another connection.
        self.ended.store(0, Ordering::Relaxed);
        if self.is_stream()
            && self.talk.get().is_none()
            && let Some(talk) = Talk::made(&self.readiness, address)
        {
            self.talk.call_once(|| talk);
        }
    }

    /// It has no connection any more.
    fn ends_connection(&self) {
        self.note_peer(None);
        self.ended.store(0, Ordering::Relaxed);
        self.unread.clear();
    }

    /// `None`: it has none any more.
    fn note_peer(&self, address: Option<&[u8]>) {
        self.handle.note(|socket| socket.peer = address.map(Into::into));
    }

    /// Bytes have come, a datagram's from this address.
    fn came(&self, from: &[u8]) {
        let talk = self.talk.get();
        if let Some(talk) = talk {
            talk.received();
        }
        if talks::has_woken(self.readiness.token()) {
            let (port, peer) = talk.map_or((0, from), |talk| (talk.port, &talk.peer));
            talks::was_woken_for(port, peer);
        }
    }

    /// The local port, for who asks what the sandbox waits for.
    fn note_port(&self) {
        if let Some(port) = self.note_address().get(2..).and_then(<[u8]>::first_chunk) {
            self.port.store(u16::from_be_bytes(*port), Ordering::Relaxed);
        }
    }

    /// Notes the local address, with the port that was chosen.
    fn note_address(&self) -> Vec<u8> {
        let address = hs::name(&self.handle, false).unwrap_or_default();
        self.handle.note(|socket| socket.address = Some(address[..].into()));
        address
    }

    /// One attempt that may find it would have to wait. `wait`: the caller will, so that an attempt without a chance
    /// need not be made.
    fn attempt<R>(&self, direction: Direction, wait: bool, call: impl FnOnce() -> Result<R>) -> Result<R> {
        if wait && !self.readiness.may(direction) {
            return Err(Errno::EAGAIN);
        }
        let before = self.readiness.moment();
        let result = call();
        match &result {
            Err(error) => self.noted(before, direction, *error),
            Ok(_) => self.readiness.used(direction),
        }
        result
    }

    /// Whether an attempt may come to something. What waits on a listening socket is connections, and whatever else is asked of it is
    /// refused at once.
    fn may(&self, direction: Direction) -> bool {
        self.is_listening() || self.readiness.may(direction)
    }

    fn listens_no_more(&self) {
        if self.listening.swap(false, Ordering::Relaxed) {
            self.handle.note(|socket| socket.backlog = None);
            self.readiness.count(true);
        }
    }

    /// Learns from an attempt that met an error.
    fn noted(&self, before: Moment, direction: Direction, error: Errno) {
        match error {
            Errno::EAGAIN => self.readiness.would_wait(before, direction),
            _ => self.readiness.used(direction),
        }
    }
}

/// Data that comes beside the stream; a receive never waits for it.
const BESIDE: MsgFlags = MsgFlags::OOB.union(MsgFlags::ERRQUEUE);
/// Flags of a message that are the host's business.
const HOST_SEND: MsgFlags = MsgFlags::OOB
    .union(MsgFlags::DONTROUTE)
    .union(MsgFlags::EOR)
    .union(MsgFlags::MORE)
    .union(MsgFlags::CONFIRM)
    .union(MsgFlags::FASTOPEN);

/// `EACCES` for a privileged port if the caller may not bind it.
fn check_port(cx: &CallerCtx<'_>, address: &[u8]) -> Result<()> {
    let port = local_ports::port_of(address);
    if port == 0 || port >= settings::free_ports() || cx.caller.creds().has(CAP_NET_BIND_SERVICE) {
        return Ok(());
    }
    Err(Errno::EACCES)
}

impl Socket for InetSocket {
    fn family(&self) -> u16 {
        self.family
    }

    fn kind(&self) -> u32 {
        self.kind
    }

    fn protocol(&self) -> u32 {
        self.protocol
    }

    fn bind(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<()> {
        check_port(cx, addr)?;
        self.unbound().bind_to(addr)?;
        self.note_address();
        Ok(())
    }

    fn listen(&self, _cx: &CallerCtx<'_>, backlog: usize) -> Result<()> {
        // Who comes shows when a connection is accepted.
        self.readiness.count(!visits::are_told_apart());
        self.unbound().bind()?;
        hs::listen(&self.handle, backlog).inspect_err(|_| self.readiness.count(self.is_stream()))?;
        self.handle.note(|socket| socket.backlog = Some(backlog));
        self.listening.store(true, Ordering::Relaxed);
        self.note_port();
        self.readiness.touched();
        Ok(())
    }

    fn accept(&self, wait: bool) -> Result<Arc<dyn Socket>> {
        if !self.is_stream() {
            return Err(Errno::EOPNOTSUPP);
        }
        let readiness = Readiness::new();
        readiness.count(!visits::are_told_apart());
        let (handle, address) =
            self.attempt(Direction::Receive, wait, || hs::accept(&self.handle, readiness.token()))?;
        let visit = visits::accepted(&address);
        readiness.count(visit.is_none());
        let socket = Self::with(handle, readiness, self.family, self.kind, self.protocol, visit);
        let port = self.port.load(Ordering::Relaxed);
        if let Some(talk) = Talk::accepted(&socket.readiness, port, &address) {
            socket.talk.call_once(|| talk);
        }
        if talks::has_woken(self.readiness.token()) {
            talks::was_woken_for(port, &address);
        }
        *socket.accepted_from.lock() = Some(address);
        Ok(Arc::new(socket))
    }

    fn resolve(&self, _cx: &CallerCtx<'_>, addr: &[u8]) -> Result<Destination> {
        Ok(Destination::Address(addr.into()))
    }

    fn destination(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<Option<Destination>> {
        self.resolve(cx, addr).map(Some)
    }

    fn connect(&self, to: Option<&Destination>, _creds: PeerCreds, wait: bool) -> Result<()> {
        let unspec = AF_UNSPEC.to_ne_bytes();
        let mut nowhere = [0; 16];
        nowhere[..2].copy_from_slice(&unspec);
        let address = match to {
            Some(Destination::Address(address)) => &address[..],
            Some(Destination::Unix(_) | Destination::Host(_)) => return Err(Errno::EAFNOSUPPORT),
            None => &nowhere,
        };
        if wait && !self.may(Direction::Send) {
            return Err(Errno::EAGAIN);
        }
        if address.first_chunk() != Some(&unspec) {
            let none_left =
                |error: Errno| if error == Errno::EADDRINUSE { Errno::EADDRNOTAVAIL } else { error };
            self.unbound().bind().map_err(none_left)?;
        }
        // The cached readiness is that of the unconnected socket; an event while the call runs is kept in the
        // generation.
        let before = self.readiness.moment();
        match hs::connect(&self.handle, address) {
            Err(Errno::EINPROGRESS | Errno::EALREADY) if wait => {
                self.begins_to_connect(address);
                self.readiness.would_wait(before, Direction::Send);
                Err(Errno::EAGAIN)
            }
            result => {
                self.listens_no_more();
                *self.accepted_from.lock() = None;
                self.readiness.touched();
                match result {
                    Ok(()) | Err(Errno::EINPROGRESS) if to.is_some() => self.begins_to_connect(address),
                    Ok(()) => self.ends_connection(),
                    Err(_) => {}
                }
                result
            }
        }
    }

    fn local_name(&self) -> Result<Vec<u8>> {
        hs::name(&self.handle, false)
    }

    fn peer_name(&self) -> Result<Vec<u8>> {
        match self.accepted_from.lock().take() {
            Some(address) => Ok(address),
            None => hs::name(&self.handle, true),
        }
    }

    fn send(&self, buf: &mut IoBuf<'_>, message: &mut Outgoing, _options: &Options) -> Result<usize> {
        if let Some(error) = self.take_late_error() {
            return Err(error);
        }
        if message.wait && !self.may(Direction::Send) {
            return Err(Errno::EAGAIN);
        }
        if message.to.is_some() && !self.is_stream() {
            self.unbound().bind()?;
        }
        let flags = message.flags & HOST_SEND;
        match self.send_all(buf, message, flags.bits()) {
            // The connection is still being made, and the bytes were not taken: they are sent once it stands.
            Err(Errno::EINPROGRESS) if flags.contains(MsgFlags::FASTOPEN) => {
                self.readiness.touched();
                if !message.wait {
                    return Err(Errno::EINPROGRESS);
                }
                message.flags -= MsgFlags::FASTOPEN;
                message.to = None;
                Err(Errno::EAGAIN)
            }
            result => result,
        }
    }

    fn send_file(&self, file: &Handle, offset: u64, len: usize, wait: bool) -> Option<Result<usize>> {
        if !self.is_stream() {
            return None;
        }
        if let Some(error) = self.take_late_error() {
            return Some(Err(error));
        }
        if wait && !self.may(Direction::Send) {
            return Some(Err(Errno::EAGAIN));
        }
        Some(self.send_file_all(file, offset, len))
    }

    fn receive(&self, buf: &mut IoBuf<'_>, how: ReceiveHow) -> Result<Received> {
        if self.unread.is_empty()
            && let Some(error) = self.take_late_error()
        {
            return Err(error);
        }
        if how.flags.contains(MsgFlags::ERRQUEUE)
            && let Some(control) = self.zero_copy.lock().tell(self.family)
        {
            return Ok(Received { control, flags: MsgFlags::ERRQUEUE, ..Received::default() });
        }
        // Beside the messages that are still there, who would wait finds the end.
        let ended = how.wait && self.reads_ended.load(Ordering::Acquire);
        let is_beside = how.flags.intersects(BESIDE);
        let _reader = self.unread.reader();
        let is_unread = !is_beside && !self.unread.is_empty();
        if is_unread && buf.is_empty() {
            return Ok(Received::default());
        }
        if how.wait && !ended && !is_beside && !is_unread && !self.may(Direction::Receive) {
            return Err(Errno::EAGAIN);
        }
        let filter = self.filter.lock().clone();
        let result = match filter {
            _ if is_unread => self.receive_unread(buf, &how),
            Some(filter) if !is_beside => self.receive_filtered(&filter, buf, &how),
            _ => self.receive_all(buf, &how),
        };
        match result {
            Err(Errno::EAGAIN) if ended => Ok(Received::default()),
            result => result,
        }
    }

    fn shutdown(&self, how: u32) -> Result<()> {
        let result = hs::shutdown(&self.handle, how);
        // Once both sides are done there is no peer any more.
        drop(self.accepted_from.lock().take());
        if how != 1 {
            self.listens_no_more();
        }
        if result.is_ok() {
            let ended = [ENDED_READS, ENDED_WRITES, ENDED_READS | ENDED_WRITES];
            self.ended.fetch_or(ended.get(how as usize).copied().unwrap_or(0), Ordering::Relaxed);
        }
        // Reading ends even if the socket is not connected, and the call fails.
        if how != 1 && !self.is_stream() && matches!(result, Ok(()) | Err(Errno::ENOTCONN)) {
            self.reads_ended.store(true, Ordering::Release);
        }
        self.readiness.touched();
        result
    }

    fn poll(&self, table: Option<&mut PollTable>, _options: &Options, wanted: PollEvents) -> PollEvents {
        let ask = |events| host::poll_now(&self.handle, events);
        let mut found = self.readiness.poll(table, wanted, ask);
        if self.late_error.load(Ordering::Relaxed) != 0 {
            found |= PollEvents::ERR | PollEvents::READABLE | PollEvents::WRITABLE;
        }
        if self.zero_copy.lock().is_due() {
            found |= PollEvents::ERR;
        }
        if !self.unread.is_empty() {
            found |= PollEvents::READABLE;
        }
        found
    }

    fn take_error(&self) -> Option<Errno> {
        if let Some(error) = self.take_late_error() {
            return Some(error);
        }
        let value = hs::option(&self.handle, SOL_SOCKET, SO_ERROR, 4).ok()?;
        self.readiness.used(Direction::Send);
        let error = i32::from_ne_bytes(*value.first_chunk()?);
        (error != 0).then_some(Errno(error))
    }

    fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Relaxed)
    }

    fn queued(&self) -> Result<(usize, usize)> {
        let ask = |request| hs::query(&self.handle, request).map(|bytes| bytes as usize);
        Ok((ask(ioctl::SIOCINQ)?.saturating_add(self.unread.len()), ask(ioctl::SIOCOUTQ)?))
    }

    fn has_host_options(&self) -> bool {
        true
    }

    fn option(&self, level: u32, name: u32, room: usize) -> Result<Vec<u8>> {
        self.get_option(level, name, room)
    }

    fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<()> {
        self.change_option(level, name, value)
    }

    fn sent_zerocopy(&self) {
        if self.zero_copy.lock().sent() {
            self.readiness.tell(PollEvents::ERR);
        }
    }

    fn set_filter(&self, filter: Option<Arc<Filter>>) -> Result<()> {
        // Of a stream the host would have to look at packets.
        if self.protocol != IPPROTO_UDP {
            return Err(Errno::ENOPROTOOPT);
        }
        let old = core::mem::replace(&mut *self.filter.lock(), filter);
        drop(old);
        Ok(())
    }

    fn keep_error(&self, error: Errno) {
        // The host reports each of these errors only once.
        let told_once = [Errno::ECONNRESET, Errno::ETIMEDOUT, Errno::EHOSTUNREACH, Errno::ENETUNREACH];
        if told_once.contains(&error) {
            self.late_error.store(error.0.unsigned_abs(), Ordering::Relaxed);
        }
    }

    fn ioctl(&self, cx: &CallerCtx<'_>, request: u32, arg: u64) -> Result<u64> {
        ioctl::ioctl(cx, &self.handle, self.unread.len(), request, arg)
    }

    fn closed(&self) {
        // Linux resets a connection that is closed with bytes unread.
        if !self.unread.is_empty() {
            const SO_LINGER: u32 = 13;
            let at_once = [1, 0, 0, 0, 0, 0, 0, 0];
            let _ = hs::set_option(&self.handle, SOL_SOCKET, SO_LINGER, &at_once);
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
