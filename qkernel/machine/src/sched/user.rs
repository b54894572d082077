//! The way to user code, and what comes in between.

use core::sync::atomic::Ordering;

use super::affinity::move_if_misplaced;
use super::queue::QueueClass;
use super::task::SchedState;
use super::turns::let_others_in;
use super::{shares, state, timer};
use crate::{arch, events};

/// Called before user code runs: lets others in when the time slice is over, and says when to interrupt: at `watch_ns`
/// (monotonic) at the latest.
pub fn before_user(task: &SchedState, watch_ns: u64) {
    loop {
        move_if_misplaced(task);
        share_cpu(task, watch_ns);
        // It may be another CPU now, from which it was bound meanwhile.
        if task.may_run_here() {
            return;
        }
    }
}

fn share_cpu(task: &SchedState, watch_ns: u64) {
    let mut deadline = timer::next_deadline().min(watch_ns);
    // Before the look at the queue: whoever fills it later sees that this CPU must be kicked.
    events::publish_deadline(deadline);
    if state::has_waiting() {
        let_others_in(task, QueueClass::Boundary);
        let slice = task.slice_end_ns.load(Ordering::Relaxed);
        deadline = timer::next_deadline().min(slice).min(watch_ns);
    }
    let granted = task.granted_until_ns.load(Ordering::Relaxed);
    if granted != u64::MAX {
        deadline = shares::within_budget(task, granted, deadline).min(watch_ns);
    }
    events::set_deadline(deadline);
}

/// Handles what made the VMM set `pending`; whether it was set.
pub fn handle_pending() -> bool {
    let header = arch::cpu();
    let is_pending =
        header.pending.load(Ordering::SeqCst) != 0 && header.pending.swap(0, Ordering::SeqCst) != 0;
    if is_pending {
        events::take();
    }
    timer::run_expired();
    is_pending
}
