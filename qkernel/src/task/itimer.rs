//! Interval timers: `setitimer(2)`, `alarm(2)`, and the limit on processor time.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use super::limits::{RLIM_INFINITY, RLIMIT_CPU};
use super::posix_timer::{self, PosixTimers};
use super::process::Process;
use super::signal::{self, SIGALRM, SIGKILL, SIGPROF, SIGVTALRM, SIGXCPU, SigInfo, Source};
use super::{Task, usage};
use machine::sched::timer::{self, Alarm, Timer};
use machine::time::{self, NSEC};

/// Periods shorter than this are served late: signals that come faster would leave no time for anything else.
const PERIOD_MIN_NS: u64 = 50_000;
/// While processor time is watched, user code is interrupted at least this often.
const CPU_CHECK_MAX_NS: u64 = 4_000_000;
/// … and at most this often.
const CPU_CHECK_MIN_NS: u64 = 100_000;

/// Which timer of `setitimer(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Real,
    Virtual,
    Prof,
}

/// What a timer is set to, in nanoseconds from now; `value_ns` 0: off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    pub value_ns: u64,
    pub interval_ns: u64,
}

#[derive(Default)]
struct Real {
    /// Monotonic; 0: off.
    due_ns: u64,
    interval_ns: u64,
    /// Changes with every setting, so that an alarm that is firing meanwhile knows it is void.
    generation: u64,
    armed: Option<Timer>,
}

/// A timer on the process's processor time.
#[derive(Clone, Copy, Default)]
struct Cpu {
    /// In processor time; 0: off.
    due_ns: u64,
    interval_ns: u64,
}

impl Cpu {
    /// Whether it has run out at `now_ns`; if it has it is set anew, or off.
    fn expire(&mut self, now_ns: u64) -> bool {
        let expired = self.due_ns != 0 && now_ns >= self.due_ns;
        if expired {
            self.due_ns =
                if self.interval_ns == 0 { 0 } else { next_period(self.due_ns, self.interval_ns, now_ns).0 };
        }
        expired
    }

    fn setting(&self, now_ns: u64) -> Setting {
        Setting { value_ns: remaining(self.due_ns, now_ns), interval_ns: self.interval_ns }
    }
}

/// A process's timers. Locked before the signal lock.
#[derive(Default)]
pub struct Timers {
    real: Real,
    virt: Cpu,
    prof: Cpu,
    pub(super) posix: PosixTimers,
}

impl Timers {
    /// Disarms everything (the process ends).
    pub fn disarm_all(&mut self) {
        *self = Self {
            real: Real { generation: self.real.generation + 1, ..Default::default() },
            ..Default::default()
        };
    }

    /// Deletes POSIX timers (`execve(2)`).
    pub fn delete_posix(&mut self) {
        self.posix.clear();
    }

    fn cpu(&mut self, which: Which) -> &mut Cpu {
        if which == Which::Virtual { &mut self.virt } else { &mut self.prof }
    }
}

/// Nanoseconds until `due_ns` (0: off). An armed timer never says 0.
pub fn remaining(due_ns: u64, now_ns: u64) -> u64 {
    if due_ns == 0 { 0 } else { due_ns.saturating_sub(now_ns).max(1) }
}

/// The first multiple of `interval_ns` (not 0) after `due_ns` that lies ahead, and how many were missed before it.
pub fn next_period(due_ns: u64, interval_ns: u64, now_ns: u64) -> (u64, u64) {
    let missed = now_ns.saturating_sub(due_ns) / interval_ns;
    (due_ns.saturating_add(interval_ns.saturating_mul(missed + 1)), missed)
}

/// User and total processor time of a process, in nanoseconds.
pub fn cpu_times(process: &Process) -> (u64, u64) {
    let (user, system) = process.cpu_ticks();
    (usage::ticks_to_ns(user), usage::ticks_to_ns(user + system))
}

fn cpu_time(process: &Process, which: Which) -> u64 {
    let (user, total) = cpu_times(process);
    if which == Which::Virtual { user } else { total }
}

struct RealAlarm {
    process: Weak<Process>,
    generation: u64,
}

impl Alarm for RealAlarm {
    fn fire(&self, due_ns: u64) -> Option<u64> {
        let process = self.process.upgrade()?;
        let mut timers = process.timers.lock();
        let real = &mut timers.real;
        if real.generation != self.generation {
            return None;
        }
        real.due_ns = 0;
        if real.interval_ns != 0 {
            let now = time::monotonic_ns();
            real.due_ns = next_period(due_ns, real.interval_ns, now).0.max(now + PERIOD_MIN_NS);
        }
        let again = (real.due_ns != 0).then_some(real.due_ns);
        // Under the lock, so that nothing comes any more once a program has turned the timer off.
        signal::send_to_process(&process, SIGALRM, Source::Kernel);
        again
    }
}

/// Sets a timer; returns what was left of the former setting.
pub fn set(process: &Arc<Process>, which: Which, new: Setting) -> Setting {
    let old = if which == Which::Real { set_real(process, new) } else { set_cpu(process, which, new) };
    update_watch(process);
    old
}

fn set_real(process: &Arc<Process>, new: Setting) -> Setting {
    let now = time::monotonic_ns();
    let mut timers = process.timers.lock();
    let real = &mut timers.real;
    let old = Setting { value_ns: remaining(real.due_ns, now), interval_ns: real.interval_ns };
    real.generation += 1;
    real.armed = None;
    real.due_ns = 0;
    real.interval_ns = 0;
    if new.value_ns != 0 {
        real.due_ns = now.saturating_add(new.value_ns);
        real.interval_ns = new.interval_ns;
        let alarm = RealAlarm { process: Arc::downgrade(process), generation: real.generation };
        real.armed = Some(timer::alarm_at(real.due_ns, Arc::new(alarm)));
    }
    old
}

fn set_cpu(process: &Arc<Process>, which: Which, new: Setting) -> Setting {
    let now = cpu_time(process, which);
    let mut timers = process.timers.lock();
    let timer = timers.cpu(which);
    let old = timer.setting(now);
    let due_ns = if new.value_ns == 0 { 0 } else { now.saturating_add(new.value_ns) };
    *timer = Cpu { due_ns, interval_ns: if due_ns == 0 { 0 } else { new.interval_ns } };
    old
}

/// What is left of a timer.
pub fn get(process: &Process, which: Which) -> Setting {
    match which {
        Which::Real => {
            let timers = process.timers.lock();
            let value_ns = remaining(timers.real.due_ns, time::monotonic_ns());
            Setting { value_ns, interval_ns: timers.real.interval_ns }
        }
        _ => {
            let now = cpu_time(process, which);
            process.timers.lock().cpu(which).setting(now)
        }
    }
}

/// Says anew whether anything depends on the process's processor time. Called when timers or limits change.
pub fn update_watch(process: &Process) {
    let timers = process.timers.lock();
    let timed = timers.virt.due_ns != 0 || timers.prof.due_ns != 0 || timers.posix.watches_cpu();
    let limited = process.limits.lock().soft(RLIMIT_CPU) != RLIM_INFINITY;
    process.cpu_watch.store(timed || limited, Ordering::Relaxed);
}

/// When the current task's user code is to be interrupted at the latest, so that timers on processor time run out
/// near their time (monotonic; `u64::MAX`: no such timers).
pub fn check_deadline(task: &Task) -> u64 {
    let process = &task.process;
    if !process.cpu_watch.load(Ordering::Relaxed) {
        return u64::MAX;
    }
    let (user, total) = cpu_times(process);
    let threads = process.tasks.lock().len().max(1) as u64;
    let mut least = CPU_CHECK_MAX_NS;
    let timers = process.timers.lock();
    for (due, now) in [(timers.virt.due_ns, user), (timers.prof.due_ns, total)] {
        if due != 0 {
            least = least.min(due.saturating_sub(now) / threads);
        }
    }
    time::monotonic_ns() + least.max(CPU_CHECK_MIN_NS)
}

/// Fires the timers on processor time that have run out. Called after user code of `task` ran.
pub fn check(task: &Arc<Task>) {
    let process = &task.process;
    if !process.cpu_watch.load(Ordering::Relaxed) {
        return;
    }
    let (user, total) = cpu_times(process);
    {
        let mut timers = process.timers.lock();
        if timers.virt.expire(user) {
            signal::send_to_process(process, SIGVTALRM, Source::Kernel);
        }
        if timers.prof.expire(total) {
            signal::send_to_process(process, SIGPROF, Source::Kernel);
        }
        posix_timer::check_cpu(process, &mut timers.posix);
    }
    check_limit(process, total / NSEC);
    update_watch(process);
}

/// `RLIMIT_CPU`: `SIGXCPU` at the soft limit and every second after it, `SIGKILL` at the hard one.
fn check_limit(process: &Arc<Process>, used_seconds: u64) {
    let signal = {
        let mut limits = process.limits.lock();
        let limit = &mut limits.0[RLIMIT_CPU];
        if used_seconds >= limit.hard {
            SIGKILL
        } else if used_seconds >= limit.soft {
            limit.soft = used_seconds + 1;
            SIGXCPU
        } else {
            return;
        }
    };
    signal::send_to_process(process, signal, Source::Kernel);
}

/// A signal was taken from its queue: if it is a timer's, the timer goes on.
pub fn signal_taken(process: &Arc<Process>, info: SigInfo) -> SigInfo {
    match info.source {
        Source::Timer { .. } => posix_timer::signal_taken(process, info),
        _ => info,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_that_were_missed_are_counted() {
        assert_eq!(next_period(100, 10, 100), (110, 0));
        assert_eq!(next_period(100, 10, 109), (110, 0));
        assert_eq!(next_period(100, 10, 135), (140, 3));
        assert_eq!(next_period(100, u64::MAX, 200), (u64::MAX, 0));
    }

    #[test]
    fn a_processor_timer_expires_once_or_periodically() {
        let mut once = Cpu { due_ns: 50, interval_ns: 0 };
        assert!(!once.expire(49));
        assert!(once.expire(50));
        assert!(!once.expire(1000));
        let mut periodic = Cpu { due_ns: 50, interval_ns: 20 };
        assert!(periodic.expire(95));
        assert_eq!(periodic.setting(95), Setting { value_ns: 15, interval_ns: 20 });
    }

    #[test]
    fn an_armed_timer_never_says_zero() {
        assert_eq!(remaining(0, 5), 0);
        assert_eq!(remaining(3, 5), 1);
        assert_eq!(remaining(9, 5), 4);
    }
}
