//! What happens on the host, handed on to those it concerns.

use abi::hostcall as hc;
use abi::hostcall::Event;
use machine::sched;

use crate::exec_process;
use crate::fs::host_poll;
use crate::hibernate;
use crate::tty::console;

/// Hands an event on; `round`: the round in which it was told.
pub(super) fn handle(event: &Event, round: u64) {
    match event.kind {
        hc::EVENT_READY => {
            let woken = sched::woken_in_pause();
            // A task that rests right before it would wait is not known to wait.
            let told = host_poll::ready(event.token, event.value, round);
            hibernate::idle::note_activity();
            if told.for_any || sched::woken_in_pause() != woken {
                hibernate::wake_event(if told.is_socket {
                    hc::WAKE_EVENT_SOCKET
                } else {
                    hc::WAKE_EVENT_STREAM
                });
            }
        }
        hc::EVENT_SIGNAL => {
            hibernate::idle::note_activity();
            crate::boot::host_signal(event.value, event.flags);
        }
        hc::EVENT_WINSIZE if event.token == 0 => console_resized(event.value),
        hc::EVENT_WINSIZE => exec_process::resize(event.token, event.value),
        hc::EVENT_EXEC => exec_process::admit(event.token, event.value),
        hc::EVENT_EXEC_SIGNAL => {
            hibernate::idle::note_activity();
            exec_process::signal(event.token, event.value, event.flags & 1 != 0);
        }
        hc::EVENT_START => crate::boot::begin_init(),
        hc::EVENT_PAUSE => hibernate::pause(event.value),
        hc::EVENT_HIBERNATE => hibernate::request(event.value, event.flags & 1 != 0),
        hc::EVENT_RESUME | hc::EVENT_WAKE => hibernate::wake(event.value, event.flags & 1 != 0),
        _ => {}
    }
}

/// The terminal that the first process's streams are on has a new size (rows << 16 | columns).
fn console_resized(size: i64) {
    if let Some(tty) = console::get() {
        console::resized(tty, size);
    }
}
