//! Records the working set of a sandbox that goes on from an image: the pages that its programs touch within [`RECORDED_NS`] of the
//! wake, or until it hibernates where that is asked for, and no more than [`abi::report::WORKING_SET_MAX_PAGES`] of them. It is told earlier
//! where the work is over earlier: the sandbox hibernates, or it ends, or the exec'd process does that it was begun for.

use abi::records::RecordUntil;
use abi::report::Report;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::host;
use crate::mm::working_set;
use crate::time;

/// For how long touches are recorded.
const RECORDED_NS: u64 = 3_000_000_000;
/// Nothing is to be recorded; the next wake is.
const OFF: u64 = 0;
const NEXT: u64 = u64::MAX;

/// So long that it never is over.
const EVER: u64 = u64::MAX - 1;

/// Until when touches are recorded (monotonic), or one of the above.
static UNTIL_NS: AtomicU64 = AtomicU64::new(OFF);
/// An exec'd process is what the sandbox was begun for.
static OF_EXEC: AtomicBool = AtomicBool::new(false);
/// It is recorded until the sandbox hibernates.
static UNTIL_SLEEP: AtomicBool = AtomicBool::new(false);

/// This kernel goes on with an image. `wanted`: its next wake is to be recorded, until then.
pub fn prepare(wanted: Option<RecordUntil>) {
    if wanted.is_some() {
        working_set::record();
    }
    OF_EXEC.store(wanted == Some(RecordUntil::Exec), Ordering::SeqCst);
    UNTIL_SLEEP.store(wanted == Some(RecordUntil::Sleep), Ordering::SeqCst);
    UNTIL_NS.store(if wanted.is_some() { NEXT } else { OFF }, Ordering::SeqCst);
}

/// The sandbox wakes.
pub fn wake() {
    let for_ever = UNTIL_SLEEP.load(Ordering::SeqCst);
    let until_ns = if for_ever { EVER } else { time::monotonic_ns().saturating_add(RECORDED_NS) };
    if UNTIL_NS.compare_exchange(NEXT, until_ns, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        working_set::see_until(until_ns);
    }
}

/// When an idle CPU has to call [`look`].
pub fn look_at_ns() -> u64 {
    match UNTIL_NS.load(Ordering::SeqCst) {
        OFF | EVER => u64::MAX,
        until_ns => until_ns,
    }
}

/// Tells what was recorded, if the time is over. For idle CPUs.
pub fn look() {
    if time::monotonic_ns() >= look_at_ns() {
        finish();
    }
}

/// An exec'd process has ended.
pub fn exec_ended() {
    if OF_EXEC.load(Ordering::SeqCst) {
        finish();
    }
}

/// Tells what was recorded, if anything was to be and is not told yet.
pub fn finish() {
    if matches!(UNTIL_NS.load(Ordering::SeqCst), OFF | NEXT) || UNTIL_NS.swap(OFF, Ordering::SeqCst) == OFF {
        return;
    }
    let frames: Vec<u8> = working_set::recorded().iter().flat_map(|frame| frame.to_ne_bytes()).collect();
    host::report(&Report::WorkingSet { frames: &frames });
}
