//! POSIX timers: `timer_create(2)` and its relatives.
//!
//! A periodic timer goes on when its signal is taken, not when it runs out: so it never sends faster than signals are
//! handled, and what was missed meanwhile is its overrun.

use crate::task::signal::send::send;
use alloc::sync::{Arc, Weak};

use abi::report::TimerKind;

use crate::limits::RLIMIT_SIGPENDING;
use crate::signals::Source;
use crate::task::clock::Clock;
use crate::task::process::Process;
use crate::task::signal::info::SigInfo;
use crate::task::signal::queue::queued;
use crate::task::signal::send::Sent;
use crate::task::timers::{Notify, PosixTimer, PosixTimers, Setting, next_period};
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::sched::timer;
use machine::sched::timer::{Alarm, Waiter};

/// A timer whose signal is ignored looks again this much later at the earliest.
const IGNORED_PERIOD_MIN_NS: u64 = 4_000_000;
/// Most timers of a process, whatever its limits say.
const TIMERS_MAX: usize = 65_536;
/// Kernel memory of one timer, with its alarm and its signal.
const TIMER_BYTES: usize = 1024;

struct TimerAlarm {
    process: Weak<Process>,
    id: u32,
    generation: u64,
}

impl Alarm for TimerAlarm {
    fn fire(&self, _due_ns: u64) -> Option<u64> {
        let process = self.process.upgrade()?;
        let mut timers = process.timers.lock();
        let timer = timers.posix.timers.get_mut(&self.id)?;
        if timer.generation != self.generation {
            return None;
        }
        if timer.real_ns != 0 && timer.clock.now() < timer.real_ns {
            timer.due_ns = timer.clock.monotonic_at(timer.real_ns)?;
            return Some(timer.due_ns);
        }
        timer.expire(&process, self.id);
        (timer.due_ns != 0 && !timer.waiting).then_some(timer.due_ns)
    }

    fn waiter(&self) -> Option<Waiter> {
        let task = self.process.upgrade()?.any_task()?;
        Some(Waiter { task: Some(task), kind: TimerKind::PosixTimer })
    }
}

impl PosixTimer {
    /// It has run out: sends its signal. The caller holds the timers' lock, so that nothing comes any more once a
    /// program has turned the timer off.
    fn expire(&mut self, process: &Arc<Process>, id: u32) {
        self.real_ns = 0;
        let sent = match &self.notify {
            Some(notify) => notify.send(process, id),
            None => Sent::Ignored,
        };
        self.waiting = sent == Sent::Done;
        if self.interval_ns == 0 {
            self.due_ns = 0;
        } else if !self.waiting {
            let now = self.now();
            let next = next_period(self.due_ns, self.interval_ns, now).0;
            self.due_ns = next.max(now + IGNORED_PERIOD_MIN_NS);
        }
    }

    /// Starts the kernel's timer for `due_ns`.
    fn arm(&mut self, process: &Arc<Process>, id: u32) {
        self.generation += 1;
        self.armed = None;
        if self.due_ns != 0 && self.notify.is_some() && !self.clock.is_cpu() {
            let alarm = TimerAlarm { process: Arc::downgrade(process), id, generation: self.generation };
            self.armed = Some(timer::alarm_at(self.due_ns, Arc::new(alarm)));
        }
    }
}

impl Notify {
    fn send(&self, process: &Arc<Process>, id: u32) -> Sent {
        let value = self.value.unwrap_or(u64::from(id));
        let info = SigInfo { signal: self.signal, source: Source::Timer { id, overrun: 0, value } };
        match &self.task {
            None => send(process, None, info),
            Some(task) => match task.upgrade() {
                Some(task) => send(process, Some(&task), info),
                None => Sent::Ignored,
            },
        }
    }
}

/// Makes a timer; returns its id. `EAGAIN` when the process has too many.
pub fn create(process: &Process, clock: Clock, notify: Option<Notify>) -> Result<u32> {
    account::check(TIMER_BYTES).map_err(|_| Errno::EAGAIN)?;
    let limit = usize::try_from(process.limits.lock().soft(RLIMIT_SIGPENDING)).unwrap_or(TIMERS_MAX);
    let mut timers = process.timers.lock();
    let posix = &mut timers.posix;
    // A timer has a place among the signals that wait.
    if posix.timers.len() + queued() >= limit.min(TIMERS_MAX) {
        return Err(Errno::EAGAIN);
    }
    while posix.timers.contains_key(&posix.next_id) {
        posix.next_id = (posix.next_id + 1) & 0x7fff_ffff;
    }
    let id = posix.next_id;
    posix.next_id = (id + 1) & 0x7fff_ffff;
    let timer = PosixTimer {
        clock,
        notify,
        due_ns: 0,
        real_ns: 0,
        interval_ns: 0,
        generation: 0,
        armed: None,
        waiting: false,
        overrun: 0,
    };
    posix.timers.insert(id, timer);
    Ok(id)
}

/// Sets a timer, to a time of its clock if `absolute`; returns what was left of the former setting.
pub fn set(process: &Arc<Process>, id: u32, new: Setting, absolute: bool) -> Result<Setting> {
    let old = {
        let mut timers = process.timers.lock();
        let timer = timers.posix.get(id)?;
        let old = timer.setting();
        timer.interval_ns = new.interval_ns;
        timer.waiting = false;
        timer.real_ns = 0;
        timer.due_ns = match (new.value_ns, absolute) {
            (0, _) => 0,
            (ns, false) => timer.now().saturating_add(ns),
            (ns, true) => timer.clock.monotonic_at(ns).unwrap_or(ns).max(1),
        };
        if absolute && matches!(timer.clock, Clock::Real) {
            timer.real_ns = new.value_ns;
        }
        timer.arm(process, id);
        old
    };
    process.update_watch();
    Ok(old)
}

/// The time that is left of a timer.
pub fn get(process: &Process, id: u32) -> Result<Setting> {
    process.timers.lock().posix.get(id).map(|timer| timer.setting())
}

/// How many expiries the signal that was taken last stood for, beside its own.
pub fn overrun(process: &Process, id: u32) -> Result<u32> {
    process.timers.lock().posix.get(id).map(|timer| timer.overrun)
}

/// Deletes a timer.
pub fn delete(process: &Process, id: u32) -> Result<()> {
    let deleted = process.timers.lock().posix.timers.remove(&id);
    deleted.map(drop).ok_or(Errno::EINVAL)
}

/// Fires those on processor time that have run out.
pub fn check_cpu(process: &Arc<Process>, posix: &mut PosixTimers) {
    for (id, timer) in &mut posix.timers {
        if timer.due_ns != 0 && timer.clock.is_cpu() && !timer.waiting && timer.clock.now() >= timer.due_ns {
            timer.expire(process, *id);
        }
    }
}

/// A timer's signal was taken from its queue: the timer goes on, and the signal learns what was missed.
pub fn signal_taken(process: &Arc<Process>, info: SigInfo) -> SigInfo {
    let Source::Timer { id, overrun, value } = info.source else { return info };
    let mut timers = process.timers.lock();
    let Ok(timer) = timers.posix.get(id) else { return info };
    let mut missed = 0;
    if timer.waiting && timer.interval_ns != 0 && timer.due_ns != 0 {
        (timer.due_ns, missed) = next_period(timer.due_ns, timer.interval_ns, timer.now());
        timer.arm(process, id);
    }
    timer.waiting = false;
    let missed = u32::try_from(missed).unwrap_or(u32::MAX);
    timer.overrun = overrun.saturating_add(missed).min(i32::MAX as u32);
    SigInfo { source: Source::Timer { id, overrun: timer.overrun, value }, ..info }
}
