//! Pending signals: standard ones coalesce, real-time ones queue.

use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::signals::{SIGRTMIN, SYNCHRONOUS, Source, bit};
use crate::task::signal::info::SigInfo;

/// Queued signals in the whole sandbox.
static QUEUED: AtomicUsize = AtomicUsize::new(0);
/// Most of them, whatever `RLIMIT_SIGPENDING` says.
const QUEUED_MAX: usize = 65_536;

/// Signals that are queued in the whole sandbox.
pub fn queued() -> usize {
    QUEUED.load(Ordering::Relaxed)
}

/// A place in the count of queued signals, given back when dropped.
struct Slot;

impl Slot {
    fn take(limit: u64) -> Option<Self> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(QUEUED_MAX);
        let taken = QUEUED
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < limit).then_some(count + 1));
        taken.is_ok().then(|| Self)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        QUEUED.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Queued {
    info: SigInfo,
    _slot: Slot,
}

/// Signals sent and not yet taken.
#[derive(Default)]
pub struct PendingSignals {
    pub set: u64,
    queue: VecDeque<Queued>,
}

impl PendingSignals {
    /// Adds a signal; false when it is a real-time one that had to be queued and `limit` (`RLIMIT_SIGPENDING`) is
    /// reached.
    #[must_use]
    pub fn push(&mut self, info: SigInfo, limit: u64) -> bool {
        let standard = info.signal < SIGRTMIN;
        let mut limit = limit;
        if let Source::Timer { id, .. } = info.source {
            // A timer has one signal at most, and has it always.
            if self.bump_timer(id) {
                return true;
            }
            limit = u64::MAX;
        } else if standard {
            if self.set & bit(info.signal) != 0 {
                return true;
            }
            limit = if info.code() >= 0 { u64::MAX } else { limit };
        }
        match Slot::take(limit) {
            Some(slot) if self.queue.try_reserve(1).is_ok() => {
                self.queue.push_back(Queued { info, _slot: slot });
            }
            // Without room a standard signal, or one from `kill(2)`, loses its facts only.
            _ if standard || matches!(info.source, Source::User { .. }) => {}
            _ => return false,
        }
        self.set |= bit(info.signal);
        true
    }

    /// Counts one more expiry of a timer whose signal still waits; false when none does.
    fn bump_timer(&mut self, timer: u32) -> bool {
        for queued in &mut self.queue {
            if let Source::Timer { id, overrun, .. } = &mut queued.info.source
                && *id == timer
            {
                *overrun = overrun.saturating_add(1);
                return true;
            }
        }
        false
    }

    /// Takes the next signal of `allowed`: those of instructions first, then the lowest, of equals the oldest.
    pub fn take(&mut self, allowed: u64) -> Option<SigInfo> {
        let ready = self.set & allowed;
        if ready == 0 {
            return None;
        }
        let first = if ready & SYNCHRONOUS != 0 { ready & SYNCHRONOUS } else { ready };
        let signal = first.trailing_zeros() + 1;
        let at = self.queue.iter().position(|queued| queued.info.signal == signal);
        let taken = at.and_then(|at| self.queue.remove(at));
        if !self.queue.iter().any(|queued| queued.info.signal == signal) {
            self.set &= !bit(signal);
        }
        let lost = SigInfo { signal, source: Source::User { pid: 0, uid: 0 } };
        Some(taken.map_or(lost, |queued| queued.info))
    }

    /// Forgets the signals of a set.
    pub fn flush(&mut self, set: u64) {
        if self.set & set != 0 {
            self.set &= !set;
            self.queue.retain(|queued| bit(queued.info.signal) & set == 0);
        }
    }

    /// How many are queued.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none is pending.
    pub fn is_empty(&self) -> bool {
        self.set == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::{SIGHUP, SIGSEGV, SIGUSR1};

    fn queued(signal: u32, value: u64) -> SigInfo {
        SigInfo { signal, source: Source::Queue { code: -1, errno: 0, pid: 1, uid: 0, value } }
    }

    #[test]
    fn standard_signals_coalesce_and_real_time_ones_queue() {
        let mut pending = PendingSignals::default();
        for value in 0..3 {
            assert!(pending.push(queued(SIGUSR1, value), 100));
            assert!(pending.push(queued(40, value), 100));
        }
        assert_eq!(pending.take(u64::MAX), Some(queued(SIGUSR1, 0)));
        for value in 0..3 {
            assert_eq!(pending.take(u64::MAX), Some(queued(40, value)));
        }
        assert_eq!(pending.take(u64::MAX), None);
        assert!(pending.is_empty());
    }

    #[test]
    fn the_lowest_goes_first_but_faults_before_all() {
        let mut pending = PendingSignals::default();
        for signal in [50, 34, SIGUSR1, SIGHUP, SIGSEGV] {
            assert!(pending.push(queued(signal, 0), 100));
        }
        let order: alloc::vec::Vec<u32> =
            core::iter::from_fn(|| pending.take(u64::MAX)).map(|info| info.signal).collect();
        assert_eq!(order, [SIGSEGV, SIGHUP, SIGUSR1, 34, 50]);
    }

    #[test]
    fn beyond_the_limit_real_time_signals_are_refused_and_kill_is_not() {
        let mut pending = PendingSignals::default();
        assert!(!pending.push(queued(40, 0), 0));
        assert!(pending.push(SigInfo { signal: 40, source: Source::User { pid: 3, uid: 4 } }, 0));
        assert_eq!(pending.take(bit(40)).map(|info| info.code()), Some(0));
    }

    #[test]
    fn a_flush_forgets_only_its_set() {
        let mut pending = PendingSignals::default();
        assert!(pending.push(queued(40, 1), 100) && pending.push(queued(41, 2), 100));
        pending.flush(bit(40));
        assert_eq!(pending.take(u64::MAX), Some(queued(41, 2)));
        assert_eq!(pending.len(), 0);
    }
}
