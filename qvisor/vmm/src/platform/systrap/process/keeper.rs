//! The keeper: a thread that keeps some stub processes ready, buries the dead, and ends those that use the processor while
//! the sandbox sleeps.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use super::{Process, READY, StubThread, Stubs, cpu, spawn};

/// The keeper's own wake-up and the zygote, among the process slots that its events name.
pub(super) const TOKEN_WAKE: u64 = u64::MAX;
pub(super) const TOKEN_ZYGOTE: u64 = 0;
/// How long stubs are watched once the sandbox sleeps, and the processor time that one may use meanwhile.
const RESTLESS_AFTER: Duration = Duration::from_millis(100);
const RESTLESS_NS: u64 = 1_000_000;
const LOOKS_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// Stubs that are watched since the sandbox began to sleep, with the processor time that each had used.
struct Restless {
    until: Instant,
    /// After how long they are looked at again.
    looks: std::array::IntoIter<Duration, 2>,
    disturbed: u64,
    used: Vec<(u64, Arc<Process>)>,
}

impl Stubs {
    /// The keeper's thread: keeps some processes ready, and buries the dead.
    pub fn keep(&self) {
        spawn::block_signals();
        let mut watched: Option<Restless> = None;
        while !self.stopping.load(SeqCst) {
            if self.asleep.swap(false, SeqCst) {
                watched = self.watch_restless();
            }
            while !self.stopping.load(SeqCst) && self.wants_ready() {
                match self.fork() {
                    Ok(process) => self.ready.lock().push(process),
                    Err(_) => break,
                }
            }
            let until = watched.as_ref().map(|watched| watched.until);
            if until.is_some_and(|until| Instant::now() >= until) {
                watched = watched.take().and_then(|watched| self.end_restless(watched));
                continue;
            }
            for token in spawn::wait_events(&self.epoll, until) {
                match token {
                    TOKEN_WAKE => spawn::drain(&self.wake),
                    TOKEN_ZYGOTE => self.bury_zygote(),
                    slot => self.bury(usize::try_from(slot).unwrap_or(0)),
                }
            }
        }
    }

    /// Begins to watch the stubs when the sandbox has just begun to sleep, with the time that each has used; `None`: it
    /// was woken before this thread came to it, and the stubs use their turns.
    fn watch_restless(&self) -> Option<Restless> {
        let used = |process: Arc<Process>| (cpu::process_cpu_ns(process.pid), process);
        let watched = Restless {
            until: Instant::now() + RESTLESS_AFTER,
            looks: LOOKS_AGAIN.into_iter(),
            disturbed: self.disturbed.load(SeqCst),
            used: self.slots.lock().living.values().cloned().map(used).collect(),
        };
        self.is_still_since(&watched).then_some(watched)
    }

    /// Whether nobody has given a stub work since, whether or not the sandbox sleeps again.
    fn is_still_since(&self, watched: &Restless) -> bool {
        self.is_still.load(SeqCst) && self.disturbed.load(SeqCst) == watched.disturbed
    }

    /// Ends stubs that use the processor while nobody has given them work: their application code has made them spin. Result: what is to be
    /// watched on, since code that waits for a page of a file may come to it late.
    fn end_restless(&self, mut watched: Restless) -> Option<Restless> {
        for (before, process) in &watched.used {
            let used = cpu::process_cpu_ns(process.pid).saturating_sub(*before);
            if used > RESTLESS_NS && self.is_still_since(&watched) && !process.is_dead() {
                process.kill();
            }
        }
        watched.looks.next().filter(|_| self.is_still_since(&watched)).map(|after| {
            watched.until = Instant::now() + after;
            watched
        })
    }

    fn wants_ready(&self) -> bool {
        !self.resting.load(SeqCst) && self.ready.lock().len() < READY
    }

    fn bury_zygote(&self) {
        if self.zygote_dead.swap(true, SeqCst) {
            return;
        }
        spawn::unwatch(&self.epoll, &self.zygote_pidfd);
        self.dead_cpu_ns.fetch_add(spawn::reap(self.zygote_pid), Relaxed);
        // SAFETY: the area outlives this; a second view of it, since a fork that waits holds the lock.
        unsafe { StubThread::new(self.control.at(0), 0, self.layout) }.mark_dead();
    }

    fn bury(&self, slot: usize) {
        let Some(process) = self.slots.lock().living.remove(&slot) else { return };
        spawn::unwatch(&self.epoll, &process.pidfd);
        process.bury(&self.dead_cpu_ns);
        let same = |other: &Arc<Process>| Arc::ptr_eq(other, &process);
        self.ready.lock().retain(|p| !same(p));
        self.free_slot(&process);
    }
}
