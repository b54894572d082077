//! Readiness of host files.
//!
//! Streams: one armed registration each, events handed to a wait queue or handler. Sockets: the host tells of every
//! change once ([`Readiness`]).

use abi::word::low32;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use crate::fs::readiness::Readiness;
use crate::fs::sigio;
use machine::events;
use machine::sched::wait::PollEvents;
use machine::sched::wait::{WaitQueue, Wake};
use machine::sync::{Rank, SpinLock};

static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);
static TARGETS: SpinLock<BTreeMap<u64, Target>> = SpinLock::new(Rank::Leaf, BTreeMap::new());
/// Set once the sandbox has had a socket.
static EDGES: AtomicBool = AtomicBool::new(false);

/// The receiver of a registration's events.
enum Target {
    Queue(Weak<WaitQueue>),
    Handler(Weak<dyn Wake>),
    Edges(Weak<Readiness>),
}

/// Makes a token for `POLL_ARM` whose events wake `queue`.
pub fn register(queue: &Arc<WaitQueue>) -> u64 {
    add(Target::Queue(Arc::downgrade(queue)))
}

/// Makes a token for `POLL_ARM` whose events are handed to `handler`, with no lock held. It must not sleep.
pub fn register_handler(handler: &Arc<dyn Wake>) -> u64 {
    add(Target::Handler(Arc::downgrade(handler)))
}

/// Makes a token for a socket.
pub(super) fn register_edges(readiness: Weak<Readiness>) -> u64 {
    EDGES.store(true, Ordering::Relaxed);
    add(Target::Edges(readiness))
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

/// Takes the host's pending news of sockets. It is called before a program is told "nothing is ready". A task that goes
/// to sleep need not call it: an idle CPU looks by itself.
pub fn look() {
    if EDGES.load(Ordering::Relaxed) {
        events::take();
    }
}

/// Another VMM has taken over, which knows of no question the former one was asked. All are told that something may have happened: they
/// look, and ask again.
pub fn revive() {
    let mut next = 0;
    loop {
        // One at a time: what is told may add and remove others.
        let (token, queue, handler, edges) = match TARGETS.lock().range(next..).next() {
            Some((token, Target::Queue(queue))) => (*token, queue.upgrade(), None, None),
            Some((token, Target::Handler(handler))) => (*token, None, handler.upgrade(), None),
            Some((token, Target::Edges(edges))) => (*token, None, None, edges.upgrade()),
            None => return,
        };
        queue.iter().for_each(|queue| queue.wake(PollEvents::all()));
        handler.iter().for_each(|handler| handler.wake(PollEvents::all()));
        edges.iter().for_each(|edges| edges.may_hold_all());
        next = token + 1;
    }
}

/// The kind of registration that was told that its events hold.
pub struct Told {
    pub is_socket: bool,
    /// The event is of use to any later reader, whether or not a task waits for it now.
    pub for_any: bool,
    /// Somebody has come. Otherwise that shows by what a program receives ([`Readiness::count`]).
    pub counts: bool,
}

/// The host says, in a round, that a registration's events hold.
pub fn ready(token: u64, events: i64, round: u64) -> Told {
    let events = PollEvents::from_bits_truncate(low32(events.cast_unsigned()));
    let (queue, handler, edges) = match TARGETS.lock().get(&token) {
        Some(Target::Queue(queue)) => (queue.upgrade(), None, None),
        Some(Target::Handler(handler)) => (None, handler.upgrade(), None),
        Some(Target::Edges(edges)) => (None, None, edges.upgrade()),
        None => (None, None, None),
    };
    let always = PollEvents::HUP | PollEvents::ERR;
    if let Some(queue) = queue {
        queue.wake(events | always);
    }
    if let Some(handler) = handler {
        handler.wake(events | always);
    }
    if let Some(edges) = &edges {
        edges.changed(events, round);
    }
    sigio::delivery::deliver_events();
    let Some(edges) = edges else { return Told { is_socket: false, for_any: false, counts: true } };
    Told { is_socket: true, for_any: events.intersects(PollEvents::IN | always), counts: edges.counts() }
}
