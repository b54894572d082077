//! Readiness of host streams: one armed registration per stream, events handed to its wait queue or handler.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};

use super::poll::PollEvents;
use crate::sync::SpinLock;
use crate::task::wait::{WaitQueue, Wake};

static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);
static TARGETS: SpinLock<BTreeMap<u64, Target>> = SpinLock::new(BTreeMap::new());

/// Who is told.
enum Target {
    Queue(Weak<WaitQueue>),
    Handler(Weak<dyn Wake>),
}

/// Makes a token for `POLL_ARM` whose events wake `queue`.
pub fn register(queue: &Arc<WaitQueue>) -> u64 {
    add(Target::Queue(Arc::downgrade(queue)))
}

/// Makes a token for `POLL_ARM` whose events are handed to `handler`, with no lock held. It must not sleep.
pub fn register_handler(handler: &Arc<dyn Wake>) -> u64 {
    add(Target::Handler(Arc::downgrade(handler)))
}

fn add(target: Target) -> u64 {
    let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
    TARGETS.lock().insert(token, target);
    token
}

/// Forgets a token.
pub fn unregister(token: u64) {
    TARGETS.lock().remove(&token);
}

/// The host says that a registration's events hold.
pub fn ready(token: u64, events: i64) {
    let events = PollEvents::from_bits_truncate(events as u32) | PollEvents::HUP | PollEvents::ERR;
    let (queue, handler) = match TARGETS.lock().get(&token) {
        Some(Target::Queue(queue)) => (queue.upgrade(), None),
        Some(Target::Handler(handler)) => (None, handler.upgrade()),
        None => (None, None),
    };
    if let Some(queue) = queue {
        queue.wake(events);
    }
    if let Some(handler) = handler {
        handler.wake(events);
    }
}
