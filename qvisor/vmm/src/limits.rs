//! The limits of a container, as its kernel is told them.

use abi::hostcall::{EVENT_LIMIT, Event};
use abi::limits::{ContainerLimit, event_flags};
use serde::{Deserialize, Serialize};

/// Limits by their kind; one that is not named stays as it is. [`abi::limits::NO_LIMIT`]: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerLimits {
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<u64>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_low: Option<u64>,
    /// Bytes, without the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_quota_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_period_us: Option<u64>,
    /// 1 to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<u64>,
    /// 2 to 262144.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_shares: Option<u64>,
}

impl ContainerLimits {
    /// Those that are named, with their values.
    pub fn each(&self) -> impl Iterator<Item = (ContainerLimit, u64)> + use<> {
        let all = [
            (ContainerLimit::MemoryMax, self.memory_max),
            (ContainerLimit::MemoryLow, self.memory_low),
            (ContainerLimit::SwapMax, self.swap_max),
            (ContainerLimit::TasksMax, self.tasks_max),
            (ContainerLimit::CpuQuota, self.cpu_quota_us),
            (ContainerLimit::CpuPeriod, self.cpu_period_us),
            (ContainerLimit::CpuWeight, self.cpu_weight),
            (ContainerLimit::CpuShares, self.cpu_shares),
        ];
        all.into_iter().filter_map(|(limit, value)| Some((limit, value?)))
    }

    /// The events that tell the kernel of a change of the container `container`. `request`: the number that its answer has.
    pub fn events(&self, container: u64, request: u32) -> impl Iterator<Item = Event> + use<> {
        self.each().map(move |(limit, value)| Event {
            kind: EVENT_LIMIT,
            flags: event_flags(limit, request),
            token: container,
            value: value.cast_signed(),
        })
    }
}
