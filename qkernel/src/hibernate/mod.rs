//! Hibernation (Hibernate Container, section 3): the sandbox pauses, its memory goes to the home of pages, and comes back
//! by page faults or, as far as it belongs to the working set, all at once.
//!
//! A hibernation is wanted from [`request`] on. It happens in the idle loop of the CPU that went idle last, with the
//! scheduler frozen: no task runs, none waits for a CPU, and no lock is waited for. Until the pages are safely stored
//! nothing has changed, and whatever fails leaves the sandbox warm.

mod deflate;
pub mod idle;

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use abi::hostcall as hc;
use abi::hostcall::{
    HIBERNATE_ALREADY, HIBERNATE_BUSY, HIBERNATE_CANCELLED, HIBERNATE_DONE, HIBERNATE_NO_MEMORY,
    HIBERNATE_STORE, HibernateReport, REPORT_STIRRED,
};

use machine::host;
use machine::mm::working_set;
use machine::platform;
use machine::sched;
use machine::sched::pause;
use machine::sync::{Mutex, Rank, SpinLock};
use machine::time;

/// How long tasks may take to come to rest, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;
/// How soon an idle CPU tries again when something was in the way.
const AGAIN_NS: u64 = 2_000_000;

/// The request for a hibernation that is still to be carried out, or [`NONE`], and since when.
static WANTED: AtomicI64 = AtomicI64::new(NONE);
static WANTED_SINCE_NS: AtomicU64 = AtomicU64::new(0);
/// The last request for a hibernation that came in.
static SEEN: SpinLock<i64> = SpinLock::new(Rank::Leaf, NONE);
/// The last request for a wake that is still to be carried out, or [`NONE`].
static WAKE_WANTED: AtomicI64 = AtomicI64::new(NONE);
static WAKE_SERVES: AtomicBool = AtomicBool::new(false);
const NONE: i64 = 0;
/// Since the last request for a hibernation something came from outside that a task had waited for.
static STIRRED: AtomicBool = AtomicBool::new(false);
/// What it was: `STIRRED_BY_SOCKET` ….
static STIRRED_BY: AtomicU64 = AtomicU64::new(0);
/// Held by whoever hibernates or wakes the sandbox; whether it is asleep.
static ASLEEP: Mutex<bool> = Mutex::new(Rank::Hibernation, false);

/// Why a hibernation did not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Obstacle {
    Busy,
    /// A later request has made the sandbox go on.
    Overtaken,
    NoMemory,
    Store,
}

/// Wants the sandbox hibernated, unless a later request has been taken: at once, which pauses it, or when it is `idle`.
/// A request that has come before is only hastened, and only if it is still to be carried out: what came for the sandbox
/// after it was done would else sleep on with it.
pub fn request(request: i64, idle: bool) {
    let now = time::monotonic_ns();
    let mut seen = SEEN.lock();
    if request <= *seen {
        if !idle {
            pause::hasten(request, || WANTED.load(Ordering::SeqCst) == request);
        }
        return;
    }
    *seen = request;
    STIRRED.store(false, Ordering::SeqCst);
    if idle || pause::pause(request) {
        WANTED_SINCE_NS.store(now, Ordering::SeqCst);
        WANTED.fetch_max(request, Ordering::SeqCst);
    }
}

/// Whether an idle CPU should call [`attempt`].
pub fn is_wanted() -> bool {
    WANTED.load(Ordering::SeqCst) != NONE
}

/// Latest time at which an idle CPU looks again.
pub fn look_again_ns() -> u64 {
    if is_wanted() { time::monotonic_ns() + AGAIN_NS } else { idle::look_at_ns() }
}

/// Hibernates the sandbox if everything is at rest; true: something has changed. For the idle loop.
/// `is_awaited`: something has come in that the sandbox is not to sleep with.
pub fn attempt(is_awaited: impl FnOnce() -> bool) -> bool {
    let changed = {
        let Some(mut asleep) = ASLEEP.try_lock() else { return false };
        let request = WANTED.load(Ordering::SeqCst);
        request != NONE && hibernate(request, &mut asleep)
    };
    if changed && is_awaited() {
        // Who comes in came before the sleep did, and is not to sleep with it.
        stir(hc::STIRRED_BY_EXEC);
    }
    follow_wake();
    changed
}

/// A request is done with, unless a later one has come.
fn settle(request: i64) -> bool {
    WANTED.compare_exchange(request, NONE, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

fn hibernate(request: i64, asleep: &mut bool) -> bool {
    if *asleep {
        // The request before it did all there is to do; those for a wake that came in between are overtaken.
        pause::pause(request);
        settle(request);
        tell(&HibernateReport { outcome: HIBERNATE_ALREADY, ..HibernateReport::default() }, request);
        return true;
    }
    let since = WANTED_SINCE_NS.load(Ordering::SeqCst);
    let waited = time::monotonic_ns().saturating_sub(since);
    let result = match sched::freeze() {
        // Nobody is in the middle of anything: what comes from now on is seen by `stir`.
        Some(frozen) if pause::pause(request) || pause::is_paused() => deflate::run(&frozen),
        Some(_frozen) => Err(Obstacle::Overtaken),
        None => Err(Obstacle::Busy),
    };
    let outcome = match result {
        Ok(mut report) => {
            settle(request);
            *asleep = true;
            time::hold();
            report.pause_ns = waited;
            tell(&report, request);
            return true;
        }
        Err(Obstacle::Busy) if waited < PATIENCE_NS => return false,
        Err(Obstacle::Busy) => HIBERNATE_BUSY,
        Err(Obstacle::Overtaken) => HIBERNATE_CANCELLED,
        Err(Obstacle::NoMemory) => HIBERNATE_NO_MEMORY,
        Err(Obstacle::Store) => HIBERNATE_STORE,
    };
    if !settle(request) && outcome == HIBERNATE_CANCELLED {
        // Whoever took the later request has told.
        return true;
    }
    tell(&HibernateReport { outcome, pause_ns: waited, ..HibernateReport::default() }, request);
    pause::resume(request);
    true
}

/// Wakes the sandbox, or ends a mere pause, unless a later request has been taken; `serves`: for something that has come.
pub fn wake(request: i64, serves: bool) {
    WAKE_SERVES.fetch_or(serves, Ordering::SeqCst);
    WAKE_WANTED.fetch_max(request, Ordering::SeqCst);
    follow_wake();
}

/// Something came from outside that a task waits for, or that a socket's reader finds: wakes the sandbox if it sleeps, or
/// as soon as it does. `by`: `STIRRED_BY_SOCKET` ….
pub fn stir(by: u64) {
    if pause::is_paused() {
        STIRRED_BY.store(by, Ordering::SeqCst);
        STIRRED.store(true, Ordering::SeqCst);
        follow_wake();
    }
}

/// Carries out a wake that is wanted, unless somebody else will: whoever holds the lock looks again after letting go.
fn follow_wake() {
    while WAKE_WANTED.load(Ordering::SeqCst) != NONE || STIRRED.load(Ordering::SeqCst) {
        let Some(mut asleep) = ASLEEP.try_lock() else { return };
        let request = WAKE_WANTED.swap(NONE, Ordering::SeqCst);
        if request != NONE && request >= pause::last() {
            go_on(request, &mut asleep);
            if WAKE_SERVES.swap(false, Ordering::SeqCst) {
                idle::serve();
            }
        } else if *asleep && STIRRED.swap(false, Ordering::SeqCst) {
            // As if nobody had asked for the sleep.
            host::report(REPORT_STIRRED, STIRRED_BY.load(Ordering::SeqCst).cast_signed());
            go_on(pause::last(), &mut asleep);
            idle::serve();
        } else if !*asleep {
            // On the way down it stays known; in a mere pause it means nothing.
            return;
        }
    }
}

fn go_on(request: i64, asleep: &mut bool) {
    let wanted = WANTED.load(Ordering::SeqCst);
    if wanted != NONE && wanted < request && settle(wanted) {
        tell(&HibernateReport { outcome: HIBERNATE_CANCELLED, ..HibernateReport::default() }, wanted);
    }
    let mut how = hc::REAP_OFF;
    if core::mem::take(asleep) {
        time::release();
        how = platform::call(hc::BEGIN_WAKE, [0; 6]).unwrap_or(hc::REAP_OFF);
        working_set::begin_wake(how != hc::REAP_OFF);
    }
    // Tasks can only run meanwhile if there is another CPU.
    let streams = how == hc::REAP_STREAM && platform::cpus() > 1;
    if how != hc::REAP_OFF && !streams {
        working_set::bring_back(false);
    }
    STIRRED.store(false, Ordering::SeqCst);
    idle::stirred();
    pause::resume(request);
    if streams {
        working_set::bring_back(true);
    }
}

fn tell(report: &HibernateReport, request: i64) {
    debug_assert!(report.outcome == HIBERNATE_DONE || report.pages == 0);
    let _ = platform::call(
        hc::HIBERNATED,
        [platform::phys_of(&raw const *report), request.cast_unsigned(), 0, 0, 0, 0],
    );
}
