//! Events of the host, handed on to the part of the kernel that each concerns.

use abi::hostcall as hc;
use abi::hostcall::Event;
use abi::report::WakeEvent;
use abi::word::low16;
use machine::sched;

use crate::container::{create, exec, limits, pause, processes, usage};
use crate::fs::host_poll;
use crate::hibernate;
use crate::task::container::{self, Container, ContainerId};

/// Hands an event on; `round`: the round in which it was told.
pub(super) fn handle(event: &Event, round: u64) {
    let has = |flag| event.flags & flag != 0;
    let is_held = has(hc::EVENT_FLAG_HELD);
    match event.kind {
        hc::EVENT_READY => {
            let woken = sched::woken_in_pause();
            // A task that rests right before it would wait is not known to wait.
            let told = host_poll::ready(event.token, event.value, round);
            if told.counts {
                hibernate::idle::note_activity();
            } else {
                hibernate::idle::note_visit();
            }
            if told.for_any || sched::woken_in_pause() != woken {
                came(told.is_socket, event.token);
            }
        }
        hc::EVENT_SIGNAL => {
            hibernate::idle::note_activity();
            if let Some(container) = container::find(ContainerId(event.token)) {
                create::signal(&container, event.value, event.flags);
            }
        }
        hc::EVENT_WINSIZE => {
            if let Some(container) = container::find(ContainerId(event.token)) {
                console_resized(&container, event.value);
            }
        }
        hc::EVENT_EXEC => exec::admit(event.token, event.value),
        hc::EVENT_EXEC_SIGNAL => {
            hibernate::idle::note_activity();
            exec::signal(event.token, event.value, event.flags & 1 != 0);
        }
        hc::EVENT_EXEC_WINSIZE => exec::resize(event.token, event.value),
        hc::EVENT_START => {
            hibernate::idle::note_activity();
            container::find(ContainerId(event.token)).iter().for_each(|container| container.start());
            // It may have been made long ago.
            hibernate::wake_event(WakeEvent::Container);
        }
        hc::EVENT_CREATE => create::admit(ContainerId(event.token), event.value),
        hc::EVENT_PROCESSES => processes::tell(ContainerId(event.token)),
        hc::EVENT_USAGE => usage::tell(ContainerId(event.token), event.value.cast_unsigned()),
        hc::EVENT_LIMIT => limits::change(event.token, event.flags, event.value.cast_unsigned()),
        hc::EVENT_PAUSE_CONTAINER => {
            pause::request(event.token, event.value, event.flags & 1 != 0, has(hc::EVENT_FLAG_LETS_IN));
        }
        hc::EVENT_PAUSE => hibernate::pause(event.value, is_held),
        hc::EVENT_HIBERNATE => {
            hibernate::request(event.value, has(1), is_held, has(hc::EVENT_FLAG_STAYS));
            if has(hc::EVENT_FLAG_IDLE) {
                hibernate::idle::ordered(event.value);
            }
        }
        hc::EVENT_SNAPSHOT => hibernate::snapshot::request(event.value, event.flags),
        hc::EVENT_IMAGE_OVER => hibernate::snapshot::image_is_over(),
        hc::EVENT_RESUME | hc::EVENT_WAKE => hibernate::wake(event.value, event.flags & 1 != 0),
        _ => {}
    }
}

/// Something has come for tasks, by a socket with this token or by another stream.
fn came(is_socket: bool, token: u64) {
    if is_socket {
        hibernate::wake_event_of(WakeEvent::Socket, token);
    } else {
        hibernate::wake_event(WakeEvent::Stream);
    }
}

/// The terminal that a container's streams are on has a new size (rows << 16 | columns).
fn console_resized(container: &Container, size: i64) {
    if let Some(console) = container.console.get() {
        let size = size.cast_unsigned();
        console.resize(low16(size >> 16), low16(size));
    }
}
