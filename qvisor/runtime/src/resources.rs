//! Limits of a sandbox: those that its kernel enforces, and those that the host's control groups get.

pub mod block_io;

use abi::boot::Platform;
use abi::limits::NO_LIMIT;
use vmm::limits::ContainerLimits;

use block_io::BlockIo;

/// Least memory that one very small program fits in; less is a mistake. A bundle may ask for less, and hears from the kernel
/// what does not fit.
pub const MEMORY_MIN: u64 = 1 << 20;
/// Memory of the VMM itself, beside the container's limit: page tables, stubs, buffers.
const HEADROOM: u64 = 128 << 20;
/// Stub processes and threads of the VMM that are not one task's.
const TASKS_HEADROOM: u64 = 128;

/// Period of processor time in microseconds where nobody chose one.
const PERIOD_US: u64 = 100_000;
/// Weight of version 2 where nobody chose shares.
const WEIGHT: u64 = 100;
/// Shares of version 1 where nobody chose any.
const SHARES: u64 = 1024;

/// Shares of version 1 (2 to 262144) as a weight of version 2 (1 to 10000).
pub(crate) fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

/// Limits of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    pub block_io: BlockIo,
    /// File names and values of `linux.resources.unified` (version 2).
    pub unified: Vec<(String, String)>,
}

/// Processor time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
        let processors = match platform {
            Platform::Systrap => 2 * i64::from(cpus),
            Platform::Kvm => i64::from(cpus) + 1,
        };
        let cpu = Cpu {
            quota: Some(PERIOD_US.cast_signed() * processors),
            period: Some(PERIOD_US),
            ..Cpu::default()
        };
        Self { memory: Some(memory_bytes), pids: Some(u64::from(pids)), cpu, ..Self::default() }
    }

    /// Memory that the sandbox's kernel hands out, in bytes.
    #[must_use]
    pub fn memory_bytes(&self, host: u64) -> u64 {
        self.memory.unwrap_or(host).min(Self::memory_most_bytes(host))
    }

    /// The most memory that a container on a host with `host` bytes can ever be given.
    #[must_use]
    pub fn memory_most_bytes(host: u64) -> u64 {
        host.clamp(MEMORY_MIN, abi::layout::USER_PHYS_MAX - abi::layout::USER_PHYS)
    }

    /// The control group's limit for a container with a limit of `bytes`.
    #[must_use]
    pub fn with_headroom(bytes: u64) -> u64 {
        bytes.saturating_add(HEADROOM).saturating_add(bytes / 32)
    }

    /// The limits as the container's kernel is told them: all of them, so that what is not limited has no limit.
    #[must_use]
    pub fn container_limits(&self) -> ContainerLimits {
        let swap = match (self.memory_and_swap.flatten(), self.memory) {
            (Some(both), Some(memory)) => both.saturating_sub(memory),
            _ => NO_LIMIT,
        };
        let quota = self.cpu.quota.and_then(|quota| u64::try_from(quota).ok()).filter(|quota| *quota > 0);
        let unified = self.unified("cpu.weight").and_then(|weight| weight.trim().parse::<u64>().ok());
        let weight = self.cpu.shares.map_or(unified.unwrap_or(WEIGHT), weight);
        let shares = self.cpu.shares.or(unified.map(|weight| weight.saturating_mul(SHARES) / WEIGHT));
        ContainerLimits {
            memory_max: Some(self.memory.unwrap_or(NO_LIMIT)),
            memory_low: Some(self.reservation.unwrap_or(0)),
            swap_max: Some(swap),
            tasks_max: Some(self.pids.unwrap_or(NO_LIMIT)),
            cpu_quota_us: Some(quota.unwrap_or(NO_LIMIT)),
            cpu_period_us: Some(self.cpu.period.unwrap_or(PERIOD_US)),
            cpu_weight: Some(weight),
            cpu_shares: Some(shares.unwrap_or(SHARES)),
        }
    }

    /// A file of version 2 that the bundle names.
    fn unified(&self, name: &str) -> Option<&str> {
        self.unified.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// These resources without a share of processor time.
    #[must_use]
    pub fn without_weight(&self) -> Self {
        Self { cpu: Cpu { shares: None, ..self.cpu.clone() }, ..self.clone() }
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
    fn the_kernel_is_told_shares_as_version_1_has_them() {
        let with = |shares, unified: &[(&str, &str)]| {
            let unified = unified.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let resources =
                Resources { cpu: Cpu { shares, ..Cpu::default() }, unified, ..Resources::default() };
            let limits = resources.container_limits();
            (limits.cpu_shares.unwrap(), limits.cpu_weight.unwrap())
        };
        assert_eq!(with(None, &[]), (1024, 100));
        assert_eq!(with(Some(2), &[]), (2, 1));
        assert_eq!(with(Some(512), &[("cpu.weight", "7")]), (512, weight(512)));
        assert_eq!(with(None, &[("memory.high", "1"), ("cpu.weight", "200")]), (2048, 200));
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
