//! The frozen scheduler: no task runs, so that one CPU can move all of memory.

use core::sync::atomic::Ordering;

use super::cpu::CPUS;
use super::queue::RunQueue;
use super::task::{Runnable, SchedState};
use super::{FROZEN, QUEUE, queue_to_change};
use crate::{arch, in_flight, platform};

/// Whether no task runs or is about to.
pub fn is_at_rest() -> bool {
    let queue = QUEUE.lock();
    queue.is_empty()
        && !in_flight::any()
        && !(0..platform::cpus()).any(|cpu| CPUS[cpu].busy.load(Ordering::SeqCst))
}

/// The scheduler is frozen as long as the value lives: no task runs, all CPUs are in their idle loops and stay there,
/// and the host is at work on nothing.
pub struct Frozen(());

impl Frozen {
    /// Whether no task has been woken since.
    pub fn is_undisturbed(&self) -> bool {
        QUEUE.lock().is_empty()
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
    let (queue, _) = queue_to_change();
    // Looked at before the CPUs: what ends makes its task wait for one.
    let in_flight = in_flight::any();
    let is_busy = |cpu: usize| CPUS[cpu].busy.load(Ordering::SeqCst);
    if in_flight || FROZEN.load(Ordering::SeqCst) || !may(&queue) || (0..platform::cpus()).any(is_busy) {
        return None;
    }
    FROZEN.store(true, Ordering::SeqCst);
    Some(Frozen(()))
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let is_empty = {
            let (queue, _) = queue_to_change();
            FROZEN.store(false, Ordering::SeqCst);
            queue.is_empty()
        };
        let me = arch::cpu_index();
        // Those that were woken meanwhile found nobody to run them.
        (0..platform::cpus()).filter(|&cpu| cpu != me && !is_empty).for_each(platform::kick);
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
