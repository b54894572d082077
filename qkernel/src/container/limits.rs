//! Limits of a container that change while it runs.

use abi::hostcall::{REPORT_LIMIT_HOLDS, REPORT_LIMIT_REFUSED};
use abi::limits::{ContainerLimit, split_event_flags};

use crate::task::container::{self, ContainerId};
use machine::host;
use machine::mm::frames;

/// The limit that the event's `flags` name becomes `value`. As with version 1 of Linux's control groups, memory that is in use is not
/// taken away: what can be dropped is dropped, and a limit below the rest is refused.
pub fn change(id: u64, flags: u32, value: u64) {
    let (number, request) = split_event_flags(flags);
    let limit = ContainerLimit::from_number(number);
    let (Some(limit), Some(container)) = (limit, container::find(ContainerId(id))) else { return };
    if limit != ContainerLimit::MemoryMax {
        return container.limits.set(limit, value);
    }
    // The first container's limit is the sandbox's, and bounds the others as well.
    let holds = match container.id {
        ContainerId::FIRST => frames::set_limit(value).is_ok(),
        _ => container.memory().set_limit(value).is_ok(),
    };
    if holds {
        container.limits.set(limit, value);
    }
    host::report(if holds { REPORT_LIMIT_HOLDS } else { REPORT_LIMIT_REFUSED }, request.into());
}
