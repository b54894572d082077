//! A process's timers: `setitimer(2)` and POSIX timers.

use alloc::collections::BTreeMap;
use alloc::sync::Weak;

use machine::errno::{Errno, Result};
use machine::sched::timer::Timer;
use machine::time;

use crate::task::clock::Clock;
use crate::task::core::Task;

/// Which timer of `setitimer(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Real,
    Virtual,
    Prof,
}

/// The setting of a timer, in nanoseconds from now; `value_ns` 0: off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    pub value_ns: u64,
    pub interval_ns: u64,
}

#[derive(Default)]
pub(super) struct Real {
    /// Monotonic; 0: off.
    pub(super) due_ns: u64,
    pub(super) interval_ns: u64,
    /// Changes with every setting, so that an alarm that is firing meanwhile knows it is void.
    pub(super) generation: u64,
    pub(super) armed: Option<Timer>,
}

/// A timer on the process's processor time.
#[derive(Clone, Copy, Default)]
pub(super) struct Cpu {
    /// In processor time; 0: off.
    pub(super) due_ns: u64,
    pub(super) interval_ns: u64,
}

impl Cpu {
    /// Whether it has run out at `now_ns`; if it has it is set anew, or off.
    pub(super) fn expire(&mut self, now_ns: u64) -> bool {
        let expired = self.due_ns != 0 && now_ns >= self.due_ns;
        if expired {
            self.due_ns =
                if self.interval_ns == 0 { 0 } else { next_period(self.due_ns, self.interval_ns, now_ns).0 };
        }
        expired
    }

    pub(super) fn setting(&self, now_ns: u64) -> Setting {
        Setting { value_ns: remaining(self.due_ns, now_ns), interval_ns: self.interval_ns }
    }
}

/// A process's timers. Locked before the signal lock.
#[derive(Default)]
pub struct Timers {
    pub(super) real: Real,
    pub(super) virt: Cpu,
    pub(super) prof: Cpu,
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

    /// Whether one of them depends on the process's processor time.
    pub fn watch_cpu(&self) -> bool {
        self.virt.due_ns != 0 || self.prof.due_ns != 0 || self.posix.watches_cpu()
    }

    /// Deletes POSIX timers (`execve(2)`).
    pub fn delete_posix(&mut self) {
        self.posix.clear();
    }

    pub(super) fn cpu(&mut self, which: Which) -> &mut Cpu {
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

/// The signal of a timer that runs out.
pub struct Notify {
    pub signal: u32,
    /// `si_value`; `None`: the timer's id.
    pub value: Option<u64>,
    /// The thread it goes to; `None`: to the process.
    pub task: Option<Weak<Task>>,
}

pub(super) struct PosixTimer {
    pub(super) clock: Clock,
    /// `None`: it only counts down.
    pub(super) notify: Option<Notify>,
    /// Monotonic, or for a clock of processor time in that; 0: off.
    pub(super) due_ns: u64,
    /// The time of the real-time clock it was set to, which counts even if that clock is set; 0: none.
    pub(super) real_ns: u64,
    pub(super) interval_ns: u64,
    /// Changes with every setting, so that an alarm that is firing meanwhile knows it is void.
    pub(super) generation: u64,
    pub(super) armed: Option<Timer>,
    /// Its signal is pending.
    pub(super) waiting: bool,
    /// Of the signal that was taken last.
    pub(super) overrun: u32,
}

/// A process's POSIX timers.
#[derive(Default)]
pub struct PosixTimers {
    pub(super) timers: BTreeMap<u32, PosixTimer>,
    pub(super) next_id: u32,
}

impl PosixTimers {
    /// Deletes all.
    pub fn clear(&mut self) {
        self.timers.clear();
    }

    /// Whether one is armed on processor time.
    pub fn watches_cpu(&self) -> bool {
        self.timers.values().any(|timer| timer.due_ns != 0 && timer.clock.is_cpu())
    }

    pub(super) fn get(&mut self, id: u32) -> Result<&mut PosixTimer> {
        self.timers.get_mut(&id).ok_or(Errno::EINVAL)
    }
}

impl PosixTimer {
    /// The time its `due_ns` is compared with.
    pub(super) fn now(&self) -> u64 {
        if self.clock.is_cpu() { self.clock.now() } else { time::monotonic_ns() }
    }

    pub(super) fn setting(&self) -> Setting {
        let now = self.now();
        let due = if self.interval_ns != 0 && self.due_ns != 0 && self.due_ns <= now {
            next_period(self.due_ns, self.interval_ns, now).0
        } else {
            self.due_ns
        };
        // One that only counts down isn't turned off when it has run out.
        let over = self.interval_ns == 0 && due <= now && self.notify.is_none();
        Setting { value_ns: if over { 0 } else { remaining(due, now) }, interval_ns: self.interval_ns }
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
