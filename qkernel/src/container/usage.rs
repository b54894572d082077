//! Reports to the host what a container uses. Like the list of processes, it wakes nobody and waits for nothing.

use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering;

use abi::limits::NO_LIMIT;

use crate::task::container::{self, Container, ContainerId};
use machine::host;
use machine::mm::{PAGE, owners};
use machine::sched::shares;
use machine::time;

/// Tells the host what a container uses; see `REPORT_USAGE` for the form.
pub fn tell(id: u64, request: u64) {
    let text = container::find(ContainerId(id)).map_or_else(String::new, |container| of(&container));
    host::report_usage(id, request, &text);
}

/// Returns the text of what a container uses, in the form of `REPORT_USAGE`.
pub fn of(container: &Container) -> String {
    let owner = container.memory().owner();
    let (user, system) = container.cpu_ticks();
    let count = |of: &core::sync::atomic::AtomicU64| of.load(Ordering::Relaxed);
    let events = &container.events;
    let throttling = shares::throttling(owner);
    let values = [
        ("memory_bytes", owners::used(owner)),
        ("frames_bytes", owners::frames(owner) as u64 * PAGE),
        ("kernel_bytes", owners::kernel(owner) as u64),
        ("limit_bytes", owners::limit(owner).unwrap_or(NO_LIMIT)),
        ("peak_bytes", owners::peak(owner)),
        ("out_of_memory", count(&events.out_of_memory)),
        ("oom_kills", count(&events.oom_kills)),
        ("tasks", container.task_count() as u64),
        ("forks_refused", count(&events.forks_refused)),
        ("user_ns", time::ticks_to_ns(user)),
        ("system_ns", time::ticks_to_ns(system)),
        ("periods", throttling.periods),
        ("throttled_periods", throttling.throttled_periods),
        ("throttled_ns", throttling.throttled_ns),
    ];
    values.iter().map(|(name, value)| format!("{name} {value}\n")).collect()
}
