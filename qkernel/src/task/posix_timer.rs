//! POSIX timers: `timer_create(2)` and its relatives.

use super::process::Process;
use super::signal::SigInfo;
use alloc::sync::Arc;

/// A process's POSIX timers.
#[derive(Default)]
pub struct PosixTimers {}

impl PosixTimers {
    /// Deletes all.
    pub fn clear(&mut self) {}
    /// Whether one is armed on processor time.
    pub fn watches_cpu(&self) -> bool {
        false
    }
}

/// Fires those on processor time that have run out.
pub fn check_cpu(_process: &Arc<Process>, _timers: &mut PosixTimers, _total_ns: u64) {}

/// A timer's signal was taken from its queue.
pub fn signal_taken(_process: &Arc<Process>, info: SigInfo) -> SigInfo {
    info
}
