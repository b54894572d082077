//! Netlink sockets of the family `NETLINK_ROUTE`, as far as it answers questions: a question is put to the host, and
//! its answer waits here to be received. Changes are refused with `EPERM`, as to one without `CAP_NET_ADMIN`.
//!
//! Sockets of `NETLINK_KOBJECT_UEVENT` can be made, since systemd does not begin without, and nothing ever comes: no devices come or
//! go. Other families answer `EPROTONOSUPPORT`, upon which programs go without (`ss` reads `/proc/net` then). Groups can be
//! joined, but nothing is ever told to them.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fs::caller;
use crate::fs::caller::CallerCtx;
use crate::fs::poll::PollTable;
use crate::net::ancillary::{PeerCreds, SenderCreds};
use crate::net::families::{AF_NETLINK, SOCK_DGRAM, SOCK_RAW};
use crate::net::filter::Filter;
use crate::net::inbox::{Envelope, Inbox, ReceiveHow, Received};
use crate::net::options::Options;
use crate::net::route;
use crate::net::route::{HEADER_BYTES, Message, Messages, NLM_F_REQUEST};
use crate::net::socket::{Destination, Outgoing, Socket};
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};

const NETLINK_ROUTE: u32 = 0;
const NETLINK_KOBJECT_UEVENT: u32 = 15;
const SOL_NETLINK: u32 = 270;
const ADD_MEMBERSHIP: u32 = 1;
const DROP_MEMBERSHIP: u32 = 2;
const CAP_ACK: u32 = 10;
const GET_STRICT_CHK: u32 = 12;
/// Options that are kept and reported; of them only `CAP_ACK` and `GET_STRICT_CHK` mean something here.
const SWITCHES: &[u32] = &[3, 4, 5, CAP_ACK, 11, GET_STRICT_CHK];

const NLM_F_ACK: u16 = 0x4;
const NLM_F_CAPPED: u16 = 0x100;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// The first kind of message that is not netlink's own.
const NLMSG_MIN_TYPE: u16 = 0x10;
/// Bytes of one datagram of an answer, as Linux packs them for receivers of whom it knows nothing.
const DATAGRAM_BYTES: usize = 3776;
/// Longest datagram that can be sent.
const SEND_MAX: usize = 64 << 10;
/// Unread bytes at which further questions are refused.
const UNREAD_MAX: usize = 256 << 10;
/// `struct sockaddr_nl`.
const ADDRESS_BYTES: usize = 12;

/// Ports in use, of each protocol.
static PORTS: SpinLock<BTreeSet<(u32, u32)>> = SpinLock::new(Rank::Leaf, BTreeSet::new());

/// A netlink socket.
pub struct NetlinkSocket {
    kind: u32,
    protocol: u32,
    /// 0: none yet.
    port: AtomicU32,
    groups: AtomicU32,
    /// By option number.
    switches: AtomicU32,
    wait: Arc<WaitQueue>,
    inbox: Arc<Inbox>,
}

fn sockaddr(port: u32, groups: u32) -> Vec<u8> {
    [&AF_NETLINK.to_ne_bytes()[..], &[0; 2], &port.to_ne_bytes(), &groups.to_ne_bytes()].concat()
}

/// Port and groups of an address.
fn parse(addr: &[u8]) -> Result<(u32, u32)> {
    let addr: &[u8; ADDRESS_BYTES] = addr.first_chunk().ok_or(Errno::EINVAL)?;
    let word = |at: usize| u32::from_ne_bytes([addr[at], addr[at + 1], addr[at + 2], addr[at + 3]]);
    if u16::from_ne_bytes([addr[0], addr[1]]) != AF_NETLINK {
        return Err(Errno::EINVAL);
    }
    Ok((word(4), word(8)))
}

impl NetlinkSocket {
    /// An unbound socket.
    pub fn new(kind: u32, protocol: u32) -> Result<Arc<Self>> {
        if kind != SOCK_RAW && kind != SOCK_DGRAM {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        if !matches!(protocol, NETLINK_ROUTE | NETLINK_KOBJECT_UEVENT) {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let wait = Arc::new(WaitQueue::new());
        Ok(Arc::new(Self {
            kind,
            protocol,
            port: AtomicU32::new(0),
            groups: AtomicU32::new(0),
            switches: AtomicU32::new(0),
            inbox: Inbox::new(wait.clone(), Arc::new(WaitQueue::new())),
            wait,
        }))
    }

    fn has(&self, option: u32) -> bool {
        self.switches.load(Ordering::Relaxed) & (1 << option) != 0
    }

    /// Takes a port: the one asked for, or with 0 the process's id, or some other.
    fn take_port(&self, asked: u32) -> Result<u32> {
        let mut ports = PORTS.lock();
        let port = match (self.port.load(Ordering::Acquire), asked) {
            (0, 0) => {
                let own = caller::current().pid();
                // As on Linux, other ports are negative numbers.
                let mut all = core::iter::once(own).chain((i32::MIN.cast_unsigned()..u32::MAX - 4096).rev());
                all.find(|port| !ports.contains(&(self.protocol, *port))).ok_or(Errno::EADDRINUSE)?
            }
            (0, asked) if ports.contains(&(self.protocol, asked)) => return Err(Errno::EADDRINUSE),
            (0, asked) => asked,
            (port, asked) if asked == 0 || asked == port => return Ok(port),
            _ => return Err(Errno::EINVAL),
        };
        ports.insert((self.protocol, port));
        self.port.store(port, Ordering::Release);
        Ok(port)
    }

    /// Answers one message of the sender's.
    fn answer(&self, message: &Message<'_>, port: u32) -> Result<()> {
        if message.flags & NLM_F_REQUEST == 0 {
            return Ok(());
        }
        let result = match message.kind {
            kind if kind < NLMSG_MIN_TYPE => Ok(Vec::new()),
            // Kinds come in fours: new, delete, get, set.
            kind if kind & 3 == 2 && self.protocol == NETLINK_ROUTE => {
                route::ask(message.whole, self.has(GET_STRICT_CHK))
                    .map_err(|error| if error == Errno::EPERM { Errno::EOPNOTSUPP } else { error })
            }
            _ => Err(Errno::EPERM),
        };
        match result {
            Ok(answer) if answer.is_empty() && message.flags & NLM_F_ACK != 0 => {
                self.deliver(&self.verdict(message, None, port))
            }
            Ok(mut answer) => {
                localise(&mut answer, port, caller::current().creds().uid);
                datagrams(&answer).try_for_each(|datagram| self.deliver(datagram))
            }
            Err(error) => self.deliver(&self.verdict(message, Some(error), port)),
        }
    }

    /// `NLMSG_ERROR` about a message.
    fn verdict(&self, about: &Message<'_>, error: Option<Errno>, port: u32) -> Vec<u8> {
        let capped = error.is_none() || self.has(CAP_ACK);
        let shown = if capped { &about.whole[..HEADER_BYTES] } else { about.whole };
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.extend_from_slice(&error.map_or(0, |error| -error.0).to_ne_bytes());
        bytes.extend_from_slice(shown);
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(if capped { NLM_F_CAPPED } else { 0 }).to_ne_bytes());
        bytes[8..12].copy_from_slice(&about.whole[8..12]);
        bytes[12..16].copy_from_slice(&port.to_ne_bytes());
        bytes
    }

    /// Puts a datagram in that nobody has asked for. `ENOBUFS`: too much is unread.
    pub fn notify(&self, datagram: &[u8]) -> Result<()> {
        if self.inbox.bytes() > UNREAD_MAX { Err(Errno::ENOBUFS) } else { self.deliver(datagram) }
    }

    /// Puts a datagram of the kernel's in for the receiver.
    pub fn deliver(&self, datagram: &[u8]) -> Result<()> {
        // The kernel is process 0 of user 0: who asks (`SO_PASSCRED`) believes nobody else.
        let creds = Some(SenderCreds::default());
        let envelope = Envelope { from: sockaddr(0, 0).into(), creds, ..Envelope::default() };
        self.inbox
            .push_message(&mut IoBuf::constant(datagram), &mut Some(envelope), usize::MAX, true)
            .map(drop)
    }
}

/// Sets the port of every message to the receiver's, and the user id that a route was looked up for to the asker's: the
/// host's answer has those of the VMM.
fn localise(messages: &mut [u8], port: u32, uid: u32) {
    let mut at = 0;
    while let Some(message) = Messages(&messages[at..]).next() {
        let len = message.whole.len();
        let uid_at = message.route_uid_at();
        messages[at + 12..at + 16].copy_from_slice(&port.to_ne_bytes());
        if let Some(uid_at) = uid_at {
            messages[at + uid_at..at + uid_at + 4].copy_from_slice(&uid.to_ne_bytes());
        }
        at = (at + len.next_multiple_of(4)).min(messages.len());
    }
}

/// An answer cut into datagrams, at the bounds of messages. The end of a dump is one of its own: it always was before Linux 6.9,
/// so that programs receive once more for it, whom later versions spare that for kinds of which nobody does.
fn datagrams(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    core::iter::from_fn(move || {
        let mut len = 0;
        for message in Messages(rest) {
            let next = (len + message.whole.len().next_multiple_of(4)).min(rest.len());
            if len > 0 && (next > DATAGRAM_BYTES || message.kind == NLMSG_DONE) {
                break;
            }
            len = next;
        }
        let (first, others) = rest.split_at(len);
        rest = others;
        (len > 0).then_some(first)
    })
}

impl Socket for NetlinkSocket {
    fn family(&self) -> u16 {
        AF_NETLINK
    }

    fn kind(&self) -> u32 {
        self.kind
    }

    fn protocol(&self) -> u32 {
        self.protocol
    }

    fn bind(&self, _cx: &CallerCtx<'_>, addr: &[u8]) -> Result<()> {
        let (port, groups) = parse(addr)?;
        self.take_port(port)?;
        self.groups.store(groups, Ordering::Relaxed);
        Ok(())
    }

    fn listen(&self, _cx: &CallerCtx<'_>, _backlog: usize) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn accept(&self, _wait: bool) -> Result<Arc<dyn Socket>> {
        Err(Errno::EOPNOTSUPP)
    }

    fn resolve(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<Destination> {
        self.destination(cx, addr).map(|_| Destination::Address(addr.into()))
    }

    fn destination(&self, _cx: &CallerCtx<'_>, addr: &[u8]) -> Result<Option<Destination>> {
        match parse(addr)? {
            (0, 0) => Ok(None),
            (0, _) => Err(Errno::EPERM),
            // Programs do not talk to each other this way.
            _ => Err(Errno::ECONNREFUSED),
        }
    }

    fn connect(&self, _to: Option<&Destination>, _creds: PeerCreds, _wait: bool) -> Result<()> {
        self.take_port(0).map(drop)
    }

    fn local_name(&self) -> Result<Vec<u8>> {
        Ok(sockaddr(self.port.load(Ordering::Acquire), self.groups.load(Ordering::Relaxed)))
    }

    fn peer_name(&self) -> Result<Vec<u8>> {
        Ok(sockaddr(0, 0))
    }

    fn send(&self, buf: &mut IoBuf<'_>, _message: &mut Outgoing, _options: &Options) -> Result<usize> {
        let len = buf.remaining();
        if len > SEND_MAX {
            return Err(Errno::EMSGSIZE);
        }
        if self.inbox.bytes() > UNREAD_MAX {
            return Err(Errno::ENOBUFS);
        }
        let port = self.take_port(0)?;
        let mut bytes = vec![0; len];
        buf.drain(&mut bytes)?;
        for message in Messages(&bytes) {
            self.answer(&message, port)?;
            if self.inbox.bytes() > UNREAD_MAX {
                break;
            }
        }
        Ok(len)
    }

    fn receive(&self, buf: &mut IoBuf<'_>, how: ReceiveHow) -> Result<Received> {
        self.inbox.receive_message(buf, how)
    }

    fn shutdown(&self, _how: u32) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn poll(&self, table: Option<&mut PollTable>, _options: &Options, _wanted: PollEvents) -> PollEvents {
        if let Some(table) = table {
            table.add(&self.wait);
        }
        let writable = PollEvents::WRITABLE | PollEvents::WRBAND;
        if self.inbox.has_message() { writable | PollEvents::READABLE } else { writable }
    }

    fn queued(&self) -> Result<(usize, usize)> {
        Ok((self.inbox.first_len(), 0))
    }

    fn option(&self, level: u32, name: u32, _room: usize) -> Result<Vec<u8>> {
        if level != SOL_NETLINK || !SWITCHES.contains(&name) {
            return Err(Errno::ENOPROTOOPT);
        }
        Ok(u32::from(self.has(name)).to_ne_bytes().to_vec())
    }

    fn set_filter(&self, filter: Option<Arc<Filter>>) -> Result<()> {
        self.inbox.set_filter(filter);
        Ok(())
    }

    fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<()> {
        if level != SOL_NETLINK {
            return Err(Errno::ENOPROTOOPT);
        }
        let value = u32::from_ne_bytes(*value.first_chunk().ok_or(Errno::EINVAL)?);
        let set = |word: &AtomicU32, bit: u32, on: bool| {
            if on {
                word.fetch_or(bit, Ordering::Relaxed)
            } else {
                word.fetch_and(!bit, Ordering::Relaxed)
            };
        };
        match name {
            ADD_MEMBERSHIP | DROP_MEMBERSHIP => match value {
                // The groups that `struct sockaddr_nl` can show.
                1..=32 => set(&self.groups, 1 << (value - 1), name == ADD_MEMBERSHIP),
                33..=64 => {}
                _ => return Err(Errno::EINVAL),
            },
            _ if SWITCHES.contains(&name) => set(&self.switches, 1 << name, value != 0),
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }

    fn closed(&self) {
        let port = self.port.swap(0, Ordering::AcqRel);
        if port != 0 {
            PORTS.lock().remove(&(self.protocol, port));
        }
        self.inbox.close();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.next_multiple_of(4)];
        bytes[..4].copy_from_slice(&u32::try_from(len).unwrap().to_ne_bytes());
        bytes
    }

    #[test]
    fn answers_are_cut_between_messages() {
        let answer = [message(1501), message(1500), message(1500), message(9000), message(20)].concat();
        let cut: Vec<usize> = datagrams(&answer).map(<[u8]>::len).collect();
        assert_eq!(cut, [3004, 1500, 9000, 20]);
        assert_eq!(datagrams(&[]).count(), 0);
        let mut done = message(20);
        done[4..6].copy_from_slice(&NLMSG_DONE.to_ne_bytes());
        let cut: Vec<usize> = datagrams(&[message(20), done.clone()].concat()).map(<[u8]>::len).collect();
        assert_eq!(cut, [20, 20]);
        assert_eq!(datagrams(&done).count(), 1);
        // A malformed message is not delivered, and does not make the loop run for ever.
        assert_eq!(datagrams(&[0; 64]).count(), 0);
    }

    #[test]
    fn answers_are_the_kernels() {
        let socket = NetlinkSocket::new(SOCK_RAW, 0).unwrap();
        socket.deliver(b"answer").unwrap();
        let mut bytes = [0; 8];
        let received = socket.receive(&mut IoBuf::kernel(&mut bytes), ReceiveHow::default()).unwrap();
        assert_eq!((received.bytes, received.creds), (6, Some(SenderCreds::default())));
    }

    #[test]
    fn every_message_gets_the_port() {
        let mut answer = [message(21), message(40)].concat();
        localise(&mut answer, 7, 5);
        let ports: Vec<_> = Messages(&answer).map(|message| message.whole[12]).collect();
        assert_eq!(ports, [7, 7]);
    }

    #[test]
    fn a_refusal_shows_what_it_is_about() {
        let socket = NetlinkSocket::new(SOCK_RAW, 0).unwrap();
        let asked = message(40);
        let about = Messages(&asked).next().unwrap();
        let refusal = socket.verdict(&about, Some(Errno::EPERM), 9);
        assert_eq!(refusal.len(), 16 + 4 + 40);
        assert_eq!(i32::from_ne_bytes(*refusal[16..].first_chunk().unwrap()), -1);
        assert_eq!(socket.verdict(&about, None, 9).len(), 16 + 4 + 16);
        // `NETLINK_GENERIC`.
        assert!(NetlinkSocket::new(SOCK_RAW, 16).is_err());
    }
}
