//! Whether the sandbox has anything to do: when it comes to rest after a wake, and when it has been at rest for so long
//! that it should hibernate.
//!
//! Visits ([`crate::net::visits`]) do not restart the time. What woke for one is as idle as before the sleep, and hibernates again
//! once nothing has come for a short while, the *grace*, no connection of such a visitor is open that was accepted since, and the
//! sandbox does not compute. A connection keeps it awake for no longer than the timeout.

use abi::report::{Kept, KeptBy, Report};

use super::awaited::Facts;
use super::facts::{self, Outbound};
use super::{HIBERNATION, timers};
use crate::fs::locks;
use crate::net::talks;
use crate::net::visits;
use abi::address::AddressPrefix;
use alloc::vec::Vec;
use machine::host;
use machine::sched;
use machine::sched::pause;
use machine::sched::set_times;
use machine::time;

/// Processor time in a window below which a sandbox counts as idle: one part in this many of the window.
const BUSY_PART: u64 = 100;
const NEVER: u64 = u64::MAX;
/// The grace: this part of the timeout, and at most so long.
const GRACE_PART: u64 = 4;
const GRACE_MAX_NS: u64 = 500_000_000;
/// While somebody outside waits for something one looks again this often: as often as the grace, and not more often than this.
const KEPT_MIN_NS: u64 = 50_000_000;

/// When a sandbox falls asleep by itself.
pub struct Settings {
    /// After so long a time without anything from outside; 0: never.
    pub timeout_ns: u64,
    /// Visitors from these addresses do not restart the time.
    pub ignored: Vec<AddressPrefix>,
    /// For so long beyond the timeout something keeps it awake of which nobody knows whether it ends.
    pub awake_at_most_ns: u64,
    pub outbound: Outbound,
}

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
    /// See [`Settings`].
    awake_at_most_ns: u64,
    outbound: Outbound,
    /// The last report of what keeps it awake.
    told: Option<Kept>,
    /// It was found idle, and nothing has come since.
    is_found_idle: bool,
    /// The request to hibernate that followed from that.
    order: Option<i64>,
}

/// The visits so far: when the last one came that counts, and whether others, or a timer's work, are open.
#[derive(Clone, Copy, Default)]
struct Visits {
    /// When somebody came last by whom the time is restarted; 0: nobody.
    counted_ns: u64,
    /// Something is open that was begun for one by whom it is not.
    is_any_open: bool,
    /// It was begun for a timer.
    is_at_work: bool,
}

impl Visits {
    fn take() -> Self {
        let is_at_work = timers::are_at_work();
        let is_any_open = visits::is_any_open() || is_at_work;
        Self { counted_ns: visits::counted_ns(), is_any_open, is_at_work }
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
            awake_at_most_ns: 0,
            outbound: Outbound::Awake,
            told: None,
            is_found_idle: false,
            order: None,
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

    /// Something comes after all; result: the request that is not to be carried out any more.
    fn interrupt(&mut self) -> Option<i64> {
        self.is_found_idle = false;
        self.order.take()
    }

    /// A request to hibernate has come in because it was found idle; result: the same as of [`Watch::interrupt`].
    fn ordered(&mut self, request: i64) -> Option<i64> {
        self.order = self.is_found_idle.then_some(request);
        (!self.is_found_idle).then_some(request)
    }

    /// Until when a wait may begin that counts as one for which somebody outside waits, if it may be one of many.
    fn trusted_until_ns(&self) -> u64 {
        let until_ns = self.active_ns.saturating_add(self.timeout_ns).saturating_add(self.awake_at_most_ns);
        // What does not restart the time gives no more of it either, but for what is begun right after a wake.
        self.woken_ns.map_or(until_ns, |woken_ns| until_ns.max(woken_ns.saturating_add(self.timeout_ns)))
    }

    /// Something keeps it awake though it is idle: one looks again soon.
    fn kept(&mut self, now_ns: u64) {
        self.is_found_idle = false;
        self.look_ns = now_ns.saturating_add(self.grace_ns().max(KEPT_MIN_NS));
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
    if let Some(visitor) = talks::take_visitor() {
        host::report(&Report::WokenFor { who: facts::tell_visitor(visitor) });
    }
    let may_rest = HIBERNATION.idle.lock().serves && sched::is_at_rest();
    if may_rest && core::mem::take(&mut HIBERNATION.idle.lock().serves) {
        host::report(&Report::Idle);
    }
}

/// From now on the sandbox hibernates by itself as the settings say. Called once under each VMM; where one says nothing, what the former said
/// holds.
pub fn set(settings: Settings) {
    if settings.timeout_ns != 0 {
        if !settings.ignored.is_empty() {
            visits::ignore(settings.ignored);
        }
        talks::watch();
        set_times::keep();
        let (now_ns, cpu_ns) = (time::monotonic_ns(), time::host_cpu_ns());
        let mut watch = HIBERNATION.idle.lock();
        (watch.awake_at_most_ns, watch.outbound) = (settings.awake_at_most_ns, settings.outbound);
        watch.set_timeout(settings.timeout_ns, now_ns, cpu_ns);
    }
}

/// Something came from outside.
pub fn note_activity() {
    note(|watch| watch.came(time::monotonic_ns()));
}

/// Notes that something came, unless nobody asks.
fn note(how: impl FnOnce(&mut Watch)) {
    let mut watch = HIBERNATION.idle.lock();
    if watch.timeout_ns == 0 {
        return;
    }
    how(&mut watch);
    let was_found_idle = watch.is_found_idle;
    let order = watch.interrupt();
    if was_found_idle {
        watch.kept(time::monotonic_ns());
    }
    drop(watch);
    order.into_iter().for_each(super::withdraw);
}

/// The host asks for the hibernation, with this request, that [`look`] proposed.
pub fn ordered(request: i64) {
    let late = HIBERNATION.idle.lock().ordered(request);
    late.into_iter().for_each(super::withdraw);
}

/// Something came from outside that may be a visit.
pub fn note_visit() {
    note(|watch| watch.visited_ns = Some(time::monotonic_ns()));
}

/// The sandbox is about to hibernate. Nothing runs.
pub(super) fn sleep() {
    visits::begin_sleep();
    let now_ns = time::monotonic_ns();
    let mut watch = HIBERNATION.idle.lock();
    watch.slept_ns = now_ns;
    watch.interrupt();
    watch.told = None;
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
    match verdict {
        // Who waits for processor time has something to do.
        Verdict::Idle if sched::has_parked() => tell(Some(Kept::by(KeptBy::Computes))),
        Verdict::Idle if is_bound_by_locks() => stay_awake(KeptBy::Lock),
        Verdict::Idle => sleep_unless_awaited(),
        Verdict::Busy => tell(Some(Kept::by(KeptBy::Computes))),
        Verdict::Wait(_) if visits.is_at_work => tell(Some(Kept::by(KeptBy::Timer))),
        Verdict::Wait(_) => tell(None),
    }
}

/// Whether the sandbox has to do with locks of shared files: one that it has keeps others waiting, whom nobody would tell that it
/// sleeps, and the end of one that others have wakes no sleeper.
fn is_bound_by_locks() -> bool {
    locks::holds_exclusive_host_lock() || locks::waits_for_host_lock()
}

/// Something keeps the sandbox awake.
fn stay_awake(by: KeptBy) {
    HIBERNATION.idle.lock().kept(time::monotonic_ns());
    tell(Some(Kept::by(by)));
}

/// Has the sandbox hibernated unless somebody outside waits for something that would not wake it.
fn sleep_unless_awaited() {
    let now_ns = time::monotonic_ns();
    let (outbound, trusted_until_ns, timeout_ns) = {
        let mut watch = HIBERNATION.idle.lock();
        // What comes from now on is not among the facts.
        watch.is_found_idle = true;
        (watch.outbound, watch.trusted_until_ns(), watch.timeout_ns)
    };
    let settled_ns = now_ns.saturating_sub(timeout_ns / 2);
    let times = Facts { trusted_until_ns, now_ns, settled_ns, ..Facts::default() };
    let Some(mut gathered) = facts::gather(outbound, times) else {
        return HIBERNATION.idle.lock().kept(now_ns);
    };
    if let Some(keeps) = gathered.facts.judge() {
        gathered.end_what_is_over();
        HIBERNATION.idle.lock().kept(now_ns);
        return tell(Some(gathered.tell(keeps)));
    }
    // It may have been kept awake for as long as that goes, and is not any more.
    gathered.facts.trusted_until_ns = u64::MAX;
    let given_up = gathered.facts.judge().map(|keeps| Kept { given_up: true, ..gathered.tell(keeps) });
    gathered.facts.trusted_until_ns = trusted_until_ns;
    gathered.end_what_is_over();
    if gathered.is_short || !HIBERNATION.idle.lock().is_found_idle {
        return HIBERNATION.idle.lock().kept(now_ns);
    }
    if !timers::let_it_sleep() {
        return stay_awake(KeptBy::Timer);
    }
    tell(given_up);
    host::report(&Report::IdleTimeout);
}

/// Tells the host what keeps the sandbox awake, if that is news; `None`: nothing does.
fn tell(kept: Option<Kept>) {
    if core::mem::replace(&mut HIBERNATION.idle.lock().told, kept) != kept {
        host::report(&Report::KeptAwake { kept });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Visits = Visits { counted_ns: 0, is_any_open: false, is_at_work: false };

    /// Hibernates after 1000 ns, with a grace of 250 ns.
    fn watch() -> Watch {
        let mut watch = Watch::new();
        watch.set_timeout(1000, 5000, 0);
        watch
    }

    /// A watch as [`watch`] makes it, of a sandbox that was woken by a visit at 10,000 ns.
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
    fn what_comes_after_it_was_found_idle_withdraws_the_request_to_hibernate() {
        let mut watch = watch();
        watch.is_found_idle = true;
        assert_eq!(watch.ordered(7), None);
        assert_eq!((watch.interrupt(), watch.interrupt()), (Some(7), None));
        // The request comes in only then.
        watch.is_found_idle = true;
        assert_eq!((watch.interrupt(), watch.ordered(8)), (None, Some(8)));
    }

    #[test]
    fn what_may_repeat_counts_while_it_begins_soon_enough() {
        let mut watch = watch();
        watch.awake_at_most_ns = 300;
        assert_eq!(watch.trusted_until_ns(), 5000 + 1000 + 300);
        watch.woken_ns = Some(20_000);
        assert_eq!(watch.trusted_until_ns(), 21_000);
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
