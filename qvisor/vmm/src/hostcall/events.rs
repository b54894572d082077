//! Host events on their way to the kernel.

use crate::lock::{Mutex, Rank};
use std::collections::VecDeque;
use std::sync::OnceLock;

use abi::hostcall::{
    EVENT_EXEC_WINSIZE, EVENT_LOOK, EVENT_PAUSE, EVENT_READY, EVENT_WAKE, EVENT_WINSIZE, Event,
};

type Kick = Box<dyn Fn() + Send + Sync>;

/// Events of the host that the kernel has not been told yet. Any thread may post.
///
/// The queue has no bound of its own: readiness and window sizes are merged, completions are as many as the kernel
/// submitted operations, signals come from the container's owner.
pub struct EventQueue {
    queue: Mutex<VecDeque<Event>>,
    /// Makes the kernel look; set once the vCPUs exist.
    kick: OnceLock<Kick>,
}

impl Default for EventQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl EventQueue {
    /// An empty queue. Events posted before the sandbox exists wait for it.
    #[must_use]
    pub fn new() -> Self {
        Self { queue: Mutex::new(Rank::Events, VecDeque::new()), kick: OnceLock::new() }
    }

    /// Sets the function that makes the kernel look at the queue; later calls change nothing.
    pub(crate) fn bind(&self, kick: Kick) {
        let _ = self.kick.set(kick);
        if !self.is_empty() {
            self.wake();
        }
    }

    /// Adds an event and makes the kernel look.
    pub fn post(&self, event: Event) {
        {
            let mut queue = self.queue.lock();
            let twin = |old: &Event| old.kind == event.kind && old.token == event.token;
            match event.kind {
                EVENT_LOOK => {}
                EVENT_READY => match queue.iter_mut().find(|old| twin(old)) {
                    Some(old) => old.value |= event.value,
                    None => queue.push_back(event),
                },
                EVENT_WINSIZE | EVENT_EXEC_WINSIZE => {
                    queue.retain(|old| !twin(old));
                    queue.push_back(event);
                }
                // The last request wins.
                EVENT_PAUSE..=EVENT_WAKE => {
                    queue.retain(|old| !(EVENT_PAUSE..=EVENT_WAKE).contains(&old.kind));
                    queue.push_back(event);
                }
                _ => queue.push_back(event),
            }
        }
        self.wake();
    }

    fn wake(&self) {
        if let Some(kick) = self.kick.get() {
            kick();
        }
    }

    /// Takes up to `most` events, oldest first.
    pub fn take(&self, most: usize) -> Vec<Event> {
        let mut queue = self.queue.lock();
        let count = most.min(queue.len());
        queue.drain(..count).collect()
    }

    /// Whether no event waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use abi::hostcall::EVENT_DONE;

    use super::*;

    #[test]
    fn readiness_is_merged_and_completions_are_not() {
        let queue = EventQueue::new();
        let event = |kind, token, value| Event { kind, flags: 0, token, value };
        queue.post(event(EVENT_READY, 1, 1));
        queue.post(event(EVENT_DONE, 1, 0));
        queue.post(event(EVENT_READY, 1, 4));
        queue.post(event(EVENT_DONE, 1, 0));
        queue.post(event(EVENT_READY, 2, 4));
        let first = queue.take(2);
        assert_eq!(first, [event(EVENT_READY, 1, 5), event(EVENT_DONE, 1, 0)]);
        assert_eq!(queue.take(9).len(), 2);
        assert!(queue.is_empty());
    }

    #[test]
    fn of_the_sizes_of_a_terminal_the_last_one_counts() {
        let queue = EventQueue::new();
        let event = |kind, token, value| Event { kind, flags: 0, token, value };
        for kind in [EVENT_WINSIZE, EVENT_EXEC_WINSIZE] {
            for (token, value) in [(1, 10), (2, 20), (1, 11)] {
                queue.post(event(kind, token, value));
            }
            assert_eq!(queue.take(9), [event(kind, 2, 20), event(kind, 1, 11)]);
        }
    }
}
