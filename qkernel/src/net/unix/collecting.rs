//! A socket's answers to the collector, which frees sockets that only messages hold ([`crate::net::passing`]).

use alloc::sync::Arc;

use super::{State, UnixSocket};
use crate::net::inbox::Inbox;
use crate::net::passing::{self, Carrier, Queue, Rights};
use machine::errno::{Errno, Result};

impl Queue for Inbox {
    fn next_message(&self) -> u64 {
        Self::next_message(self)
    }

    fn each_message(&self, from: u64, each: &mut dyn FnMut(&mut Rights)) -> u64 {
        Self::each_message(self, from, each)
    }
}

impl Carrier for UnixSocket {
    fn queue(&self) -> Option<Arc<dyn Queue>> {
        self.inbox().map(|inbox| inbox as _)
    }

    fn waiting_queue(&self, from: u64) -> Option<(u64, Option<Arc<dyn Queue>>)> {
        let (next, waiting) = self.waiting(from)?;
        Some((next, waiting.queue()))
    }

    fn next_waiting(&self) -> u64 {
        match &*self.state.lock() {
            State::Listening(listener) => listener.accepted + listener.pending.len() as u64,
            _ => 0,
        }
    }
}

impl UnixSocket {
    /// Where its messages lie; `None`: it has none yet, or any more.
    pub fn inbox(&self) -> Option<Arc<Inbox>> {
        self.datagrams.clone().or_else(|| self.link().map(|link| link.inbox))
    }

    /// The connection with this number, or else the first one after it, that waits for `accept(2)`, with the number to go on from.
    pub fn waiting(&self, from: u64) -> Option<(u64, Arc<Self>)> {
        let state = self.state.lock();
        let State::Listening(listener) = &*state else { return None };
        let at = usize::try_from(from.saturating_sub(listener.accepted)).ok()?;
        let waiting = listener.pending.get(at)?.clone();
        Some((listener.accepted + at as u64 + 1, waiting))
    }

    /// The collector looks for the files of connections that wait in their listener: before one is accepted it is told of them.
    /// `None`: it does not look, or no connection waits.
    fn tell_of_first_waiting(&self) -> Option<Arc<Self>> {
        if !passing::is_looked_for() {
            return None;
        }
        let (_, first) = self.waiting(0)?;
        let inbox = first.inbox()?;
        let (mut at, end) = (0, inbox.next_message());
        while at < end {
            at = inbox.each_message(at, &mut |rights| passing::touch(rights.files()));
            passing::let_others_go_on();
        }
        Some(first)
    }

    /// The first connection that waits, for `accept(2)`.
    pub(super) fn take_first_waiting(&self) -> Result<Arc<Self>> {
        loop {
            let told = self.tell_of_first_waiting();
            let mut state = self.state.lock();
            let State::Listening(listener) = &mut *state else { return Err(Errno::EINVAL) };
            let Some(first) = listener.pending.front() else {
                return Err(if listener.shut { Errno::EINVAL } else { Errno::EAGAIN });
            };
            // Somebody else may have accepted the one that was told of.
            if told.as_ref().is_none_or(|told| Arc::ptr_eq(told, first)) {
                listener.accepted += 1;
                return listener.pending.pop_front().ok_or(Errno::EAGAIN);
            }
        }
    }
}
