//! The pause of the whole sandbox: while it lasts no user code runs. Tasks rest at the user boundary; those that sleep in
//! a call come to rest there once they wake.

use core::sync::atomic::{AtomicBool, Ordering};

use super::wait::WaitQueue;
use crate::rank::Rank;
use crate::spin::SpinLock;
use crate::{arch, host, platform};

static PAUSED: AtomicBool = AtomicBool::new(false);
/// The last request that was taken.
static LAST: SpinLock<i64> = SpinLock::new(Rank::Pause, 0);
static RESTING: WaitQueue = WaitQueue::new();

/// How often the CPUs are asked whether they have left user code, before the pause is reported all the same: one that
/// has been kicked comes out within microseconds, unless the host does not run it.
const PATIENCE: u32 = 1000;

/// Takes a request unless a later one has been taken: several CPUs may look at events at the same time.
fn take(request: i64, paused: bool) -> bool {
    take_if(request, paused, || true)
}

fn take_if(request: i64, paused: bool, holds: impl FnOnce() -> bool) -> bool {
    let mut last = LAST.lock();
    let is_new = request >= *last && holds();
    if is_new {
        *last = request;
        PAUSED.store(paused, Ordering::SeqCst);
    }
    is_new
}

/// Whether tasks rest, or will.
pub fn is_paused() -> bool {
    PAUSED.load(Ordering::SeqCst)
}

/// The last request that was taken.
pub fn last() -> i64 {
    *LAST.lock()
}

/// Keeps every task from going on in user code; false: a later request has been taken.
pub fn pause(request: i64) -> bool {
    if !take(request, true) {
        return false;
    }
    call_out();
    host::report(abi::hostcall::REPORT_PAUSED, request);
    true
}

/// The same while `is_wanted`, which ends before the request's own [`resume`]. Somebody else will pause for this request
/// in any case, and report it.
pub fn hasten(request: i64, is_wanted: impl FnOnce() -> bool) {
    if take_if(request, true, is_wanted) {
        call_out();
    }
}

/// Makes all other CPUs leave user code.
fn call_out() {
    let me = arch::cpu_index();
    for cpu in (0..platform::cpus()).filter(|&cpu| cpu != me) {
        platform::kick(cpu);
    }
    // A CPU takes back its `pending` outside user code, and looks at `PAUSED` afterwards.
    let is_out = |cpu: usize| platform::header_of(cpu).pending.load(Ordering::SeqCst) == 0;
    for _ in 0..PATIENCE {
        if (0..platform::cpus()).all(|cpu| cpu == me || is_out(cpu)) {
            break;
        }
        platform::relax();
    }
}

/// Lets them go on.
pub fn resume(request: i64) {
    if take(request, false) {
        RESTING.wake_all();
        // Idle CPUs wait for no timer in a pause.
        let me = arch::cpu_index();
        (0..platform::cpus()).filter(|&cpu| cpu != me).for_each(platform::kick);
        host::report(abi::hostcall::REPORT_RESUMED, request);
    }
}

/// The current task rests for as long as the pause lasts; true: it has rested, and should look at everything anew.
pub fn rest() -> bool {
    if !PAUSED.load(Ordering::SeqCst) {
        return false;
    }
    RESTING.wait_uninterruptible(|| !PAUSED.load(Ordering::SeqCst));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_request_counts_in_whatever_order_they_are_taken() {
        assert!(take(2, true));
        assert!(!take(1, false) && PAUSED.load(Ordering::SeqCst));
        assert!(take(3, false) && !PAUSED.load(Ordering::SeqCst));
        assert!(!take_if(4, true, || false) && !PAUSED.load(Ordering::SeqCst) && last() == 3);
    }
}
