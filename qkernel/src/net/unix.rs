//! Unix sockets: streams, datagrams and packet streams between processes of the sandbox.

mod collecting;
mod connecting;
mod datagrams;

pub use connecting::pair;

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::fs::caller::CallerCtx;
use crate::fs::path::Path;
use crate::fs::poll::PollTable;
use crate::net::ancillary::PeerCreds;
use crate::net::families::{
    AF_UNIX, MsgFlags, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_STREAM, SOL_SOCKET,
};
use crate::net::filter::Filter;
use crate::net::inbox::{Envelope, Inbox, ReceiveHow, Received};
use crate::net::inet::InetSocket;
use crate::net::options::Options;
use crate::net::passing::Carrier;
use crate::net::settings;
use crate::net::socket::{Destination, Outgoing, Socket};
use crate::net::unix_names;
use crate::net::unix_names::Name;
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::mm::{IoBuf, UserAddr};
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};

/// Most connections that wait for `accept(2)` (`net.core.somaxconn`).
const BACKLOG_MAX: usize = 4096;
/// Queues that a socket remembers to have had no room.
const WAITS_MAX: usize = 16;

/// Whether the next byte is the urgent one.
const SIOCATMARK: u32 = 0x8905;

/// A socket's address, shared with its peer; empty while it has none.
type NameCell = Arc<SpinLock<Arc<[u8]>>>;

fn nameless() -> NameCell {
    Arc::new(SpinLock::new(Rank::Leaf, Arc::default()))
}

/// A connection, seen from one side.
#[derive(Clone)]
struct Link {
    inbox: Arc<Inbox>,
    outbox: Arc<Inbox>,
    peer_name: NameCell,
    peer_creds: Option<PeerCreds>,
    /// The other socket, of datagrams.
    peer: Option<Weak<UnixSocket>>,
}

struct Listener {
    backlog: usize,
    pending: VecDeque<Arc<UnixSocket>>,
    /// How many have left `pending`: the number of the first one in it.
    accepted: u64,
    creds: PeerCreds,
    /// No longer accepts (`shutdown(2)`).
    shut: bool,
}

enum State {
    Idle,
    /// A connection is being made; nobody else may make one.
    Connecting,
    Listening(Listener),
    Connected(Link),
    /// To a socket of the host.
    Outside(Arc<InetSocket>),
    Closed,
}

/// A Unix socket.
pub struct UnixSocket {
    me: Weak<UnixSocket>,
    kind: u32,
    name: NameCell,
    /// The node of a path it is bound to, which leads back here.
    node: SpinLock<Option<Path>>,
    state: SpinLock<State>,
    /// Tasks that wait for this socket.
    wait: Arc<WaitQueue>,
    /// Tasks that wait for a place in the backlog.
    backlog_room: Arc<WaitQueue>,
    /// The queues that had no room at the last attempts, of several threads: listeners' backlogs, or other sockets' datagrams.
    waits_for: SpinLock<VecDeque<Arc<WaitQueue>>>,
    /// Where datagrams arrive.
    datagrams: Option<Arc<Inbox>>,
    /// `SHUT_WR` of a datagram socket.
    send_shut: AtomicBool,
    /// Its file wants to know who sent a message. So does one that has none yet, as on Linux.
    wants_creds: AtomicBool,
    /// Belongs to a file, or did (a connection that waits for `accept(2)` doesn't).
    taken: AtomicBool,
}

impl UnixSocket {
    /// An unconnected socket.
    pub fn new(kind: u32, protocol: u32) -> Result<Arc<Self>> {
        let kind = match kind {
            SOCK_STREAM | SOCK_DGRAM | SOCK_SEQPACKET => kind,
            SOCK_RAW => SOCK_DGRAM,
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        if protocol != 0 && protocol != u32::from(AF_UNIX) {
            return Err(Errno::EPROTONOSUPPORT);
        }
        Ok(Self::make(kind, nameless(), true))
    }

    fn make(kind: u32, name: NameCell, taken: bool) -> Arc<Self> {
        let wait = Arc::new(WaitQueue::new());
        let datagrams = (kind == SOCK_DGRAM)
            .then(|| Inbox::bounded(wait.clone(), Arc::new(WaitQueue::new()), settings::datagrams_max()));
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            kind,
            name,
            node: SpinLock::new(Rank::Leaf, None),
            state: SpinLock::new(Rank::Leaf, State::Idle),
            wait,
            backlog_room: Arc::new(WaitQueue::new()),
            waits_for: SpinLock::new(Rank::Leaf, VecDeque::new()),
            datagrams,
            send_shut: AtomicBool::new(false),
            wants_creds: AtomicBool::new(!taken),
            taken: AtomicBool::new(taken),
        })
    }

    fn link(&self) -> Option<Link> {
        match &*self.state.lock() {
            State::Connected(link) => Some(link.clone()),
            _ => None,
        }
    }

    /// The connected socket of the host behind this one.
    fn outside(&self) -> Option<Arc<InetSocket>> {
        match &*self.state.lock() {
            State::Outside(socket) => Some(socket.clone()),
            _ => None,
        }
    }

    fn is_datagram(&self) -> bool {
        self.kind == SOCK_DGRAM
    }

    fn me(&self) -> Result<Arc<Self>> {
        self.me.upgrade().ok_or(Errno::EBADF)
    }

    /// Makes an address its own, unless it has one: then the address is given back.
    fn take_name(&self, addr: Vec<u8>) -> Result<()> {
        let addr: Arc<[u8]> = addr.into();
        let is_first = {
            let mut name = self.name.lock();
            let is_first = name.is_empty();
            if is_first {
                *name = addr.clone();
            }
            is_first
        };
        if is_first {
            return Ok(());
        }
        unix_names::release(&addr, self.kind, &self.me);
        Err(Errno::EINVAL)
    }

    fn poll_link(&self, link: &Link, limit: usize) -> PollEvents {
        let mut events = PollEvents::empty();
        let ended = link.inbox.is_ended();
        if link.inbox.has_message() {
            events |= PollEvents::READABLE;
        }
        if ended {
            events |= PollEvents::READABLE | PollEvents::RDHUP;
        }
        if link.outbox.is_ended() && ended {
            events |= PollEvents::HUP;
        }
        if link.inbox.is_reset() {
            events |= PollEvents::ERR;
        }
        if link.inbox.is_urgent() {
            events |= PollEvents::PRI;
        }
        if link.outbox.is_ended() || link.outbox.has_room(limit) {
            events |= PollEvents::WRITABLE | PollEvents::WRBAND;
        }
        events
    }
}

fn shown(name: &NameCell) -> Vec<u8> {
    let name = name.lock().clone();
    if name.is_empty() { unix_names::to_sockaddr(&Name::Empty) } else { name.to_vec() }
}

impl Socket for UnixSocket {
    fn family(&self) -> u16 {
        AF_UNIX
    }

    fn carrier(&self) -> Option<&dyn Carrier> {
        Some(self)
    }

    fn kind(&self) -> u32 {
        self.kind
    }

    fn held_bytes(&self) -> u64 {
        self.inbox().map_or(0, |inbox| inbox.held_bytes() as u64)
    }

    fn waiting_files(&self) -> Option<usize> {
        Some(self.inbox().map_or(0, |inbox| inbox.waiting_files()))
    }

    fn bind(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<()> {
        let name = unix_names::parse(addr)?;
        if !self.name.lock().is_empty() {
            return if name == Name::Empty { Ok(()) } else { Err(Errno::EINVAL) };
        }
        let (addr, node) = unix_names::bind(cx, &name, &self.me()?)?;
        self.take_name(addr)?;
        *self.node.lock() = node;
        Ok(())
    }

    fn autobind(&self) -> Result<()> {
        if !self.name.lock().is_empty() {
            return Ok(());
        }
        let addr = unix_names::autobind(&self.me()?)?;
        // Somebody may have been faster; it has a name in any case.
        let _ = self.take_name(addr);
        Ok(())
    }

    fn set_wants_creds(&self, wants: bool) {
        self.wants_creds.store(wants, Ordering::Relaxed);
        let link = self.link().filter(|_| !self.is_datagram()).map(|link| link.inbox);
        for inbox in self.datagrams.iter().chain(&link) {
            inbox.set_wants_creds(wants);
        }
    }

    fn set_filter(&self, filter: Option<Arc<Filter>>) -> Result<()> {
        // As on Linux, streams take one and do not run it.
        if let Some(inbox) = &self.datagrams {
            inbox.set_filter(filter);
        } else if let (SOCK_SEQPACKET, Some(link)) = (self.kind, self.link()) {
            link.inbox.set_filter(filter);
        }
        Ok(())
    }

    fn listen(&self, cx: &CallerCtx<'_>, backlog: usize) -> Result<()> {
        if self.is_datagram() {
            return Err(Errno::EOPNOTSUPP);
        }
        if self.name.lock().is_empty() {
            return Err(Errno::EINVAL);
        }
        let backlog = backlog.min(BACKLOG_MAX);
        let creds = PeerCreds::of(cx.caller);
        let mut state = self.state.lock();
        match &mut *state {
            State::Idle => {
                *state = State::Listening(Listener {
                    backlog,
                    pending: VecDeque::new(),
                    accepted: 0,
                    creds,
                    shut: false,
                });
            }
            State::Listening(listener) => {
                listener.backlog = backlog;
                listener.creds = creds;
            }
            _ => return Err(Errno::EINVAL),
        }
        drop(state);
        self.backlog_room.wake_all();
        Ok(())
    }

    fn accept(&self, _wait: bool) -> Result<Arc<dyn Socket>> {
        if self.is_datagram() {
            return Err(Errno::EOPNOTSUPP);
        }
        let accepted = self.take_first_waiting()?;
        accepted.taken.store(true, Ordering::Release);
        self.backlog_room.wake(PollEvents::WRITABLE);
        Ok(accepted)
    }

    fn resolve(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<Destination> {
        match unix_names::find(cx, &unix_names::parse(addr)?, self.kind)? {
            Destination::Unix(target) if target.kind != self.kind => Err(Errno::EPROTOTYPE),
            // Such a socket could send anywhere on the host.
            Destination::Host(_) if self.is_datagram() => Err(Errno::ECONNREFUSED),
            found => Ok(found),
        }
    }

    fn destination(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<Option<Destination>> {
        match self.kind {
            SOCK_DGRAM => self.resolve(cx, addr).map(Some),
            SOCK_SEQPACKET => Ok(None),
            _ if self.link().is_some() || self.outside().is_some() => Err(Errno::EISCONN),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn connect(&self, to: Option<&Destination>, creds: PeerCreds, wait: bool) -> Result<()> {
        let target = match to {
            Some(Destination::Host(target)) => return self.connect_outside(target, wait),
            Some(Destination::Unix(target)) => Some(target),
            Some(Destination::Address(_)) => return Err(Errno::EINVAL),
            None => None,
        };
        match target {
            _ if self.is_datagram() => self.connect_datagram(target),
            Some(target) => self.connect_stream(target, creds),
            None => Err(Errno::EINVAL),
        }
    }

    fn local_name(&self) -> Result<Vec<u8>> {
        Ok(shown(&self.name))
    }

    fn peer_name(&self) -> Result<Vec<u8>> {
        match self.outside() {
            Some(socket) => socket.peer_name(),
            None => self.link().map(|link| shown(&link.peer_name)).ok_or(Errno::ENOTCONN),
        }
    }

    fn send(&self, buf: &mut IoBuf<'_>, message: &mut Outgoing, options: &Options) -> Result<usize> {
        if let Some(socket) = self.outside() {
            if message.rights.as_ref().is_some_and(|rights| !rights.is_empty()) {
                return Err(Errno::EOPNOTSUPP);
            }
            message.control.clear();
            return socket.send(buf, message, options);
        }
        let limit = options.send_buffer();
        let from = self.name.lock().clone();
        let rights = message.rights.take().unwrap_or_default();
        let link = self.link();
        let receiver = match (&message.to, &link) {
            (Some(Destination::Unix(target)), _) if self.is_datagram() => target.datagrams.as_ref(),
            (_, link) => link.as_ref().map(|link| &link.outbox),
        };
        let noted =
            message.claims || options.wants_creds() || receiver.is_some_and(|inbox| inbox.wants_creds());
        let creds = noted.then_some(message.creds);
        let mut envelope = Some(Envelope { from, creds, rights });
        let result = match (self.kind, link) {
            (SOCK_DGRAM, _) => self.send_datagram(buf, message.to.as_ref(), &mut envelope, limit),
            (_, None) => Err(Errno::ENOTCONN),
            // Of urgent bytes the last one is.
            (SOCK_STREAM, Some(link)) if message.flags.contains(MsgFlags::OOB) && buf.remaining() == 1 => {
                link.outbox.push_urgent(buf, &mut envelope, limit)
            }
            (SOCK_STREAM, Some(link)) => {
                let spare = usize::from(message.flags.contains(MsgFlags::OOB));
                link.outbox.push_stream(buf, &mut envelope, limit, spare)
            }
            (_, Some(link)) => link.outbox.push_message(buf, &mut envelope, limit, true),
        };
        // Not sent: kept for the next attempt.
        message.rights = envelope.map(|envelope| envelope.rights);
        result
    }

    fn receive(&self, buf: &mut IoBuf<'_>, how: ReceiveHow) -> Result<Received> {
        if let Some(socket) = self.outside() {
            return socket.receive(buf, ReceiveHow { control_room: 0, ..how });
        }
        if let Some(inbox) = &self.datagrams {
            return inbox.receive_message(buf, how);
        }
        match (self.kind, self.link()) {
            (SOCK_STREAM, Some(link)) if how.flags.contains(MsgFlags::OOB) => {
                link.inbox.receive_urgent(buf, how)
            }
            (SOCK_STREAM, Some(link)) => link.inbox.receive_stream(buf, how),
            (_, Some(link)) => link.inbox.receive_message(buf, how),
            (SOCK_STREAM, None) => Err(Errno::EINVAL),
            (_, None) => Err(Errno::ENOTCONN),
        }
    }

    fn shutdown(&self, how: u32) -> Result<()> {
        const SHUT_RD: u32 = 0;
        const SHUT_WR: u32 = 1;
        if how > 2 {
            return Err(Errno::EINVAL);
        }
        if let Some(socket) = self.outside() {
            return socket.shutdown(how);
        }
        let (receive, send) = (how != SHUT_WR, how != SHUT_RD);
        if let Some(inbox) = &self.datagrams {
            if receive {
                inbox.end();
            }
            if send {
                self.send_shut.store(true, Ordering::Relaxed);
            }
            return Ok(());
        }
        let link = match &mut *self.state.lock() {
            State::Connected(link) => Some(link.clone()),
            State::Listening(listener) => {
                listener.shut |= receive;
                None
            }
            _ => None,
        };
        if let Some(link) = link {
            if receive {
                link.inbox.end();
            }
            if send {
                link.outbox.end();
            }
        }
        self.wait.wake_all();
        Ok(())
    }

    fn poll(&self, table: Option<&mut PollTable>, options: &Options, wanted: PollEvents) -> PollEvents {
        if let Some(socket) = self.outside() {
            return socket.poll(table, options, wanted);
        }
        let link = self.link();
        if let Some(table) = table {
            table.add(&self.wait);
            if let (Some(link), true) = (&link, self.is_datagram()) {
                table.add(link.outbox.room_queue());
            }
            let queues: Vec<_> = self.waits_for.lock().iter().cloned().collect();
            queues.iter().for_each(|queue| table.add(queue));
        }
        let limit = options.send_buffer();
        if let Some(inbox) = &self.datagrams {
            return self.poll_datagram(inbox, link.as_ref(), limit);
        }
        if let Some(link) = link {
            return self.poll_link(&link, limit);
        }
        match &*self.state.lock() {
            State::Listening(listener) if !listener.pending.is_empty() || listener.shut => {
                PollEvents::READABLE
            }
            State::Listening(_) => PollEvents::empty(),
            _ => PollEvents::WRITABLE | PollEvents::WRBAND | PollEvents::HUP,
        }
    }

    fn send_file(&self, file: &Handle, offset: u64, len: usize, wait: bool) -> Option<Result<usize>> {
        self.outside()?.send_file(file, offset, len, wait)
    }

    fn keep_error(&self, error: Errno) {
        if let Some(socket) = self.outside() {
            socket.keep_error(error);
        }
    }

    fn take_error(&self) -> Option<Errno> {
        if let Some(socket) = self.outside() {
            return socket.take_error();
        }
        self.link().filter(|link| link.inbox.take_reset()).map(|_| Errno::ECONNRESET)
    }

    fn option(&self, level: u32, _name: u32, _room: usize) -> Result<Vec<u8>> {
        Err(if level == SOL_SOCKET { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP })
    }

    fn set_option(&self, level: u32, _name: u32, _value: &[u8]) -> Result<()> {
        Err(if level == SOL_SOCKET { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP })
    }

    fn ioctl(&self, cx: &CallerCtx<'_>, request: u32, arg: u64) -> Result<u64> {
        if let Some(socket) = self.outside() {
            return socket.ioctl(cx, request, arg);
        }
        if request != SIOCATMARK {
            return Err(Errno::ENOTTY);
        }
        let link = self.link().filter(|_| self.kind == SOCK_STREAM);
        let is_at_mark = link.is_some_and(|link| link.inbox.is_at_mark());
        cx.user().write(UserAddr::new(arg), &i32::from(is_at_mark)).map(|()| 0)
    }

    /// Whether bytes can be urgent.
    fn has_urgent_bytes(&self) -> bool {
        self.kind == SOCK_STREAM && self.outside().is_none()
    }

    fn is_listening(&self) -> bool {
        matches!(&*self.state.lock(), State::Listening(_))
    }

    fn peer_creds(&self) -> Option<PeerCreds> {
        match &*self.state.lock() {
            State::Connected(link) => link.peer_creds.clone(),
            State::Listening(listener) => Some(listener.creds.clone()),
            _ => None,
        }
    }

    fn queued(&self) -> Result<(usize, usize)> {
        if let Some(socket) = self.outside() {
            return socket.queued();
        }
        let link = self.link();
        let sent = link.as_ref().map_or(0, |link| link.outbox.bytes());
        let received = match (&self.datagrams, &link) {
            (Some(inbox), _) => inbox.first_len(),
            (None, Some(link)) => link.inbox.bytes(),
            (None, None) if self.is_listening() => return Err(Errno::EINVAL),
            (None, None) => 0,
        };
        Ok((received, sent))
    }

    fn closed(&self) {
        let name = self.name.lock().clone();
        unix_names::release(&name, self.kind, &self.me);
        let node = self.node.lock().take();
        drop(node);
        let state = core::mem::replace(&mut *self.state.lock(), State::Closed);
        if let Some(inbox) = &self.datagrams {
            inbox.close();
        }
        match state {
            State::Connected(link) if !self.is_datagram() => {
                let unread = link.inbox.close();
                if unread || !self.taken.load(Ordering::Acquire) {
                    link.outbox.set_reset();
                }
                link.outbox.end();
            }
            State::Listening(listener) => {
                for pending in listener.pending {
                    pending.closed();
                }
                self.backlog_room.wake_all();
            }
            _ => {}
        }
        self.wait.wake_all();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests;
