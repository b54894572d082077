//! What happens on the host, handed on to those it concerns.

use abi::hostcall::{self as hc, Event};
use machine::sched::{self, pause};

use super::entrant;
use crate::fs::{self, host_poll};
use crate::hibernate;

/// Hands an event on; `round`: the round in which it was told.
pub(super) fn handle(event: &Event, round: u64) {
    match event.kind {
        hc::EVENT_READY => {
            let woken = sched::woken_in_pause();
            // A task that rests right before it would wait is not known to wait.
            let told = host_poll::ready(event.token, event.value, round);
            hibernate::idle::stirred();
            if told.for_any || sched::woken_in_pause() != woken {
                hibernate::stir(if told.is_socket { hc::STIRRED_BY_SOCKET } else { hc::STIRRED_BY_STREAM });
            }
        }
        hc::EVENT_SIGNAL => {
            hibernate::idle::stirred();
            super::host_signal(event.value, event.flags);
        }
        hc::EVENT_WINSIZE if event.token == 0 => fs::console_resized(event.value),
        hc::EVENT_WINSIZE => entrant::resize(event.token, event.value),
        hc::EVENT_EXEC => entrant::admit(event.token, event.value, event.flags & 1 != 0),
        hc::EVENT_EXEC_SIGNAL => {
            hibernate::idle::stirred();
            entrant::signal(event.token, event.value, event.flags & 1 != 0);
        }
        hc::EVENT_START => super::begin_init(),
        hc::EVENT_PAUSE => drop(pause::pause(event.value)),
        hc::EVENT_HIBERNATE => hibernate::request(event.value, event.flags & 1 != 0),
        hc::EVENT_RESUME | hc::EVENT_WAKE => hibernate::wake(event.value, event.flags & 1 != 0),
        _ => {}
    }
}
