//! Readiness of host streams: one armed registration per stream, events handed to its wait queue.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};

use super::poll::PollEvents;
use crate::sync::SpinLock;
use crate::task::wait::WaitQueue;

static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);
static QUEUES: SpinLock<BTreeMap<u64, Weak<WaitQueue>>> = SpinLock::new(BTreeMap::new());

/// Makes a token for `POLL_ARM` whose events wake `queue`.
pub fn register(queue: &Arc<WaitQueue>) -> u64 {
    let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
    QUEUES.lock().insert(token, Arc::downgrade(queue));
    token
}

/// Forgets a token.
pub fn unregister(token: u64) {
    QUEUES.lock().remove(&token);
}

/// The host says that a registration's events hold.
pub fn ready(token: u64, events: i64) {
    let queue = QUEUES.lock().get(&token).and_then(Weak::upgrade);
    if let Some(queue) = queue {
        queue.wake(PollEvents::from_bits_truncate(events as u32) | PollEvents::HUP | PollEvents::ERR);
    }
}
