//! Unix sockets: streams, datagrams and packet streams between processes of the sandbox.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::fs::caller::CallerCtx;
use crate::fs::path::Path;
use crate::fs::poll::PollTable;
use crate::net::ancillary::SenderCreds;
use crate::net::inbox::{Envelope, Inbox, ReceiveHow, Received};
use crate::net::inet::InetSocket;
use crate::net::options::Options;
use crate::net::unix_host::HostTarget;
use crate::net::unix_names;
use crate::net::unix_names::Name;
use crate::net::{AF_UNIX, Destination, Outgoing, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_STREAM, Socket};
use machine::errno::{Errno, Result};
use machine::host::Handle;
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};

/// Most connections that wait for `accept(2)` (`net.core.somaxconn`).
const BACKLOG_MAX: usize = 4096;

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
    peer_creds: Option<SenderCreds>,
}

struct Listener {
    backlog: usize,
    pending: VecDeque<Arc<UnixSocket>>,
    creds: SenderCreds,
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
    /// The queue that had no room at the last attempt: a listener's backlog, or another socket's datagrams.
    waits_for: SpinLock<Option<Arc<WaitQueue>>>,
    /// Where datagrams arrive.
    datagrams: Option<Arc<Inbox>>,
    /// `SHUT_WR` of a datagram socket.
    send_shut: AtomicBool,
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
        let datagrams = (kind == SOCK_DGRAM).then(|| Inbox::new(wait.clone(), Arc::new(WaitQueue::new())));
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            kind,
            name,
            node: SpinLock::new(Rank::Leaf, None),
            state: SpinLock::new(Rank::Leaf, State::Idle),
            wait,
            backlog_room: Arc::new(WaitQueue::new()),
            waits_for: SpinLock::new(Rank::Leaf, None),
            datagrams,
            send_shut: AtomicBool::new(false),
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

    /// Connects to a socket of the host.
    fn connect_outside(&self, target: &HostTarget, wait: bool) -> Result<()> {
        self.begin_to_connect()?;
        let result = target.connect(self.kind, &self.wait, wait);
        let (new, result) = match result {
            Ok(socket) => (State::Outside(socket), Ok(())),
            Err(error) => (State::Idle, Err(error)),
        };
        let old = {
            let mut state = self.state.lock();
            // It may have been closed meanwhile.
            if matches!(&*state, State::Connecting) { core::mem::replace(&mut *state, new) } else { new }
        };
        drop(old);
        self.wait.wake_all();
        result
    }

    fn is_datagram(&self) -> bool {
        self.kind == SOCK_DGRAM
    }

    fn me(&self) -> Result<Arc<Self>> {
        self.me.upgrade().ok_or(Errno::EBADF)
    }

    /// From now on nobody else may connect it.
    fn begin_to_connect(&self) -> Result<()> {
        let mut state = self.state.lock();
        match &*state {
            State::Idle => *state = State::Connecting,
            State::Connecting => return Err(Errno::EALREADY),
            State::Connected(_) | State::Outside(_) => return Err(Errno::EISCONN),
            State::Listening(_) | State::Closed => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    /// Connects to a listener: makes the other end and puts it into the backlog.
    fn connect_stream(&self, target: &Arc<UnixSocket>, creds: SenderCreds) -> Result<()> {
        self.begin_to_connect()?;
        // No two sockets' states are locked at once.
        let result = self.enter_backlog(target, creds);
        *self.waits_for.lock() =
            (result.as_ref().err() == Some(&Errno::EAGAIN)).then(|| target.backlog_room.clone());
        *self.state.lock() = match &result {
            Ok(link) => State::Connected(link.clone()),
            Err(_) => State::Idle,
        };
        result.map(drop)
    }

    fn enter_backlog(&self, target: &Arc<UnixSocket>, creds: SenderCreds) -> Result<Link> {
        if target.kind != self.kind {
            return Err(Errno::EPROTOTYPE);
        }
        let other = Self::make(self.kind, target.name.clone(), false);
        let to_me = Inbox::new(self.wait.clone(), other.wait.clone());
        let to_other = Inbox::new(other.wait.clone(), self.wait.clone());
        let mut state = target.state.lock();
        let State::Listening(listener) = &mut *state else { return Err(Errno::ECONNREFUSED) };
        if listener.shut {
            return Err(Errno::ECONNREFUSED);
        }
        crate::fs::anon::check_room()?;
        if listener.pending.len() > listener.backlog {
            return Err(Errno::EAGAIN);
        }
        // Nobody else knows of it yet.
        *other.state.lock_beside() = State::Connected(Link {
            inbox: to_other.clone(),
            outbox: to_me.clone(),
            peer_name: self.name.clone(),
            peer_creds: Some(creds),
        });
        let link = Link {
            inbox: to_me,
            outbox: to_other,
            peer_name: target.name.clone(),
            peer_creds: Some(listener.creds),
        };
        listener.pending.push_back(other);
        drop(state);
        target.wait.wake(PollEvents::READABLE);
        Ok(link)
    }

    fn connect_datagram(&self, target: Option<&Arc<UnixSocket>>) -> Result<()> {
        let new = match target {
            None => State::Idle,
            Some(target) => State::Connected(self.link_to(target)?),
        };
        let old = core::mem::replace(&mut *self.state.lock(), new);
        drop(old);
        self.wait.wake(PollEvents::WRITABLE);
        Ok(())
    }

    /// A datagram connection to `target`, if it takes messages from us.
    fn link_to(&self, target: &Arc<UnixSocket>) -> Result<Link> {
        let (Some(inbox), Some(outbox)) = (&self.datagrams, &target.datagrams) else {
            return Err(Errno::EPROTOTYPE);
        };
        if target.link().is_some_and(|theirs| !Arc::ptr_eq(&theirs.outbox, inbox)) {
            return Err(Errno::EPERM);
        }
        Ok(Link {
            inbox: inbox.clone(),
            outbox: outbox.clone(),
            peer_name: target.name.clone(),
            peer_creds: None,
        })
    }

    fn send_datagram(
        &self,
        buf: &mut IoBuf<'_>,
        to: Option<&Destination>,
        envelope: &mut Option<Envelope>,
        limit: usize,
    ) -> Result<usize> {
        if self.send_shut.load(Ordering::Relaxed) {
            return Err(Errno::EPIPE);
        }
        let link = match to {
            Some(Destination::Unix(target)) => self.link_to(target)?,
            Some(Destination::Address(_) | Destination::Host(_)) => return Err(Errno::EINVAL),
            None => self.link().ok_or(Errno::ENOTCONN)?,
        };
        let result = link.outbox.push_message(buf, envelope, limit);
        match result {
            Err(Errno::EPIPE) if link.outbox.is_closed() => {
                let mut state = self.state.lock();
                if matches!(&*state, State::Connected(peer) if Arc::ptr_eq(&peer.outbox, &link.outbox)) {
                    *state = State::Idle;
                }
                Err(Errno::ECONNREFUSED)
            }
            // Waiting is done by polling this socket, which knows where its peer has room.
            Err(Errno::EAGAIN) => {
                *self.waits_for.lock() = Some(link.outbox.room_queue().clone());
                Err(Errno::EAGAIN)
            }
            result => result,
        }
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
        if link.outbox.is_ended() || link.outbox.has_room(limit) {
            events |= PollEvents::WRITABLE | PollEvents::WRBAND;
        }
        events
    }

    fn poll_datagram(&self, inbox: &Inbox, link: Option<&Link>, limit: usize) -> PollEvents {
        let mut events = PollEvents::empty();
        if inbox.has_message() {
            events |= PollEvents::READABLE;
        }
        if inbox.is_ended() {
            events |= PollEvents::READABLE | PollEvents::RDHUP;
            if self.send_shut.load(Ordering::Relaxed) {
                events |= PollEvents::HUP;
            }
        }
        if link.is_none_or(|link| link.outbox.is_ended() || link.outbox.has_room(limit)) {
            events |= PollEvents::WRITABLE | PollEvents::WRBAND;
        }
        events
    }
}

/// Two connected sockets.
pub fn pair(kind: u32, protocol: u32, creds: SenderCreds) -> Result<[Arc<UnixSocket>; 2]> {
    let (a, b) = (UnixSocket::new(kind, protocol)?, UnixSocket::new(kind, protocol)?);
    let inbox = |of: &Arc<UnixSocket>, other: &Arc<UnixSocket>| match &of.datagrams {
        Some(inbox) => inbox.clone(),
        None => Inbox::new(of.wait.clone(), other.wait.clone()),
    };
    let (to_a, to_b) = (inbox(&a, &b), inbox(&b, &a));
    let link = |inbox: &Arc<Inbox>, outbox: &Arc<Inbox>, peer: &Arc<UnixSocket>| {
        let (inbox, outbox) = (inbox.clone(), outbox.clone());
        State::Connected(Link { inbox, outbox, peer_name: peer.name.clone(), peer_creds: Some(creds) })
    };
    *a.state.lock() = link(&to_a, &to_b, &b);
    *b.state.lock() = link(&to_b, &to_a, &a);
    Ok([a, b])
}

fn shown(name: &NameCell) -> Vec<u8> {
    let name = name.lock().clone();
    if name.is_empty() { unix_names::to_sockaddr(&Name::Empty) } else { name.to_vec() }
}

impl Socket for UnixSocket {
    fn family(&self) -> u16 {
        AF_UNIX
    }

    fn kind(&self) -> u32 {
        self.kind
    }

    fn held_bytes(&self) -> u64 {
        let link = self.link().map(|link| link.inbox);
        let inboxes = self.datagrams.iter().chain(&link);
        inboxes.map(|inbox| inbox.held_bytes() as u64).sum()
    }

    fn bind(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<()> {
        let name = unix_names::parse(addr)?;
        if !self.name.lock().is_empty() {
            return if name == Name::Empty { Ok(()) } else { Err(Errno::EINVAL) };
        }
        let (addr, node) = unix_names::bind(cx, &name, &self.me()?)?;
        *self.node.lock() = node;
        *self.name.lock() = addr.into();
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
        let creds = SenderCreds::of(cx.caller);
        let mut state = self.state.lock();
        match &mut *state {
            State::Idle => {
                *state = State::Listening(Listener { backlog, pending: VecDeque::new(), creds, shut: false });
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
        let mut state = self.state.lock();
        let State::Listening(listener) = &mut *state else { return Err(Errno::EINVAL) };
        let shut = listener.shut;
        let accepted = listener.pending.pop_front();
        drop(state);
        let Some(accepted) = accepted else { return Err(if shut { Errno::EINVAL } else { Errno::EAGAIN }) };
        accepted.taken.store(true, Ordering::Release);
        self.backlog_room.wake(PollEvents::WRITABLE);
        Ok(accepted)
    }

    fn resolve(&self, cx: &CallerCtx<'_>, addr: &[u8]) -> Result<Destination> {
        match unix_names::find(cx, &unix_names::parse(addr)?)? {
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

    fn connect(&self, to: Option<&Destination>, creds: SenderCreds, wait: bool) -> Result<()> {
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
        let mut envelope = Some(Envelope { from, creds: message.creds, rights });
        let result = match (self.kind, self.link()) {
            (SOCK_DGRAM, _) => self.send_datagram(buf, message.to.as_ref(), &mut envelope, limit),
            (_, None) => Err(Errno::ENOTCONN),
            (SOCK_STREAM, Some(link)) => link.outbox.push_stream(buf, &mut envelope, limit),
            (_, Some(link)) => link.outbox.push_message(buf, &mut envelope, limit),
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
            if let Some(queue) = self.waits_for.lock().clone() {
                table.add(&queue);
            }
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
            _ => PollEvents::WRITABLE | PollEvents::HUP,
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

    fn is_listening(&self) -> bool {
        matches!(&*self.state.lock(), State::Listening(_))
    }

    fn peer_creds(&self) -> Option<SenderCreds> {
        match &*self.state.lock() {
            State::Connected(link) => link.peer_creds,
            State::Listening(listener) => Some(listener.creds),
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
            (None, Some(link)) if self.kind == SOCK_STREAM => link.inbox.bytes(),
            (None, Some(link)) => link.inbox.first_len(),
            (None, None) => return Err(Errno::EINVAL),
        };
        Ok((received, sent))
    }

    fn closed(&self) {
        let name = self.name.lock().clone();
        unix_names::release(&name, &self.me);
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
