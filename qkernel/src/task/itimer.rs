//! Interval timers: `setitimer(2)`, `alarm(2)`, and the limit on processor time.

use crate::task::signal::send::{send_to_own_process, send_to_process};
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;

use abi::report::TimerKind;

use crate::limits::RLIMIT_CPU;
use crate::signals::{SIGALRM, SIGKILL, SIGPROF, SIGVTALRM, SIGXCPU, Source};
use crate::task::core::Task;
use crate::task::posix_timer;
use crate::task::process::Process;
use crate::task::signal::info::SigInfo;
use crate::task::timers::{Cpu, Setting, Which, next_period, remaining};
use machine::sched::timer;
use machine::sched::timer::{Alarm, Waiter};
use machine::time;
use machine::time::NSEC;

/// The processor time that a timer counts.
fn cpu_time(process: &Process, which: Which) -> u64 {
    let (user, total) = process.cpu_times();
    if which == Which::Virtual { user } else { total }
}

/// Periods shorter than this are served late: signals that come faster would leave no time for anything else.
const PERIOD_MIN_NS: u64 = 50_000;
/// While processor time is watched, user code is interrupted at least this often.
const CPU_CHECK_MAX_NS: u64 = 4_000_000;
/// … and at most this often.
const CPU_CHECK_MIN_NS: u64 = 100_000;

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
        send_to_process(&process, SIGALRM, Source::Kernel);
        again
    }

    fn waiter(&self) -> Option<Waiter> {
        let task = self.process.upgrade()?.any_task()?;
        Some(Waiter { task: Some(task), kind: TimerKind::Itimer })
    }
}

/// Sets a timer; returns what was left of the former setting.
pub fn set(process: &Arc<Process>, which: Which, new: Setting) -> Setting {
    let old = if which == Which::Real { set_real(process, new) } else { set_cpu(process, which, new) };
    process.update_watch();
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
    // As on Linux, and other than of real time, a timer that is off keeps its interval.
    *timer = Cpu { due_ns, interval_ns: new.interval_ns };
    old
}

/// The time that is left of a timer.
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

/// When the current task's user code is to be interrupted at the latest, so that timers on processor time run out
/// near their time (monotonic; `u64::MAX`: no such timers).
pub fn check_deadline(task: &Task) -> u64 {
    let process = &task.process;
    if !process.cpu_watch.load(Ordering::Relaxed) {
        return u64::MAX;
    }
    let (user, total) = process.cpu_times();
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
    let (user, total) = process.cpu_times();
    {
        let mut timers = process.timers.lock();
        if timers.virt.expire(user) {
            send_to_own_process(task, SIGVTALRM, Source::Kernel);
        }
        if timers.prof.expire(total) {
            send_to_own_process(task, SIGPROF, Source::Kernel);
        }
        posix_timer::check_cpu(process, &mut timers.posix);
    }
    check_limit(task, total / NSEC);
    process.update_watch();
}

/// `RLIMIT_CPU`: `SIGXCPU` at the soft limit and every second after it, `SIGKILL` at the hard one.
fn check_limit(task: &Arc<Task>, used_seconds: u64) {
    let signal = {
        let mut limits = task.process.limits.lock();
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
    send_to_own_process(task, signal, Source::Kernel);
}

/// A signal was taken from its queue: if it is a timer's, the timer goes on.
pub fn signal_taken(process: &Arc<Process>, info: SigInfo) -> SigInfo {
    match info.source {
        Source::Timer { .. } => posix_timer::signal_taken(process, info),
        _ => info,
    }
}
