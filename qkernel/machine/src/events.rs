//! Events of the host: taken in rounds, and handed to the kernel.

use abi::hostcall::{self as hc, Event};
use abi::word::to_usize;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::platform::{self, call, phys_of};
use crate::{arch, in_flight, time, upcall};

/// Most events taken at once.
const BATCH: usize = 64;

/// Rounds of taking events from the host. A change that is told in a round held when the round had begun.
static ROUND: AtomicU64 = AtomicU64::new(0);

/// Begins a round of taking events.
pub fn begin_round() -> u64 {
    ROUND.fetch_add(1, Ordering::SeqCst) + 1
}

/// The latest round that has begun.
pub fn round() -> u64 {
    ROUND.load(Ordering::SeqCst)
}

/// Has a hostcall fill in events, and hands them to the kernel. Whether there may be more. `back`: the hostcall is over.
fn take_round(number: u32, back: impl FnOnce()) -> bool {
    let mut events = [Event::default(); BATCH];
    let round = begin_round();
    let args = [phys_of(events.as_mut_ptr()), events.len() as u64, 0, 0, 0, 0];
    let count = to_usize(call(number, args).unwrap_or(0)).min(events.len());
    back();
    for event in events.iter().take(count) {
        match event.kind {
            hc::EVENT_DONE => in_flight::complete(event.token, event.value),
            _ => upcall::host_event(event, round),
        }
    }
    count == events.len()
}

/// Takes what happened on the host and hands it to the kernel.
pub fn take() {
    while take_round(hc::EVENTS, || {}) {}
}

/// Blocks this CPU until it is kicked, `deadline_ns` (monotonic) is reached, or the host has something to tell, which it
/// hands to the kernel. `back` is called in between.
pub fn wait(deadline_ns: u64, back: impl FnOnce()) {
    publish_deadline(deadline_ns);
    if take_round(hc::IDLE, back) {
        take();
    }
}

/// Lets other CPUs see when this one will look around by itself. [`set_deadline`] makes it come true.
pub fn publish_deadline(deadline_ns: u64) {
    publish(time::on_host(deadline_ns));
}

/// Publishes a deadline by the host's clock.
fn publish(deadline_ns: u64) {
    let published = &arch::cpu().deadline_ns;
    // Only this CPU writes it; what stays the same need not be ordered anew.
    if published.load(Ordering::Relaxed) != deadline_ns {
        published.store(deadline_ns, Ordering::SeqCst);
    }
}

/// Sets when this CPU wants to be interrupted next, should it be running user code then.
pub fn set_deadline(deadline_ns: u64) {
    let deadline_ns = time::on_host(deadline_ns);
    publish(deadline_ns);
    platform::current().arm(deadline_ns);
}
