//! Whether the sandbox has anything to do: when it comes to rest after a wake, and when it has been at rest for so long
//! that it should hibernate.

use abi::hostcall::{REPORT_IDLE, REPORT_IDLE_TIMEOUT};

use super::HIBERNATION;
use machine::host;
use machine::sched;
use machine::sched::pause;
use machine::time;

/// Processor time in a window below which a sandbox counts as idle: one part in this many of the window.
const BUSY_PART: u64 = 100;
const NEVER: u64 = u64::MAX;

/// Measures how long the sandbox has been idle. Times are of the monotonic clock, in nanoseconds.
pub(super) struct Watch {
    /// Something came from outside and woke the sandbox, which has not come to rest since.
    serves: bool,
    /// After so long a time the sandbox hibernates; 0: it does not hibernate by itself.
    timeout_ns: u64,
    /// When something came from outside for the last time.
    active_ns: u64,
    /// When an idle CPU looks again, or [`NEVER`].
    look_ns: u64,
    /// Processor time of the sandbox when one last looked, and when that was.
    used_ns: u64,
    looked_ns: u64,
}

/// The result of a look.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Idle,
    /// It computes.
    Busy,
    /// Something came; whether it is idle shows after so many nanoseconds.
    Wait(u64),
}

impl Watch {
    pub(super) const fn new() -> Self {
        Self { serves: false, timeout_ns: 0, active_ns: 0, look_ns: NEVER, used_ns: 0, looked_ns: 0 }
    }

    /// From now on the sandbox hibernates after so long a time. A window begins.
    fn set_timeout(&mut self, timeout_ns: u64, now_ns: u64, cpu_ns: u64) {
        self.timeout_ns = timeout_ns;
        (self.active_ns, self.looked_ns, self.used_ns) = (now_ns, now_ns, cpu_ns);
        self.look_ns = now_ns.saturating_add(timeout_ns);
    }

    /// Whether the caller is the one CPU that looks now. It then calls [`Watch::look`].
    fn begin_look(&mut self, now_ns: u64) -> bool {
        let is_due = self.look_ns != NEVER && now_ns >= self.look_ns;
        if is_due {
            self.look_ns = NEVER;
        }
        is_due
    }

    /// Ends a window, in which the sandbox has used so much processor time, and begins another.
    fn look(&mut self, now_ns: u64, cpu_ns: u64) -> Verdict {
        let window_ns = now_ns.saturating_sub(self.looked_ns);
        let used_ns = cpu_ns.saturating_sub(self.used_ns);
        (self.looked_ns, self.used_ns) = (now_ns, cpu_ns);
        let quiet_ns = now_ns.saturating_sub(self.active_ns);
        let verdict = verdict(window_ns, used_ns, quiet_ns, self.timeout_ns);
        let next_ns = match verdict {
            Verdict::Idle | Verdict::Busy => self.timeout_ns,
            Verdict::Wait(left_ns) => left_ns,
        };
        self.look_ns = now_ns.saturating_add(next_ns);
        verdict
    }
}

/// `used_ns` of processor time in `window_ns`; nothing came for `quiet_ns`.
fn verdict(window_ns: u64, used_ns: u64, quiet_ns: u64, timeout_ns: u64) -> Verdict {
    if quiet_ns < timeout_ns {
        return Verdict::Wait(timeout_ns - quiet_ns);
    }
    if used_ns > window_ns / BUSY_PART { Verdict::Busy } else { Verdict::Idle }
}

/// The sandbox was woken by something that came.
pub(super) fn serve() {
    HIBERNATION.idle.lock().serves = true;
}

/// An idle CPU is about to wait: says once after each [`serve`] that there is nothing left to do.
pub fn rest() {
    let may_rest = HIBERNATION.idle.lock().serves && sched::is_at_rest();
    if may_rest && core::mem::take(&mut HIBERNATION.idle.lock().serves) {
        host::report(REPORT_IDLE, 0);
    }
}

/// From now on the sandbox hibernates after so long a time; 0: not by itself, as at first. Called once, at boot.
pub fn set_timeout(timeout_ns: u64) {
    if timeout_ns != 0 {
        let (now_ns, cpu_ns) = (time::monotonic_ns(), time::host_cpu_ns());
        HIBERNATION.idle.lock().set_timeout(timeout_ns, now_ns, cpu_ns);
    }
}

/// Something came from outside.
pub fn note_activity() {
    let mut watch = HIBERNATION.idle.lock();
    if watch.timeout_ns != 0 {
        watch.active_ns = time::monotonic_ns();
    }
}

/// When an idle CPU has to call [`look`].
pub fn look_at_ns() -> u64 {
    if pause::is_paused() { NEVER } else { HIBERNATION.idle.lock().look_ns }
}

/// Has the sandbox hibernated if nothing has come for long enough.
pub fn look() {
    if pause::is_paused() || !HIBERNATION.idle.lock().begin_look(time::monotonic_ns()) {
        return;
    }
    let cpu_ns = time::host_cpu_ns();
    let verdict = HIBERNATION.idle.lock().look(time::monotonic_ns(), cpu_ns);
    if verdict == Verdict::Idle {
        host::report(REPORT_IDLE_TIMEOUT, 0);
    }
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

    #[test]
    fn one_cpu_looks_when_it_is_time() {
        let mut watch = Watch::new();
        assert!(!watch.begin_look(u64::MAX - 1));
        watch.set_timeout(1000, 5000, 70);
        assert!(!watch.begin_look(5999));
        assert!(watch.begin_look(6000) && !watch.begin_look(6000));
        watch.active_ns = 5500;
        assert_eq!(watch.look(6000, 75), Verdict::Wait(500));
        assert!(!watch.begin_look(6499) && watch.begin_look(6500));
        assert_eq!(watch.look(6500, 80), Verdict::Idle);
        assert!(!watch.begin_look(7499) && watch.begin_look(7500));
        assert_eq!(watch.look(7500, 180), Verdict::Busy);
    }
}
