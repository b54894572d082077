//! Tasks that rest: when a CPU has nothing to do after a task went to sleep, what it holds of the task, its FPU's registers, stays
//! where it is. A task that is woken while its CPU still idles goes on there at once; nothing was saved, and nothing is loaded.
//! Any CPU may take it meanwhile: it has the registers fetched first, from a thread of the host's that may be asleep by then.
//!
//! A task rests on a CPU only while the CPU's idle task runs. It is still counted as being on the CPU (`SchedState::on_cpu`),
//! though nothing runs on its stack. Its [`Rest`] is stepped like this:
//!
//! | from | to | by |
//! |---|---|---|
//! | nowhere | resting on C | C, when its idle task has begun |
//! | resting on C | nowhere | C, which runs the task itself, having picked it |
//! | resting on C | fetched from C | C, before it runs another task, or the CPU that has picked the task |
//! | fetched from C | nowhere | whoever made it fetched, with the registers saved; if they cannot be, the stub is dead, and so is the task |
//!
//! A task is picked once, under the lock of the run queue, and only C ends the rest of one that it has not picked. So there are two at
//! most who want to end a rest; the one that comes second waits until the first is done, who waits for no rest, and for no lock that
//! the second holds.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::cpu::CPUS;
use super::rest_place::{FETCHED, NOWHERE, place_on};
use super::task::{DEAD, Runnable, SchedState};
use crate::{arch, platform};

impl SchedState {
    /// Whether it can rest on the CPU that it runs on.
    pub(super) fn may_rest(&self) -> bool {
        platform::current().keeps_registers() && !self.is_idle && self.state.load(Ordering::SeqCst) != DEAD
    }
}

/// `task`, which was switched out last, rests on this CPU, whose idle task runs. Who has been woken meanwhile waits in the queue,
/// where this CPU will look.
pub(super) fn begin(task: Runnable) {
    let cpu = arch::cpu_index();
    let mut resting = CPUS[cpu].resting.lock();
    task.sched().rest.set(place_on(cpu));
    let former = resting.replace(task);
    drop(resting);
    drop(former);
}

/// The idle CPU `cpu`, the one it is called on, is about to run `next`: nobody else rests on it from now on.
pub(super) fn end_on(cpu: usize, next: &Runnable) {
    let Some(task) = CPUS[cpu].resting.lock().take() else { return };
    if !Arc::ptr_eq(&task, next) {
        end(&task, cpu);
    }
}

/// `next` has been picked by this CPU, which is about to switch to it: it rests nowhere any more.
pub(super) fn take(next: &Runnable) {
    let rest = &next.sched().rest;
    let Some(cpu) = rest.cpu() else { return };
    if cpu == arch::cpu_index() && rest.step(place_on(cpu), NOWHERE) {
        // Only this CPU waits for it to be off a CPU, and it is on this one.
        next.sched().on_cpu.store(false, Ordering::SeqCst);
    } else {
        end(next, cpu);
    }
}

/// Ends a rest on a CPU, or waits until it is over.
pub(super) fn end(task: &Runnable, cpu: usize) {
    let state = task.sched();
    let place = place_on(cpu);
    if state.rest.step(place, place | FETCHED) {
        task.fetch_from(cpu);
        // What ends soon is not kept by a CPU that goes on idling.
        let kept = CPUS[cpu].resting.lock().take_if(|kept| Arc::ptr_eq(kept, task));
        state.on_cpu.store(false, Ordering::SeqCst);
        state.rest.set(NOWHERE);
        drop(kept);
    } else {
        state.rest.wait_until_off(cpu);
    }
}

#[cfg(test)]
#[path = "rest_life.rs"]
mod life;
