//! Registration of one waiter with all wait queues that change the readiness of a file.

use alloc::sync::Arc;
use alloc::vec::Vec;

use machine::mm::account;
use machine::sched::wait::{PollEvents, WaitQueue, Waker};

/// Registers one waiter with all the queues that concern the files it polls; dropping it unregisters.
pub struct PollTable {
    waker: Waker,
    events: PollEvents,
    queues: Vec<(Arc<WaitQueue>, usize)>,
    /// There was no memory for all queues.
    is_short: bool,
}

/// Bytes of kernel memory one waiter of a queue takes.
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

    /// Whether some queue could not be registered: the caller must not wait.
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
