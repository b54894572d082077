//! The time that tasks run, and which of them runs on this CPU.

use core::sync::atomic::Ordering;

use super::cpu::this_cpu;
use super::periods;
use super::stretch::begin_stretch;
use super::task::{SchedState, add_own};
use crate::arch;

impl SchedState {
    /// Whether it is the task that runs on this CPU.
    pub fn is_current(&self) -> bool {
        core::ptr::eq(this_cpu().running.load(Ordering::Relaxed), self)
    }

    /// Counts the time since the last count as user or as kernel time. For the running task itself.
    pub fn count_time(&self, in_user: bool) {
        if in_user {
            begin_stretch();
        }
        let now = arch::read_tsc();
        let since = now.saturating_sub(self.counted_until.load(Ordering::Relaxed));
        self.counted_until.store(now, Ordering::Relaxed);
        add_own(if in_user { &self.user_ticks } else { &self.system_ticks }, since);
        periods::ran(now, since);
    }

    /// The task starts to run: nothing before counts.
    pub(super) fn start_count(&self) {
        begin_stretch();
        self.counted_until.store(arch::read_tsc(), Ordering::Relaxed);
    }
}
