//! Whether the sandbox has anything to do: when it comes to rest after a wake, and when it has been at rest for so long
//! that it should hibernate.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::hostcall::{REPORT_IDLE, REPORT_IDLE_TIMEOUT};

use machine::host;
use machine::sched;
use machine::sched::pause;
use machine::time;

/// Processor time in a window below which a sandbox counts as idle: one part in this many of the window.
const BUSY_PART: u64 = 100;

/// Something came from outside and woke the sandbox, which has not come to rest since.
static SERVES: AtomicBool = AtomicBool::new(false);

/// Nanoseconds, 0: it does not hibernate by itself.
static TIMEOUT_NS: AtomicU64 = AtomicU64::new(0);
/// When something came from outside for the last time.
static ACTIVE_NS: AtomicU64 = AtomicU64::new(0);
/// When an idle CPU looks again, or [`NEVER`].
static LOOK_NS: AtomicU64 = AtomicU64::new(NEVER);
/// Processor time of the sandbox when one last looked, and when that was.
static USED_NS: AtomicU64 = AtomicU64::new(0);
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
const NEVER: u64 = u64::MAX;

/// The sandbox was woken by something that came.
pub fn serve() {
    SERVES.store(true, Ordering::SeqCst);
}

/// An idle CPU is about to wait: says once after each [`serve`] that there is nothing left to do.
pub fn rest() {
    if SERVES.load(Ordering::Relaxed) && sched::is_at_rest() && SERVES.swap(false, Ordering::SeqCst) {
        host::report(REPORT_IDLE, 0);
    }
}

/// From now on the sandbox hibernates after so long a time.
pub fn set_timeout(timeout_ns: u64) {
    TIMEOUT_NS.store(timeout_ns, Ordering::SeqCst);
    if timeout_ns != 0 {
        begin(time::monotonic_ns());
    }
}

/// Begins a new window.
fn begin(now_ns: u64) {
    ACTIVE_NS.store(now_ns, Ordering::SeqCst);
    USED_NS.store(time::host_cpu_ns(), Ordering::SeqCst);
    LOOKED_NS.store(now_ns, Ordering::SeqCst);
    LOOK_NS.store(now_ns.saturating_add(TIMEOUT_NS.load(Ordering::SeqCst)), Ordering::SeqCst);
}

/// Something came from outside.
pub fn stirred() {
    if TIMEOUT_NS.load(Ordering::Relaxed) != 0 {
        ACTIVE_NS.store(time::monotonic_ns(), Ordering::Relaxed);
    }
}

/// When an idle CPU has to call [`look`].
pub fn look_at_ns() -> u64 {
    if pause::is_paused() { NEVER } else { LOOK_NS.load(Ordering::SeqCst) }
}

/// Has the sandbox hibernated if nothing has come for long enough.
pub fn look() {
    let due_ns = look_at_ns();
    if due_ns == NEVER || time::monotonic_ns() < due_ns {
        return;
    }
    // One CPU looks.
    if LOOK_NS.compare_exchange(due_ns, NEVER, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    let cpu_ns = time::host_cpu_ns();
    let now = time::monotonic_ns();
    let window = now.saturating_sub(LOOKED_NS.swap(now, Ordering::SeqCst));
    let used = cpu_ns.saturating_sub(USED_NS.swap(cpu_ns, Ordering::SeqCst));
    let (timeout, active) = (TIMEOUT_NS.load(Ordering::SeqCst), ACTIVE_NS.load(Ordering::SeqCst));
    let quiet = now.saturating_sub(active);
    let next = match verdict(window, used, quiet, timeout) {
        Verdict::Idle => {
            host::report(REPORT_IDLE_TIMEOUT, 0);
            timeout
        }
        Verdict::Busy => timeout,
        Verdict::Wait(left_ns) => left_ns,
    };
    LOOK_NS.store(now.saturating_add(next), Ordering::SeqCst);
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Idle,
    /// It computes.
    Busy,
    /// Something came; whether it is idle shows after so many nanoseconds.
    Wait(u64),
}

/// `used_ns` of processor time in `window_ns`; nothing came for `quiet_ns`.
fn verdict(window_ns: u64, used_ns: u64, quiet_ns: u64, timeout_ns: u64) -> Verdict {
    if quiet_ns < timeout_ns {
        return Verdict::Wait(timeout_ns - quiet_ns);
    }
    if used_ns > window_ns / BUSY_PART { Verdict::Busy } else { Verdict::Idle }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_idle_when_nothing_came_and_it_does_not_compute() {
        assert_eq!(verdict(1000, 10, 1000, 1000), Verdict::Idle);
        assert_eq!(verdict(1000, 11, 1000, 1000), Verdict::Busy);
        assert_eq!(verdict(1000, 0, 999, 1000), Verdict::Wait(1));
    }
}
