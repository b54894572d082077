//! Hibernation (Hibernate Container, section 3): the sandbox pauses, its memory goes to the home of pages, and comes back
//! by page faults or, as far as it belongs to the working set, all at once.
//!
//! A hibernation is wanted from [`request`] on. It happens in the idle loop of the CPU that went idle last, with the
//! scheduler frozen: no task runs, none waits for a CPU, and no lock is waited for. Until the pages are safely stored
//! nothing has changed, and whatever fails leaves the sandbox warm.
#![deny(unsafe_code)]

mod deflate;
pub mod working_set;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::hostcall::{
    self as hc, HIBERNATE_BUSY, HIBERNATE_CANCELLED, HIBERNATE_DONE, HIBERNATE_NO_MEMORY, HIBERNATE_STORE,
    HIBERNATE_STUB, HibernateReport,
};

use crate::mm::residency;
use crate::platform;
use crate::sync::SpinLock;
use crate::task::{pause, sched};
use crate::time;

/// How long tasks may take to come to rest, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;
/// How soon an idle CPU tries again when something was in the way.
const AGAIN_NS: u64 = 2_000_000;

/// A hibernation is wanted, since then.
static WANTED: AtomicBool = AtomicBool::new(false);
static WANTED_SINCE_NS: AtomicU64 = AtomicU64::new(0);
static WAKE_WANTED: AtomicBool = AtomicBool::new(false);
/// Held by whoever hibernates or wakes the sandbox; whether it is asleep.
static ASLEEP: SpinLock<bool> = SpinLock::new(false);

/// Why a hibernation did not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Obstacle {
    Busy,
    NoMemory,
    Stub,
    Store,
}

/// Pauses the sandbox and wants it hibernated.
pub fn request() {
    WAKE_WANTED.store(false, Ordering::SeqCst);
    pause::pause();
    WANTED_SINCE_NS.store(time::monotonic_ns(), Ordering::SeqCst);
    WANTED.store(true, Ordering::SeqCst);
}

/// Whether an idle CPU should call [`attempt`].
pub fn is_wanted() -> bool {
    WANTED.load(Ordering::SeqCst)
}

/// Latest time at which an idle CPU looks again.
pub fn look_again_ns() -> u64 {
    if is_wanted() { time::monotonic_ns() + AGAIN_NS } else { u64::MAX }
}

/// Hibernates the sandbox if everything is at rest; true: something has changed. For the idle loop.
pub fn attempt() -> bool {
    let changed = {
        let Some(mut asleep) = ASLEEP.try_lock() else { return false };
        is_wanted() && hibernate(&mut asleep)
    };
    follow_wake();
    changed
}

fn hibernate(asleep: &mut bool) -> bool {
    let since = WANTED_SINCE_NS.load(Ordering::SeqCst);
    let waited = time::monotonic_ns().saturating_sub(since);
    let result = match sched::freeze() {
        Some(_frozen) => deflate::run(),
        None => Err(Obstacle::Busy),
    };
    let outcome = match result {
        Ok(mut report) => {
            WANTED.store(false, Ordering::SeqCst);
            *asleep = true;
            report.pause_ns = waited;
            tell(&report);
            return true;
        }
        Err(Obstacle::Busy) if waited < PATIENCE_NS => return false,
        Err(Obstacle::Busy) => HIBERNATE_BUSY,
        Err(Obstacle::NoMemory) => HIBERNATE_NO_MEMORY,
        Err(Obstacle::Stub) => HIBERNATE_STUB,
        Err(Obstacle::Store) => HIBERNATE_STORE,
    };
    WANTED.store(false, Ordering::SeqCst);
    tell(&HibernateReport { outcome, pause_ns: waited, ..HibernateReport::default() });
    // One that slept already goes on sleeping.
    if !*asleep {
        pause::resume();
    }
    true
}

/// Wakes the sandbox, or ends a mere pause.
pub fn wake() {
    WAKE_WANTED.store(true, Ordering::SeqCst);
    follow_wake();
}

/// Carries out a wake that is wanted, unless somebody else will: whoever holds the lock looks again after letting go.
fn follow_wake() {
    while WAKE_WANTED.load(Ordering::SeqCst) {
        let Some(mut asleep) = ASLEEP.try_lock() else { return };
        if !WAKE_WANTED.swap(false, Ordering::SeqCst) {
            continue;
        }
        if WANTED.swap(false, Ordering::SeqCst) {
            tell(&HibernateReport { outcome: HIBERNATE_CANCELLED, ..HibernateReport::default() });
        }
        if core::mem::take(&mut *asleep) {
            // What does not come now comes by faults.
            let _ = residency::prefetch(working_set::len());
        }
        pause::resume();
    }
}

fn tell(report: &HibernateReport) {
    debug_assert!(report.outcome == HIBERNATE_DONE || report.pages == 0);
    let _ = platform::call(hc::HIBERNATED, [platform::phys_of(&raw const *report), 0, 0, 0, 0, 0]);
}
