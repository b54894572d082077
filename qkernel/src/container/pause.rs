//! Containers that are paused, and that go on.

use abi::report::WakeEvent;

use crate::hibernate;
use crate::hibernate::idle;
use crate::task::container::{self, ContainerId};

/// A container rests from now on, or goes on, unless a later request has been taken. A pause lets a sandbox sleep that
/// does; its end wakes it. `lets_in`: what comes in by exec meanwhile runs.
pub fn request(id: u64, request: i64, rests: bool, lets_in: bool) {
    let Some(container) = container::find(ContainerId(id)) else { return };
    if rests {
        return container.pause(request, lets_in);
    }
    idle::note_activity();
    if container.resume(request) {
        hibernate::wake_event(WakeEvent::Container);
    }
}
