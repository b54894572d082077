//! Reports to the host what a container uses. Like the list of processes, it wakes nobody and waits for nothing.

use core::sync::atomic::Ordering;

use abi::limits::NO_LIMIT;
use abi::report::{Report, UsageFigures};

use crate::task::container::{self, Container, ContainerId};
use machine::host;
use machine::mm::{PAGE, owners};
use machine::sched::shares;
use machine::time;

/// Tells the host what a container uses, as the request with this number asked for.
pub fn tell(id: ContainerId, request: u64) {
    let usage = container::find(id).map(|container| of(&container));
    host::report(&Report::Usage { request, usage });
}

/// Returns the figures of what a container uses.
pub fn of(container: &Container) -> UsageFigures {
    let owner = container.memory().owner();
    let (user, system) = container.cpu_ticks();
    let events = &container.events;
    let throttling = shares::throttling(owner);
    UsageFigures {
        memory_bytes: owners::used(owner),
        frames_bytes: owners::frames(owner) as u64 * PAGE,
        kernel_bytes: owners::kernel(owner) as u64,
        limit_bytes: owners::limit(owner).unwrap_or(NO_LIMIT),
        peak_bytes: owners::peak(owner),
        out_of_memory: events.out_of_memory.load(Ordering::Relaxed),
        oom_kills: events.oom_kills.load(Ordering::Relaxed),
        tasks: container.task_count() as u64,
        user_ns: time::ticks_to_ns(user),
        system_ns: time::ticks_to_ns(system),
        periods: throttling.periods,
        throttled_periods: throttling.throttled_periods,
        throttled_ns: throttling.throttled_ns,
    }
}
