//! Whether the sandbox has anything to do: when it comes to rest after a wake, and when it has been at rest for so long
//! that it should hibernate.
//!
//! Visits ([`crate::net::visits`]) do not restart the time. What woke for one is as idle as before the sleep, and hibernates again
//! once nothing has come for a short while, the *grace*, no connection of such a visitor is open that was accepted since, and the
//! sandbox does not compute. A connection keeps it awake for no longer than the timeout.

use abi::hostcall::{REPORT_IDLE, REPORT_IDLE_TIMEOUT};

use super::{HIBERNATION, timers};
use crate::fs::locks;
use crate::net::visits;
use abi::address::AddressPrefix;
use alloc::vec::Vec;
use machine::host;
use machine::sched;
use machine::sched::pause;
use machine::time;

/// Processor time in a window below which a sandbox counts as idle: one part in this many of the window.
const BUSY_PART: u64 = 100;
const NEVER: u64 = u64::MAX;
/// The grace: this part of the timeout, and at most so long.
const GRACE_PART: u64 = 4;
const GRACE_MAX_NS: u64 = 500_000_000;

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
    /// When the sandbox last hibernated. What comes then is taken before it wakes: tasks go on as far as the user boundary.
    slept_ns: u64,
    /// When something came last of which nobody knew whether it counts.
    visited_ns: Option<u64>,
    /// When it woke, if nothing that counts has come since it slept.
    woken_ns: Option<u64>,
}

/// What is known of visits.
#[derive(Clone, Copy, Default)]
struct Visits {
    /// When somebody came last by whom the time is restarted; 0: nobody.
    counted_ns: u64,
    is_any_open: bool,
}

impl Visits {
    fn take() -> Self {
        Self { counted_ns: visits::counted_ns(), is_any_open: visits::is_any_open() || timers::are_at_work() }
    }
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
        Self {
            serves: false,
            timeout_ns: 0,
            active_ns: 0,
            look_ns: NEVER,
            used_ns: 0,
            looked_ns: 0,
            slept_ns: 0,
            visited_ns: None,
            woken_ns: None,
        }
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

    fn grace_ns(&self) -> u64 {
        (self.timeout_ns / GRACE_PART).min(GRACE_MAX_NS)
    }

    /// Something that counts has come.
    fn came(&mut self, now_ns: u64) {
        (self.active_ns, self.woken_ns) = (now_ns, None);
    }

    /// The sandbox wakes. It is as idle as it was if all that has come since it hibernated is a visit. A window begins.
    fn wake(&mut self, now_ns: u64, cpu_ns: u64, visits: Visits) {
        if self.active_ns.max(visits.counted_ns) > self.slept_ns {
            return self.came(now_ns);
        }
        (self.woken_ns, self.looked_ns, self.used_ns) = (Some(now_ns), now_ns, cpu_ns);
        self.look_ns = now_ns.saturating_add(self.grace_ns());
    }

    /// Ends a window, in which the sandbox has used so much processor time, and begins another.
    fn look(&mut self, now_ns: u64, cpu_ns: u64, visits: Visits) -> Verdict {
        self.active_ns = self.active_ns.max(visits.counted_ns);
        self.woken_ns = self.woken_ns.filter(|_| self.active_ns <= self.slept_ns);
        let idle_from_ns = self.idle_from_ns(now_ns, visits);
        let window_ns = now_ns.saturating_sub(self.looked_ns);
        let used_ns = cpu_ns.saturating_sub(self.used_ns);
        // One that has been idle for long enough is judged by all that time, however late it was visited.
        let goes_on = self.woken_ns.is_none() && self.active_ns.saturating_add(self.timeout_ns) <= now_ns;
        if idle_from_ns <= now_ns || !goes_on {
            (self.looked_ns, self.used_ns) = (now_ns, cpu_ns);
        }
        let verdict = match idle_from_ns.saturating_sub(now_ns) {
            0 if used_ns > window_ns / BUSY_PART => Verdict::Busy,
            0 => Verdict::Idle,
            left_ns => Verdict::Wait(left_ns),
        };
        let next_ns = match verdict {
            Verdict::Busy if self.woken_ns.is_some() => self.grace_ns(),
            Verdict::Idle | Verdict::Busy => self.timeout_ns,
            Verdict::Wait(left_ns) => left_ns,
        };
        self.look_ns = now_ns.saturating_add(next_ns);
        verdict
    }

    /// When it is idle, if nothing comes until then and it does not compute.
    fn idle_from_ns(&self, now_ns: u64, visits: Visits) -> u64 {
        let visit_ends_ns =
            self.visited_ns.map_or(0, |visited_ns| visited_ns.saturating_add(self.grace_ns()));
        let Some(woken_ns) = self.woken_ns else {
            return self.active_ns.saturating_add(self.timeout_ns).max(visit_ends_ns);
        };
        let rest_ns = woken_ns.saturating_add(self.grace_ns()).max(visit_ends_ns);
        if visits.is_any_open {
            // Nobody is told when it is closed.
            let next_ns = now_ns.saturating_add(self.grace_ns());
            return rest_ns.max(next_ns.min(woken_ns.saturating_add(self.timeout_ns)));
        }
        rest_ns
    }
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

/// From now on the sandbox hibernates after so long a time; 0: not by itself, as at first. Visitors from some addresses do not
/// restart it. Called once, at boot.
pub fn set_timeout(timeout_ns: u64, ignored: Vec<AddressPrefix>) {
    if timeout_ns != 0 {
        if !ignored.is_empty() {
            visits::ignore(ignored);
        }
        let (now_ns, cpu_ns) = (time::monotonic_ns(), time::host_cpu_ns());
        HIBERNATION.idle.lock().set_timeout(timeout_ns, now_ns, cpu_ns);
    }
}

/// Something came from outside.
pub fn note_activity() {
    let mut watch = HIBERNATION.idle.lock();
    if watch.timeout_ns != 0 {
        watch.came(time::monotonic_ns());
    }
}

/// Something came from outside that may be a visit.
pub fn note_visit() {
    let mut watch = HIBERNATION.idle.lock();
    if watch.timeout_ns != 0 {
        watch.visited_ns = Some(time::monotonic_ns());
    }
}

/// The sandbox is about to hibernate. Nothing runs.
pub(super) fn sleep() {
    visits::begin_sleep();
    let now_ns = time::monotonic_ns();
    HIBERNATION.idle.lock().slept_ns = now_ns;
}

/// The sandbox wakes, before anything runs.
pub(super) fn wake() {
    let may_be_idle = visits::are_told_apart() || timers::have_woken_it();
    if !may_be_idle || HIBERNATION.idle.lock().timeout_ns == 0 {
        return note_activity();
    }
    let (now_ns, cpu_ns) = (time::monotonic_ns(), time::host_cpu_ns());
    let visits = Visits::take();
    HIBERNATION.idle.lock().wake(now_ns, cpu_ns, visits);
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
    let visits = Visits::take();
    let verdict = HIBERNATION.idle.lock().look(time::monotonic_ns(), cpu_ns, visits);
    // Who waits for processor time has something to do. A lock of a shared file keeps others waiting, whom nobody would tell that the
    // sandbox sleeps; and the end of a lock that others hold wakes no sleeper.
    let is_bound_by_locks = locks::holds_exclusive_host_lock() || locks::waits_for_host_lock();
    if verdict == Verdict::Idle && !sched::has_parked() && !is_bound_by_locks && timers::let_it_sleep() {
        host::report(REPORT_IDLE_TIMEOUT, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Visits = Visits { counted_ns: 0, is_any_open: false };

    /// Hibernates after 1000 ns, with a grace of 250 ns.
    fn watch() -> Watch {
        let mut watch = Watch::new();
        watch.set_timeout(1000, 5000, 0);
        watch
    }

    /// The same, woken by a visit at 10,000 ns.
    fn woken() -> Watch {
        let mut watch = watch();
        assert!(watch.begin_look(6000));
        assert_eq!(watch.look(6000, 0, NOBODY), Verdict::Idle);
        watch.slept_ns = 7000;
        watch.visited_ns = Some(9999);
        watch.wake(10_000, 0, NOBODY);
        watch
    }

    #[test]
    fn a_sandbox_is_idle_when_nothing_came_and_it_does_not_compute() {
        assert_eq!(watch().look(6000, 10, NOBODY), Verdict::Idle);
        assert_eq!(watch().look(6000, 11, NOBODY), Verdict::Busy);
        assert_eq!(watch().look(5999, 0, NOBODY), Verdict::Wait(1));
    }

    #[test]
    fn one_cpu_looks_when_it_is_time() {
        let mut watch = Watch::new();
        assert!(!watch.begin_look(u64::MAX - 1));
        watch.set_timeout(1000, 5000, 70);
        assert!(!watch.begin_look(5999));
        assert!(watch.begin_look(6000) && !watch.begin_look(6000));
        watch.came(5500);
        assert_eq!(watch.look(6000, 75, NOBODY), Verdict::Wait(500));
        assert!(!watch.begin_look(6499) && watch.begin_look(6500));
        assert_eq!(watch.look(6500, 80, NOBODY), Verdict::Idle);
        assert!(!watch.begin_look(7499) && watch.begin_look(7500));
        assert_eq!(watch.look(7500, 180, NOBODY), Verdict::Busy);
    }

    #[test]
    fn visits_do_not_restart_the_time_and_are_not_cut_off() {
        let mut watch = watch();
        watch.visited_ns = Some(5500);
        assert_eq!(watch.look(6000, 0, NOBODY), Verdict::Idle);
        let mut watch = self::watch();
        watch.visited_ns = Some(5900);
        assert_eq!(watch.look(6000, 15, NOBODY), Verdict::Wait(150));
        // It is judged by the whole time, and so computes.
        assert_eq!(watch.look(6150, 15, NOBODY), Verdict::Busy);
        assert!(!watch.begin_look(7149) && watch.begin_look(7150));
        // Who came by a socket that does not tell, and turns out to count.
        let other = Visits { counted_ns: 6800, ..NOBODY };
        assert_eq!(watch.look(7150, 15, other), Verdict::Wait(650));
        assert_eq!(watch.look(7800, 15, other), Verdict::Idle);
    }

    #[test]
    fn what_wakes_for_a_visit_sleeps_again_once_it_has_come_to_rest() {
        let mut watch = woken();
        assert!(!watch.begin_look(10_249) && watch.begin_look(10_250));
        watch.visited_ns = Some(10_100);
        assert_eq!(watch.look(10_250, 90, NOBODY), Verdict::Wait(100));
        assert!(!watch.begin_look(10_349) && watch.begin_look(10_350));
        assert_eq!(watch.look(10_350, 91, NOBODY), Verdict::Idle);
        // It did not sleep: the next look has time.
        assert!(!watch.begin_look(11_349) && watch.begin_look(11_350));
        // One that computes is left alone for as long as it does.
        let mut watch = woken();
        assert_eq!(watch.look(10_250, 90, NOBODY), Verdict::Busy);
        assert!(!watch.begin_look(10_499) && watch.begin_look(10_500));
        assert_eq!(watch.look(10_500, 92, NOBODY), Verdict::Idle);
    }

    #[test]
    fn a_connection_of_a_visitor_keeps_it_awake_for_the_timeout() {
        let open = Visits { is_any_open: true, ..NOBODY };
        let mut watch = woken();
        assert_eq!(watch.look(10_250, 0, open), Verdict::Wait(250));
        assert_eq!(watch.look(10_500, 0, NOBODY), Verdict::Idle, "it is closed");
        let mut watch = woken();
        assert_eq!(watch.look(10_900, 0, open), Verdict::Wait(100));
        assert_eq!(watch.look(11_000, 0, open), Verdict::Idle);
    }

    #[test]
    fn whoever_counts_restarts_the_time_after_a_visit_as_well() {
        let mut watch = woken();
        watch.came(10_100);
        assert_eq!(watch.look(10_250, 0, NOBODY), Verdict::Wait(850));
        let mut watch = woken();
        let other = Visits { counted_ns: 10_200, ..NOBODY };
        assert_eq!(watch.look(10_250, 0, other), Verdict::Wait(950));
        assert_eq!(watch.look(11_200, 0, other), Verdict::Idle);
        // What came while it slept woke it, whoever visits then.
        let mut watch = self::watch();
        watch.slept_ns = 7000;
        watch.came(9000);
        watch.visited_ns = Some(9500);
        watch.wake(10_000, 0, NOBODY);
        assert_eq!(watch.look(10_500, 0, NOBODY), Verdict::Wait(500));
        // So does what was taken while it slept, and noted late.
        let early = Visits { counted_ns: 9990, ..NOBODY };
        let mut watch = self::watch();
        watch.slept_ns = 7000;
        watch.wake(10_000, 0, early);
        assert_eq!(watch.look(10_500, 0, early), Verdict::Wait(500));
        let mut watch = woken();
        assert_eq!(watch.look(10_250, 0, early), Verdict::Wait(740));
    }

    #[test]
    fn the_grace_is_short() {
        let mut watch = Watch::new();
        for (timeout_ns, grace_ns) in [(4, 1), (2_000_000_000, GRACE_MAX_NS), (u64::MAX, GRACE_MAX_NS)] {
            watch.set_timeout(timeout_ns, 0, 0);
            assert_eq!(watch.grace_ns(), grace_ns);
        }
    }
}
