//! The frozen scheduler: no task runs, so that one CPU can move all of memory.

use super::notify::kick_others;
use super::queue::RunQueue;
use super::state;
use super::task::{Runnable, SchedState};
use crate::in_flight;

/// Whether no task runs or is about to.
pub fn is_at_rest() -> bool {
    let scheduler = state::lock();
    scheduler.queue.is_empty() && !in_flight::any() && scheduler.are_cpus_free()
}

/// The scheduler is frozen as long as the value lives: no task runs, all CPUs are in their idle loops and stay there,
/// and the host is at work on nothing.
pub struct Frozen(());

impl Frozen {
    /// Whether no task has been woken since.
    pub fn is_undisturbed(&self) -> bool {
        state::lock().queue.is_empty()
    }
}

/// Freezes the scheduler, if no task runs or is about to. For an idle CPU, which goes on alone.
pub fn freeze() -> Option<Frozen> {
    freeze_if(RunQueue::is_empty)
}

/// Freezes the scheduler as [`freeze`] does, though tasks may wait for a CPU: they go on waiting.
pub fn freeze_queue() -> Option<Frozen> {
    freeze_if(|_| true)
}

fn freeze_if(may: impl FnOnce(&RunQueue<Runnable>) -> bool) -> Option<Frozen> {
    let (mut scheduler, _) = state::lock_to_change();
    // Looked at before the CPUs: what ends makes its task wait for one.
    let in_flight = in_flight::any();
    if in_flight || state::is_frozen() || !may(&scheduler.queue) || !scheduler.are_cpus_free() {
        return None;
    }
    scheduler.set_frozen(true);
    Some(Frozen(()))
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let is_empty = {
            let (mut scheduler, _) = state::lock_to_change();
            scheduler.set_frozen(false);
            scheduler.queue.is_empty()
        };
        // Those that were woken meanwhile found nobody to run them.
        if !is_empty {
            kick_others();
        }
    }
}

impl SchedState {
    /// Gives back what its stack does not need while it sleeps. Only while the scheduler is frozen.
    pub fn trim_stack(&self, _frozen: &Frozen) {
        if let Some(stack) = self.stack.as_ref().filter(|_| self.is_off_stack()) {
            // SAFETY: it runs on no CPU and, with the scheduler frozen, comes on none: its stack pointer stays.
            stack.trim(unsafe { *self.sp.get() });
        }
    }
}
