//! The effect that deadlines of programs have on a sandbox that hibernates.
#![deny(unsafe_code)]

use std::time::Duration;

use abi::records::Timers as Rules;
use abi::report::{DueTimer, TimerKind};
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timers {
    /// It sleeps on.
    #[default]
    Sleep,
    /// A deadline that was set at least so long before wakes it.
    Wake(Duration),
    /// A deadline wakes it that was set at least [`Self::AHEAD`] before, or this long if that is less. It wakes late:
    /// at a multiple of this of the host's monotonic clock, at which other sandboxes wake as well.
    Coalesce(Duration),
}

impl Timers {
    /// How long before a deadline it must have been set, if nobody says.
    pub const AHEAD: Duration = Duration::from_secs(30);
    /// The shortest and the longest time of either way.
    pub const LEAST: Duration = Duration::from_secs(1);
    pub const MOST: Duration = Duration::from_hours(24);

    /// How long it sleeps between two wakes at least; `None`: no deadline wakes it.
    #[must_use]
    pub fn gap(self) -> Option<Duration> {
        match self {
            Self::Sleep => None,
            Self::Wake(time) | Self::Coalesce(time) => Some(time),
        }
    }

    /// Whether it may wake the sandbox more often than another setting.
    #[must_use]
    pub fn wakes_more_than(self, other: Self) -> bool {
        match (self.gap(), other.gap()) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(own), Some(other)) => own < other,
        }
    }

    /// The record of it; `None`: there is none.
    pub(crate) fn record(self) -> Option<Rules> {
        let (ahead, grid) = match self {
            Self::Sleep => return None,
            Self::Wake(time) => (time, Duration::ZERO),
            Self::Coalesce(time) => (time.min(Self::AHEAD), time),
        };
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Some(Rules { ahead_ns: ns(ahead), grid_ns: ns(grid) })
    }
}

/// The deadline that woke a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerWake {
    /// In its container; 0: it is not known.
    pub pid: u32,
    /// The name of the thread that waits.
    pub process: String,
    /// `wait` (in a call), `timerfd`, `posix-timer`, `itimer` or `unfinished` (something was left to do).
    pub kind: String,
    /// How long before it was due it was set, and how late the wake was.
    pub ahead_us: u64,
    pub late_us: u64,
}

impl From<&DueTimer> for TimerWake {
    fn from(timer: &DueTimer) -> Self {
        let kind = match timer.kind() {
            Some(TimerKind::Wait) => "wait",
            Some(TimerKind::TimerFd) => "timerfd",
            Some(TimerKind::PosixTimer) => "posix-timer",
            Some(TimerKind::Itimer) => "itimer",
            Some(TimerKind::Unfinished) | None => "unfinished",
        };
        let end = timer.name.iter().position(|byte| *byte == 0).unwrap_or(timer.name.len());
        Self {
            pid: timer.pid,
            process: String::from_utf8_lossy(&timer.name[..end]).into_owned(),
            kind: kind.into(),
            ahead_us: timer.ahead_us,
            late_us: timer.late_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_becomes_the_kernels_rules() {
        let record = |timers: Timers| {
            timers.record().map(|rules| (rules.ahead_ns / 1_000_000_000, rules.grid_ns / 1_000_000_000))
        };
        assert_eq!(record(Timers::Sleep), None);
        assert_eq!(record(Timers::Wake(Timers::AHEAD)), Some((30, 0)));
        assert_eq!(record(Timers::Coalesce(Duration::from_mins(10))), Some((30, 600)));
        assert_eq!(record(Timers::Coalesce(Duration::from_secs(2))), Some((2, 2)));
    }

    #[test]
    fn a_wake_is_shown_whatever_the_name_holds() {
        let mut timer = DueTimer {
            ahead_us: 60_000_000,
            late_us: 12,
            pid: 7,
            kind: TimerKind::TimerFd as u32,
            name: [0; 16],
        };
        timer.name[..7].copy_from_slice(b"my job\n");
        let wake = TimerWake::from(&timer);
        assert_eq!((wake.pid, &*wake.kind, &*wake.process), (7, "timerfd", "my job\n"));
        assert_eq!((wake.ahead_us, wake.late_us), (60_000_000, 12));
        let odd = TimerWake::from(&DueTimer { kind: 0, name: [0xff; 16], ..timer });
        assert_eq!((&*odd.kind, odd.process), ("unfinished", "\u{fffd}".repeat(16)));
    }
}
