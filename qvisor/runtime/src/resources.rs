//! Limits of a sandbox: those that its kernel enforces, and those that the host's control groups get.

use abi::boot::Platform;

/// Least memory that the kernel and one small program fit in.
pub const MEMORY_MIN: u64 = 16 << 20;
/// Memory of the VMM itself, beside the container's limit: page tables, stubs, buffers.
const HEADROOM: u64 = 128 << 20;
/// Stub processes and threads of the VMM that are not one task's.
const TASKS_HEADROOM: u64 = 128;

/// Limits of a container.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    /// Bytes; `None`: as much as the host has.
    pub memory: Option<u64>,
    /// Memory and swap together, in bytes; `Some(None)`: no limit.
    pub memory_and_swap: Option<Option<u64>>,
    pub reservation: Option<u64>,
    pub swappiness: Option<u64>,
    pub cpu: Cpu,
    /// Most tasks.
    pub pids: Option<u64>,
    /// File names and values of `linux.resources.unified` (version 2).
    pub unified: Vec<(String, String)>,
}

/// Processor time.
#[derive(Clone, Debug, Default)]
pub struct Cpu {
    pub shares: Option<u64>,
    /// Microseconds; negative: no limit.
    pub quota: Option<i64>,
    pub period: Option<u64>,
    pub burst: Option<u64>,
    pub idle: Option<i64>,
    pub realtime_runtime: Option<i64>,
    pub realtime_period: Option<u64>,
    pub cpus: Option<String>,
    pub mems: Option<String>,
}

impl Resources {
    /// Of a sandbox that no bundle describes. On systrap a vCPU and the stub whose code it runs hand over to each other
    /// by spinning, which takes two processors for a moment; on kvm the VMM's other threads get one.
    #[must_use]
    pub fn for_command(memory_bytes: u64, pids: u32, cpus: u32, platform: Platform) -> Self {
        const PERIOD_US: i64 = 100_000;
        let processors = match platform {
            Platform::Systrap => 2 * i64::from(cpus),
            Platform::Kvm => i64::from(cpus) + 1,
        };
        let cpu = Cpu {
            quota: Some(PERIOD_US * processors),
            period: Some(PERIOD_US.cast_unsigned()),
            ..Cpu::default()
        };
        Self { memory: Some(memory_bytes), pids: Some(u64::from(pids)), cpu, ..Self::default() }
    }

    /// Memory that the sandbox's kernel hands out, in bytes.
    #[must_use]
    pub fn memory_bytes(&self, host: u64) -> u64 {
        let most = abi::layout::USER_PHYS_MAX - abi::layout::USER_PHYS;
        self.memory.unwrap_or(host).min(host.max(MEMORY_MIN)).min(most)
    }

    /// The control group's limit for a container with a limit of `bytes`.
    #[must_use]
    pub fn with_headroom(bytes: u64) -> u64 {
        bytes.saturating_add(HEADROOM).saturating_add(bytes / 32)
    }

    /// Most tasks in the sandbox.
    #[must_use]
    pub fn tasks_max(&self) -> Option<u64> {
        self.pids
    }

    /// The control group's limit of processes: on systrap a task may be a stub process with a thread for each vCPU.
    #[must_use]
    pub fn host_tasks(&self, cpus: u32) -> Option<u64> {
        self.pids.map(|most| most.saturating_mul(u64::from(cpus) + 2).saturating_add(TASKS_HEADROOM))
    }

    /// How many vCPUs can make use of the processor time that the container may use, of `host` ones.
    #[must_use]
    pub fn vcpus(&self, host: u32) -> u32 {
        let by_quota = match (self.cpu.quota, self.cpu.period.unwrap_or(100_000)) {
            (Some(quota @ 1..), period @ 1..) => quota.cast_unsigned().div_ceil(period),
            _ => u64::MAX,
        };
        let by_set = self.cpu.cpus.as_deref().and_then(count_set).unwrap_or(u64::MAX);
        let most = u64::from(host.min(abi::layout::MAX_CPUS));
        u32::try_from(by_quota.min(by_set).min(most).max(1)).unwrap_or(1)
    }
}

/// How many members a list like `0-3,5` has.
pub(crate) fn count_set(text: &str) -> Option<u64> {
    text.trim().split(',').try_fold(0_u64, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!(count_set("0-3,5"), Some(5));
        assert_eq!(count_set("7"), Some(1));
        for bad in ["", "a", "3-1", "1-", "0-18446744073709551615"] {
            assert_eq!(count_set(bad), None, "{bad}");
        }
    }

    #[test]
    fn vcpus_follow_the_limits() {
        let with = |quota, period, cpus: Option<&str>| Resources {
            cpu: Cpu { quota, period, cpus: cpus.map(str::to_owned), ..Cpu::default() },
            ..Resources::default()
        };
        assert_eq!(with(None, None, None).vcpus(4), 4);
        assert_eq!(with(Some(50_000), None, None).vcpus(4), 1);
        assert_eq!(with(Some(250_000), Some(100_000), None).vcpus(4), 3);
        assert_eq!(with(Some(-1), None, Some("0-1")).vcpus(4), 2);
        assert_eq!(with(None, None, None).vcpus(400), abi::layout::MAX_CPUS);
    }
}
