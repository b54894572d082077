//! The limits of a container, as the VMM gave them at boot and has changed them since.
//!
//! Memory and tasks the kernel enforces itself, and processor time between the containers of a pod. The others are the host's
//! control groups' affair; the kernel keeps them to show them to programs (`/sys/fs/cgroup`).

use abi::limits::{ContainerLimit, NO_LIMIT};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::config::TASKS_MAX;

/// The period of processor time in microseconds where nobody chose one.
const CPU_PERIOD_US: u64 = 100_000;
/// A container's weight where nobody chose one.
const CPU_WEIGHT: u64 = 100;
/// A container's shares of the processors where nobody chose a number.
const CPU_SHARES: u64 = 1024;

/// See the module.
pub struct ContainerLimits([AtomicU64; ContainerLimit::ALL.len()]);

impl ContainerLimits {
    /// None but the kernel's own.
    pub const fn new() -> Self {
        let mut values = [const { AtomicU64::new(NO_LIMIT) }; ContainerLimit::ALL.len()];
        values[ContainerLimit::MemoryLow as usize] = AtomicU64::new(0);
        values[ContainerLimit::CpuPeriod as usize] = AtomicU64::new(CPU_PERIOD_US);
        values[ContainerLimit::CpuWeight as usize] = AtomicU64::new(CPU_WEIGHT);
        values[ContainerLimit::CpuShares as usize] = AtomicU64::new(CPU_SHARES);
        Self(values)
    }

    /// A limit's value; `None`: there is no limit.
    pub fn get(&self, limit: ContainerLimit) -> Option<u64> {
        Some(self.0[limit as usize].load(Ordering::Relaxed)).filter(|value| *value != NO_LIMIT)
    }

    /// Sets a limit; `NO_LIMIT`: there is none.
    pub fn set(&self, limit: ContainerLimit, value: u64) {
        self.0[limit as usize].store(value, Ordering::Relaxed);
    }

    /// Microseconds of processor time in each period of so many; `None`: there is no limit.
    pub fn cpu_quota(&self) -> Option<(u64, u64)> {
        let period = self.get(ContainerLimit::CpuPeriod).unwrap_or(CPU_PERIOD_US);
        self.get(ContainerLimit::CpuQuota).map(|quota| (quota, period))
    }

    /// Its part of the processors against other containers.
    pub fn cpu_shares(&self) -> u64 {
        self.get(ContainerLimit::CpuShares).unwrap_or(CPU_SHARES)
    }

    /// Most tasks; never more than the kernel's own limit.
    pub fn tasks_max(&self) -> usize {
        let most = self.get(ContainerLimit::TasksMax).and_then(|most| usize::try_from(most).ok());
        most.unwrap_or(TASKS_MAX).clamp(1, TASKS_MAX)
    }
}

impl Default for ContainerLimits {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_the_kernels_own_until_they_are_set() {
        let limits = ContainerLimits::new();
        assert_eq!((limits.get(ContainerLimit::MemoryMax), limits.tasks_max()), (None, TASKS_MAX));
        assert_eq!(limits.get(ContainerLimit::CpuPeriod), Some(CPU_PERIOD_US));
        limits.set(ContainerLimit::TasksMax, 7);
        assert_eq!(limits.tasks_max(), 7);
        for (set, kept) in [(0, 1), (NO_LIMIT, TASKS_MAX), (NO_LIMIT - 1, TASKS_MAX)] {
            limits.set(ContainerLimit::TasksMax, set);
            assert_eq!(limits.tasks_max(), kept);
        }
    }
}
