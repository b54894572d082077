//! Datagrams between Unix sockets: where each goes, and who waits for room there.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use super::{Link, State, UnixSocket, WAITS_MAX};
use crate::net::inbox::{Envelope, Inbox};
use crate::net::socket::Destination;
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sched::wait::{PollEvents, WaitQueue};

impl UnixSocket {
    /// Sends one datagram to `to`, or to the connected socket.
    pub(super) fn send_datagram(
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
        let result = link.outbox.push_message(buf, envelope, limit, self.is_mutual(&link));
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
                self.had_no_room(link.outbox.room_queue());
                Err(Errno::EAGAIN)
            }
            result => result,
        }
    }

    /// Whoever polls this socket waits for room there as well.
    pub(super) fn had_no_room(&self, queue: &Arc<WaitQueue>) {
        let former = {
            let mut queues = self.waits_for.lock();
            if queues.iter().any(|other| Arc::ptr_eq(other, queue)) {
                return;
            }
            queues.push_back(queue.clone());
            if queues.len() > WAITS_MAX { queues.pop_front() } else { None }
        };
        drop(former);
    }

    /// Whether messages by a link of datagrams wait in any number: it leads to a socket that sends only here.
    fn is_mutual(&self, link: &Link) -> bool {
        let leads_here =
            |inbox: &Arc<Inbox>| self.datagrams.as_ref().is_some_and(|own| Arc::ptr_eq(own, inbox));
        let peer = link.peer.as_ref().and_then(Weak::upgrade);
        leads_here(&link.outbox)
            || peer.and_then(|peer| peer.link()).is_some_and(|theirs| leads_here(&theirs.outbox))
    }

    pub(super) fn poll_datagram(&self, inbox: &Inbox, link: Option<&Link>, limit: usize) -> PollEvents {
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
        let has_room =
            |link: &Link| link.outbox.has_room(limit) && (self.is_mutual(link) || !link.outbox.is_full());
        if link.is_none_or(|link| link.outbox.is_ended() || has_room(link)) {
            events |= PollEvents::WRITABLE | PollEvents::WRBAND;
        }
        events
    }
}
