//! Readiness of host files.
//!
//! Streams: one armed registration each, events handed to a wait queue or handler. Sockets: the host tells of every
//! change once ([`Readiness`]).

pub mod readiness;

use abi::word::low32;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::fs::sigio;
use machine::events;
use machine::sched::wait::PollEvents;
use machine::sched::wait::{WaitQueue, Wake};
use machine::sync::{Rank, SpinLock};
pub use readiness::Readiness;

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

/// A receiver that is still there.
enum Receiver {
    Queue(Arc<WaitQueue>),
    Handler(Arc<dyn Wake>),
    Edges(Arc<Readiness>),
}

impl Target {
    fn receiver(&self) -> Option<Receiver> {
        match self {
            Self::Queue(queue) => queue.upgrade().map(Receiver::Queue),
            Self::Handler(handler) => handler.upgrade().map(Receiver::Handler),
            Self::Edges(edges) => edges.upgrade().map(Receiver::Edges),
        }
    }
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
        let found = TARGETS.lock().range(next..).next().map(|(token, target)| (*token, target.receiver()));
        let Some((token, receiver)) = found else { return };
        match receiver {
            Some(Receiver::Queue(queue)) => queue.wake(PollEvents::all()),
            Some(Receiver::Handler(handler)) => handler.wake(PollEvents::all()),
            Some(Receiver::Edges(edges)) => edges.may_hold_all(),
            None => {}
        }
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
    let receiver = TARGETS.lock().get(&token).and_then(Target::receiver);
    let always = PollEvents::HUP | PollEvents::ERR;
    if matches!(&receiver, Some(Receiver::Edges(edges)) if edges.misses()) {
        return Told { is_socket: true, for_any: false, counts: false };
    }
    match &receiver {
        Some(Receiver::Queue(queue)) => queue.wake(events | always),
        Some(Receiver::Handler(handler)) => handler.wake(events | always),
        Some(Receiver::Edges(edges)) => edges.changed(events, round),
        None => {}
    }
    sigio::delivery::deliver_events();
    let Some(Receiver::Edges(edges)) = receiver else {
        return Told { is_socket: false, for_any: false, counts: true };
    };
    Told { is_socket: true, for_any: events.intersects(PollEvents::IN | always), counts: edges.counts() }
}
