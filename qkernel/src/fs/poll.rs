//! Readiness: the events of `poll(2)`, and registration with what changes them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use bitflags::bitflags;

use crate::mm::account;
use crate::task::wait::{WaitQueue, Waker};

bitflags! {
    /// `POLL*` (and `EPOLL*`, which has the same low bits).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PollEvents: u32 {
        const IN = 0x1;
        const PRI = 0x2;
        const OUT = 0x4;
        const ERR = 0x8;
        const HUP = 0x10;
        const NVAL = 0x20;
        const RDNORM = 0x40;
        const RDBAND = 0x80;
        const WRNORM = 0x100;
        const WRBAND = 0x200;
        const MSG = 0x400;
        const RDHUP = 0x2000;
    }
}

impl PollEvents {
    /// Readable, in both spellings.
    pub const READABLE: Self = Self::IN.union(Self::RDNORM);
    /// Writable, in both spellings.
    pub const WRITABLE: Self = Self::OUT.union(Self::WRNORM);
}

/// Registers one waiter with all the queues that matter to what it polls; dropping it unregisters.
pub struct PollTable {
    waker: Waker,
    events: PollEvents,
    queues: Vec<(Arc<WaitQueue>, usize)>,
    /// There was no memory for all queues.
    is_short: bool,
}

/// What a queue takes for a waiter.
const ENTRY_BYTES: usize = 512;

impl PollTable {
    /// For a waiter that wants to hear of `events` (errors and hang-ups always count).
    pub fn new(waker: Waker, events: PollEvents) -> Self {
        Self {
            waker,
            events: events | PollEvents::ERR | PollEvents::HUP,
            queues: Vec::new(),
            is_short: false,
        }
    }

    /// Called by `FileOps::poll`: the queue is told when readiness may have changed.
    pub fn add(&mut self, queue: &Arc<WaitQueue>) {
        if account::reserve(&mut self.queues, 1).and_then(|()| account::check(ENTRY_BYTES)).is_err() {
            self.is_short = true;
            return;
        }
        let id = queue.register(self.waker.clone(), self.events);
        self.queues.push((queue.clone(), id));
    }

    /// Whether some queue is not among those that tell: the caller must not wait.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Changes the events that matter to the queues added from now on.
    pub fn set_events(&mut self, events: PollEvents) {
        self.events = events | PollEvents::ERR | PollEvents::HUP;
    }
}

impl Drop for PollTable {
    fn drop(&mut self) {
        for (queue, id) in self.queues.drain(..) {
            queue.unregister(id);
        }
    }
}
