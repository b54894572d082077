//! `linux.resources`: what the sandbox's kernel enforces, and what the host's control groups are told.

use abi::boot::Platform;
use oci_spec::runtime::{LinuxCpu, LinuxMemory, LinuxResources};

use super::{BundleError, Result};

/// Least memory that the kernel and one small program fit in.
const MEMORY_MIN: u64 = 16 << 20;
/// Memory of the VMM itself, beside what the container may use: page tables, stubs, buffers.
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

    pub(super) fn new(asked: Option<&LinuxResources>, remarks: &mut Vec<String>) -> Result<Self> {
        let Some(asked) = asked else { return Ok(Self::default()) };
        refuse(asked)?;
        if asked.devices().as_ref().is_some_and(|rules| rules.iter().any(|rule| rule.allow())) {
            remarks
                .push("linux.resources.devices is not applied: a sandbox has no device of the host's".into());
        }
        let mut resources = Self::default();
        if let Some(memory) = asked.memory() {
            resources.take_memory(memory)?;
        }
        if let Some(cpu) = asked.cpu() {
            resources.cpu = Cpu::new(cpu)?;
        }
        resources.pids = asked.pids().as_ref().and_then(|pids| positive(pids.limit()));
        let unified = asked.unified().clone().unwrap_or_default();
        if let Some(name) = unified.keys().find(|name| name.contains('/') || !name.contains('.')) {
            return Err(BundleError::invalid(
                "linux.resources.unified",
                name,
                "which is no file of a control group",
            ));
        }
        if let Some(name) = unified.keys().find(|name| ["memory.max", "pids.max"].contains(&name.as_str())) {
            let why = "the sandbox enforces this itself; use linux.resources.memory.limit or pids.limit";
            return Err(BundleError::refused_because(format!("linux.resources.unified {name}"), why));
        }
        resources.unified = unified.into_iter().collect();
        resources.unified.sort();
        Ok(resources)
    }

    fn take_memory(&mut self, memory: &LinuxMemory) -> Result<()> {
        if memory.disable_oom_killer() == Some(true) {
            return Err(BundleError::refused("linux.resources.memory.disableOOMKiller"));
        }
        if memory.kernel().is_some_and(|limit| limit > 0)
            || memory.kernel_tcp().is_some_and(|limit| limit > 0)
        {
            return Err(BundleError::refused("linux.resources.memory.kernel"));
        }
        self.memory = memory.limit().and_then(positive);
        if let Some(limit) = self.memory.filter(|limit| *limit < MEMORY_MIN) {
            let why = "and a sandbox needs at least 16 MiB";
            return Err(BundleError::invalid("linux.resources.memory.limit", limit, why));
        }
        let swap = memory.swap().filter(|limit| *limit != 0).map(positive);
        if let (Some(Some(both)), Some(limit)) = (swap, self.memory)
            && both < limit
        {
            let why = "and memory with swap cannot be less than memory";
            return Err(BundleError::invalid("linux.resources.memory.swap", both, why));
        }
        self.memory_and_swap = swap;
        self.reservation = memory.reservation().and_then(positive);
        self.swappiness = memory.swappiness();
        if let Some(value) = self.swappiness.filter(|value| *value > 100) {
            return Err(BundleError::invalid(
                "linux.resources.memory.swappiness",
                value,
                "and at most 100 is possible",
            ));
        }
        Ok(())
    }

    /// Memory that the sandbox's kernel hands out, in bytes.
    #[must_use]
    pub fn memory_bytes(&self, host: u64) -> u64 {
        let most = abi::layout::USER_PHYS_MAX - abi::layout::USER_PHYS;
        self.memory.unwrap_or(host).min(host.max(MEMORY_MIN)).min(most)
    }

    /// The control group's limit for so much of the container's.
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

    /// How many vCPUs make use of what the container may use, of `host` ones.
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

impl Cpu {
    fn new(cpu: &LinuxCpu) -> Result<Self> {
        for (what, set) in [("cpus", cpu.cpus()), ("mems", cpu.mems())] {
            if let Some(set) = set.as_ref().filter(|set| !set.is_empty() && count_set(set).is_none()) {
                let what = format!("linux.resources.cpu.{what}");
                return Err(BundleError::invalid(what, set, "which is no list like 0-3,5"));
            }
        }
        let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Ok(Self {
            shares: cpu.shares().filter(|value| *value > 0),
            quota: cpu.quota().filter(|value| *value != 0),
            period: cpu.period().filter(|value| *value > 0),
            burst: cpu.burst().filter(|value| *value > 0),
            idle: cpu.idle().filter(|value| *value != 0),
            realtime_runtime: cpu.realtime_runtime().filter(|value| *value != 0),
            realtime_period: cpu.realtime_period().filter(|value| *value > 0),
            cpus: set(cpu.cpus()),
            mems: set(cpu.mems()),
        })
    }
}

/// A limit; zero and negative ones are none.
fn positive(limit: i64) -> Option<u64> {
    u64::try_from(limit).ok().filter(|limit| *limit > 0)
}

/// How many members a list like `0-3,5` has.
fn count_set(text: &str) -> Option<u64> {
    text.trim().split(',').try_fold(0_u64, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

fn refuse(asked: &LinuxResources) -> Result<()> {
    let block = asked.block_io().as_ref().is_some_and(|block| {
        let some = |devices: Option<usize>| devices.is_some_and(|len| len > 0);
        block.weight().is_some_and(|weight| weight > 0)
            || block.leaf_weight().is_some_and(|weight| weight > 0)
            || some(block.weight_device().as_ref().map(Vec::len))
            || some(block.throttle_read_bps_device().as_ref().map(Vec::len))
            || some(block.throttle_write_bps_device().as_ref().map(Vec::len))
            || some(block.throttle_read_iops_device().as_ref().map(Vec::len))
            || some(block.throttle_write_iops_device().as_ref().map(Vec::len))
    });
    let network = asked.network().as_ref().is_some_and(|network| {
        network.class_id().is_some_and(|id| id > 0)
            || network.priorities().as_ref().is_some_and(|list| !list.is_empty())
    });
    let rdma = asked.rdma().as_ref().is_some_and(|map| !map.is_empty());
    for (name, present) in [("blockIO", block), ("network", network), ("rdma", rdma)] {
        if present {
            return Err(BundleError::refused(format!("linux.resources.{name}")));
        }
    }
    Ok(())
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
