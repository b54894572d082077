//! Limits of a container that change while it runs.

use abi::limits::{ContainerLimit, split_event_flags};
use abi::report::Report;

use alloc::vec::Vec;

use crate::task::container::{self, Container, ContainerId};
use machine::host;
use machine::mm::frames;
use machine::sched::{Quota, Runnable, periods, shares};

/// The limit that the event's `flags` name becomes `value`. As with version 1 of Linux's control groups, memory that is in use is not
/// taken away: what can be dropped is dropped, and a limit below the rest is refused.
pub fn change(id: u64, flags: u32, value: u64) {
    let (number, request) = split_event_flags(flags);
    let limit = ContainerLimit::from_number(number);
    let (Some(limit), Some(container)) = (limit, container::find(ContainerId(id))) else { return };
    if limit != ContainerLimit::MemoryMax {
        container.limits.set(limit, value);
        return apply_cpu(&container, limit);
    }
    host::report(&Report::LimitAnswered { request, holds: set_memory(&container, value) });
}

/// Sets its limit of memory; false: it holds more. The first container's limit is the sandbox's, and bounds the others as well.
fn set_memory(container: &Container, value: u64) -> bool {
    let holds = match container.id {
        ContainerId::FIRST => frames::set_limit(value).is_ok(),
        _ => container.memory().set_limit(value).is_ok(),
    };
    if holds {
        container.limits.set(ContainerLimit::MemoryMax, value);
    }
    holds
}

/// Sets the limits with which it goes on under another VMM; false: it holds more memory than that.
pub fn set_all(container: &Container, limits: &[(ContainerLimit, u64)]) -> bool {
    limits.iter().all(|(limit, value)| {
        if *limit == ContainerLimit::MemoryMax {
            return set_memory(container, *value);
        }
        container.limits.set(*limit, *value);
        apply_cpu(container, *limit);
        true
    })
}

/// Has the limit of processor time hold that is set. The first container's quota is the sandbox's, which the host enforces.
pub fn apply_cpu(container: &Container, limit: ContainerLimit) {
    let owner = container.memory().owner();
    match limit {
        ContainerLimit::CpuShares => shares::set_shares(owner, container.limits.cpu_shares()),
        ContainerLimit::CpuQuota | ContainerLimit::CpuPeriod if container.id != ContainerId::FIRST => {
            let quota = container.limits.cpu_quota().map(|(quota, period)| Quota::from_us(quota, period));
            let tasks: Vec<_> = container.tasks().into_iter().map(|task| task as Runnable).collect();
            shares::set_quota(owner, quota, &tasks);
        }
        ContainerLimit::CpuQuota | ContainerLimit::CpuPeriod => {
            periods::watch(container.limits.cpu_quota().map(|(_, period)| period.saturating_mul(1000)));
        }
        _ => {}
    }
}
