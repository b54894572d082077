//! How Unix sockets connect: to listeners, to each other, and to sockets of the host.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::{Link, State, UnixSocket};
use crate::net::ancillary::PeerCreds;
use crate::net::families::SOCK_DGRAM;
use crate::net::inbox::Inbox;
use crate::net::unix_host::HostTarget;
use machine::errno::{Errno, Result};
use machine::sched::wait::PollEvents;

impl UnixSocket {
    /// Connects to a socket of the host.
    pub(super) fn connect_outside(&self, target: &HostTarget, wait: bool) -> Result<()> {
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
    pub(super) fn connect_stream(&self, target: &Arc<UnixSocket>, creds: PeerCreds) -> Result<()> {
        self.begin_to_connect()?;
        // No two sockets' states are locked at once.
        let result = self.enter_backlog(target, creds);
        if result.as_ref().err() == Some(&Errno::EAGAIN) {
            self.had_no_room(&target.backlog_room);
        } else {
            let former = core::mem::take(&mut *self.waits_for.lock());
            drop(former);
        }
        *self.state.lock() = match &result {
            Ok(link) => State::Connected(link.clone()),
            Err(_) => State::Idle,
        };
        result.map(drop)
    }

    fn enter_backlog(&self, target: &Arc<UnixSocket>, creds: PeerCreds) -> Result<Link> {
        if target.kind != self.kind {
            return Err(Errno::EPROTOTYPE);
        }
        let other = Self::make(self.kind, target.name.clone(), false);
        let to_me = Inbox::new(self.wait.clone(), other.wait.clone());
        let to_other = Inbox::new(other.wait.clone(), self.wait.clone());
        to_me.set_wants_creds(self.wants_creds.load(Ordering::Relaxed));
        to_other.set_wants_creds(true);
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
            peer: None,
        });
        let link = Link {
            inbox: to_me,
            outbox: to_other,
            peer_name: target.name.clone(),
            peer_creds: Some(listener.creds.clone()),
            peer: None,
        };
        listener.pending.push_back(other);
        drop(state);
        target.wait.wake(PollEvents::READABLE);
        Ok(link)
    }

    pub(super) fn connect_datagram(&self, target: Option<&Arc<UnixSocket>>) -> Result<()> {
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
    pub(super) fn link_to(&self, target: &Arc<UnixSocket>) -> Result<Link> {
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
            peer: Some(target.me.clone()),
        })
    }
}

/// Two connected sockets.
pub fn pair(kind: u32, protocol: u32, creds: &PeerCreds) -> Result<[Arc<UnixSocket>; 2]> {
    let (a, b) = (UnixSocket::new(kind, protocol)?, UnixSocket::new(kind, protocol)?);
    let inbox = |of: &Arc<UnixSocket>, other: &Arc<UnixSocket>| match &of.datagrams {
        Some(inbox) => inbox.clone(),
        None => Inbox::new(of.wait.clone(), other.wait.clone()),
    };
    let (to_a, to_b) = (inbox(&a, &b), inbox(&b, &a));
    let link = |inbox: &Arc<Inbox>, outbox: &Arc<Inbox>, peer: &Arc<UnixSocket>| {
        let (inbox, outbox) = (inbox.clone(), outbox.clone());
        State::Connected(Link {
            inbox,
            outbox,
            peer_name: peer.name.clone(),
            peer_creds: Some(creds.clone()),
            peer: (kind == SOCK_DGRAM).then(|| peer.me.clone()),
        })
    };
    *a.state.lock() = link(&to_a, &to_b, &b);
    *b.state.lock() = link(&to_b, &to_a, &a);
    Ok([a, b])
}
