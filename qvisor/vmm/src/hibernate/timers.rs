//! The effect that deadlines of programs have on a sandbox that hibernates.
#![deny(unsafe_code)]

use std::time::Duration;

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

    /// The record of [`abi::boot::TAG_TIMERS`]; `None`: there is none.
    pub(crate) fn record(self) -> Option<[u8; 16]> {
        let (ahead, grid) = match self {
            Self::Sleep => return None,
            Self::Wake(time) => (time, Duration::ZERO),
            Self::Coalesce(time) => (time.min(Self::AHEAD), time),
        };
        let mut bytes = [0; 16];
        for (at, time) in [(0, ahead), (8, grid)] {
            let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            bytes[at..at + 8].copy_from_slice(&ns.to_le_bytes());
        }
        Some(bytes)
    }
}

/// The deadline that woke a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerWake {
    /// In its container; 0: it is not known.
    pub pid: u32,
    /// The name of the thread that waits.
    pub process: String,
    /// `wait` (in a call), `timerfd`, `posix-timer` or `itimer`.
    pub kind: String,
    /// How long before it was due it was set, and how late the wake was.
    pub ahead_us: u64,
    pub late_us: u64,
}

impl TimerWake {
    /// Reads the text of [`abi::hostcall::REPORT_TIMER`]. The kernel may say anything: what is not understood is 0.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut words = text.splitn(5, ' ');
        let mut next = || words.next().unwrap_or_default();
        let (pid, kind, ahead, late, process) = (next(), next(), next(), next(), next());
        Self {
            pid: pid.parse().unwrap_or(0),
            process: process.into(),
            kind: kind.into(),
            ahead_us: ahead.parse().unwrap_or(0),
            late_us: late.parse().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_becomes_the_kernels_rules() {
        let record = |timers: Timers| {
            timers.record().map(|bytes| {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                (word(0) / 1_000_000_000, word(8) / 1_000_000_000)
            })
        };
        assert_eq!(record(Timers::Sleep), None);
        assert_eq!(record(Timers::Wake(Timers::AHEAD)), Some((30, 0)));
        assert_eq!(record(Timers::Coalesce(Duration::from_mins(10))), Some((30, 600)));
        assert_eq!(record(Timers::Coalesce(Duration::from_secs(2))), Some((2, 2)));
    }

    #[test]
    fn a_wake_is_read_whatever_the_kernel_says() {
        let wake = TimerWake::read("7 timerfd 60000000 12 my job\n");
        assert_eq!((wake.pid, &*wake.kind, &*wake.process), (7, "timerfd", "my job\n"));
        assert_eq!((wake.ahead_us, wake.late_us), (60_000_000, 12));
        for text in ["", "x", "-1 wait 1 1", "1  2 3 4 5 6", "99999999999999999999 a b c d"] {
            assert_eq!(TimerWake::read(text).ahead_us.min(2), TimerWake::read(text).ahead_us);
        }
    }
}
