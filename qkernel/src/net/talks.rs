//! Requests and questions over connections, as far as they say whether somebody outside waits: requests that came over
//! accepted connections and are open, and questions that were sent over those the sandbox made itself.
//!
//! Only a sandbox that falls asleep by itself keeps this ([`watch`]): a few bytes for each connection, written where a request
//! begins or its answer does, and looked at when the sandbox has been idle for long enough ([`crate::hibernate`]).
//!
//! | phase | accepted connection | made connection |
//! |---|---|---|
//! | `Quiet` | nothing is asked | the answer has come, or nothing was asked |
//! | `Asked` | bytes were read, and nothing was written since | bytes were sent, or the connection is being made |
//! | `Answered` | something was written since that followed from what came | |
//! | `Late` | something was written that followed from a timer: more may come | |

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::fs::host_poll::readiness::Readiness;
use machine::sched::{self, Runnable};
use machine::sync::{Rank, SpinLock};
use machine::time;

static IS_WATCHED: AtomicBool = AtomicBool::new(false);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// Accepted connections that are not quiet.
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// When the last one that counts became quiet (monotonic); 0: none has.
static ENDED_NS: AtomicU64 = AtomicU64::new(0);
static ALL: SpinLock<BTreeMap<u64, Weak<Talk>>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

/// See the table above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    Quiet,
    Asked,
    Answered,
    Late,
}

impl Phase {
    fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::Asked,
            2 => Self::Answered,
            3 => Self::Late,
            _ => Self::Quiet,
        }
    }

    /// The phase of an accepted connection after a write. `late`: it followed from a timer.
    fn written(self, late: bool) -> Self {
        match self {
            _ if late => Self::Late,
            Self::Asked => Self::Answered,
            other => other,
        }
    }
}

/// The request or question that goes on over one connection, and who reads it.
pub struct Talk {
    id: u64,
    is_made: bool,
    phase: AtomicU8,
    /// When the request, or the question, began, and when the connection was last quiet (monotonic).
    since_ns: AtomicU64,
    opened_ns: AtomicU64,
    /// Who read it, as [`name_of`] names tasks.
    reader: AtomicUsize,
    readiness: Arc<Readiness>,
    /// The local port of an accepted connection.
    pub port: u16,
    /// The peer's address, as `accept(2)` and `connect(2)` have it.
    pub peer: Vec<u8>,
}

/// From now on connections are watched. Called once, at boot, if at all.
pub fn watch() {
    IS_WATCHED.store(true, Ordering::Relaxed);
}

/// Whether connections are watched.
pub fn are_watched() -> bool {
    IS_WATCHED.load(Ordering::Relaxed)
}

/// Whether a request is open on some accepted connection, or was when one last looked.
pub fn is_any_open() -> bool {
    OPEN.load(Ordering::SeqCst) != 0
}

/// A request that ended so recently may be why a task waits now.
const RECENT_NS: u64 = time::NSEC;

/// Whether the last request that was open has ended just before `now_ns`.
pub fn has_just_ended(now_ns: u64) -> bool {
    match ENDED_NS.load(Ordering::Relaxed) {
        0 => false,
        ended_ns => now_ns.saturating_sub(ended_ns) < RECENT_NS,
    }
}

/// A number that tells a task from all others that live.
pub fn name_of(task: &Runnable) -> usize {
    Arc::as_ptr(task).addr()
}

/// Some of the connections, at most `most`: those whose ids are `from` or more. With them where the next ones begin, if there may be
/// any.
pub fn some_from(from: u64, most: usize) -> (Vec<Arc<Talk>>, Option<u64>) {
    let all = ALL.lock();
    let last = all.range(from..).take(most).last().map(|(id, _)| *id + 1);
    (all.range(from..).take(most).filter_map(|(_, talk)| talk.upgrade()).collect(), last)
}

/// Somebody who came, and whom the sandbox was woken for.
pub struct Visitor {
    pub port: u16,
    pub peer: Vec<u8>,
    /// Who accepted the connection, or read from it.
    pub task: Runnable,
}

/// The token of the socket whose event woke the sandbox, until its first use; 0: none.
static WAKING: AtomicU64 = AtomicU64::new(0);
/// Whether there is a visitor, for a look without the lock.
static HAS_VISITOR: AtomicBool = AtomicBool::new(false);
static VISITOR: SpinLock<Option<Visitor>> = SpinLock::new(Rank::Leaf, None);

/// An event of the socket with this token woke the sandbox.
pub fn woken_by(token: u64) {
    WAKING.store(token, Ordering::Relaxed);
    let former = VISITOR.lock().take();
    drop(former);
}

/// Whether it was the socket with this token.
pub fn has_woken(token: u64) -> bool {
    WAKING.load(Ordering::Relaxed) == token
}

/// The current task has accepted a connection at a port, or read from one, by whose event the sandbox was woken.
pub fn was_woken_for(port: u16, peer: &[u8]) {
    WAKING.store(0, Ordering::Relaxed);
    let visitor = Visitor { port, peer: peer.into(), task: sched::current() };
    let former = VISITOR.lock().replace(visitor);
    HAS_VISITOR.store(true, Ordering::Release);
    drop(former);
}

/// Takes who that was.
pub fn take_visitor() -> Option<Visitor> {
    if !HAS_VISITOR.load(Ordering::Acquire) {
        return None;
    }
    let mut visitor = VISITOR.lock();
    HAS_VISITOR.store(false, Ordering::Relaxed);
    visitor.take()
}

impl Talk {
    /// Of a connection that was accepted at a port from a peer; `None`: nobody asks.
    pub fn accepted(readiness: &Arc<Readiness>, port: u16, peer: &[u8]) -> Option<Arc<Self>> {
        are_watched().then(|| Self::new(readiness, false, port, peer))
    }

    /// Of a connection that the sandbox begins to make; `None`: nobody asks.
    pub fn made(readiness: &Arc<Readiness>, peer: &[u8]) -> Option<Arc<Self>> {
        let talk = are_watched().then(|| Self::new(readiness, true, 0, peer))?;
        talk.sent();
        Some(talk)
    }

    fn new(readiness: &Arc<Readiness>, is_made: bool, port: u16, peer: &[u8]) -> Arc<Self> {
        let talk = Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            is_made,
            phase: AtomicU8::new(Phase::Quiet as u8),
            since_ns: AtomicU64::new(0),
            opened_ns: AtomicU64::new(0),
            reader: AtomicUsize::new(0),
            readiness: readiness.clone(),
            port,
            peer: peer.into(),
        });
        ALL.lock().insert(talk.id, Arc::downgrade(&talk));
        talk
    }

    /// Its place among all.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the sandbox made the connection.
    pub fn is_made(&self) -> bool {
        self.is_made
    }

    /// How far it has got.
    pub fn phase(&self) -> Phase {
        Phase::from_bits(self.phase.load(Ordering::SeqCst))
    }

    /// When the request, or the question, began, and when the connection was last quiet.
    pub fn since_ns(&self) -> (u64, u64) {
        (self.since_ns.load(Ordering::Relaxed), self.opened_ns.load(Ordering::Relaxed))
    }

    /// Who read the request, or wrote first; see [`name_of`].
    pub fn reader(&self) -> usize {
        self.reader.load(Ordering::Relaxed)
    }

    /// The tasks that wait for something to read on the connection, or some of them.
    pub fn readers(&self) -> Vec<sched::wait::Reader> {
        self.readiness.queue().readers()
    }

    /// Bytes were received.
    pub fn received(&self) {
        let phase = self.phase();
        if self.is_made {
            if phase != Phase::Quiet {
                self.step(Phase::Quiet);
            }
            return;
        }
        let task = sched::current();
        // What is written next follows from this, also if the task's time was up in between.
        task.sched().waiting.was_asked();
        if phase != Phase::Asked {
            self.begin(&task, phase);
            self.step(Phase::Asked);
        }
    }

    /// Bytes were sent.
    pub fn sent(&self) {
        let phase = self.phase();
        if self.is_made {
            if phase == Phase::Quiet {
                self.begin(&sched::current(), phase);
                self.step(Phase::Asked);
            }
            return;
        }
        let task = sched::current();
        let next = phase.written(task.sched().waiting.follows_a_timer());
        if next != phase {
            if phase == Phase::Quiet {
                self.begin(&task, phase);
            }
            self.step(next);
        }
    }

    /// The request that was in this phase is over, unless something has come or gone since.
    pub fn end(&self, phase: Phase) {
        let ended =
            self.phase.compare_exchange(phase as u8, Phase::Quiet as u8, Ordering::SeqCst, Ordering::SeqCst);
        if ended.is_ok() {
            self.count(phase, Phase::Quiet);
        }
    }

    fn begin(&self, task: &Runnable, phase: Phase) {
        let now_ns = time::monotonic_ns();
        self.since_ns.store(now_ns, Ordering::Relaxed);
        if phase == Phase::Quiet {
            self.opened_ns.store(now_ns, Ordering::Relaxed);
        }
        self.reader.store(name_of(task), Ordering::Relaxed);
    }

    fn step(&self, to: Phase) {
        let from = Phase::from_bits(self.phase.swap(to as u8, Ordering::SeqCst));
        self.count(from, to);
    }

    fn count(&self, from: Phase, to: Phase) {
        match (from == Phase::Quiet, to == Phase::Quiet) {
            _ if self.is_made => {}
            (true, false) => {
                OPEN.fetch_add(1, Ordering::SeqCst);
            }
            (false, true) => {
                // Of visitors that do not count, health checks for one, some request has always just ended.
                if self.readiness.counts() {
                    ENDED_NS.store(time::monotonic_ns().max(1), Ordering::Relaxed);
                }
                OPEN.fetch_sub(1, Ordering::SeqCst);
            }
            _ => {}
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.step(Phase::Quiet);
        ALL.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_follows_from_a_timer_is_in_progress() {
        use Phase::{Answered, Asked, Late, Quiet};
        for (phase, late, next) in [
            (Quiet, false, Quiet),
            (Quiet, true, Late),
            (Asked, false, Answered),
            (Asked, true, Late),
            (Answered, false, Answered),
            (Answered, true, Late),
            (Late, false, Late),
            (Late, true, Late),
        ] {
            assert_eq!(phase.written(late), next, "{phase:?} {late}");
            assert_eq!(Phase::from_bits(next as u8), next);
        }
    }

    #[test]
    fn those_that_are_open_are_counted_until_they_end() {
        let readiness = Readiness::new();
        assert!(Talk::accepted(&readiness, 80, &[]).is_none(), "nobody asks");
        watch();
        let talk = Talk::accepted(&readiness, 80, &[2, 0]).unwrap();
        talk.step(Phase::Asked);
        assert!(is_any_open());
        talk.end(Phase::Answered);
        assert!(is_any_open(), "it is in another phase");
        talk.end(Phase::Asked);
        assert!(!is_any_open());
        talk.step(Phase::Late);
        assert!(
            is_any_open() && some_from(talk.id(), 9).0.len() == 1 && some_from(talk.id() + 1, 9).1.is_none()
        );
        drop(talk);
        assert!(!is_any_open() && some_from(0, 9).1.is_none());
        let now_ns = time::monotonic_ns();
        assert!(has_just_ended(now_ns) && !has_just_ended(now_ns + 2 * time::NSEC));
    }
}
