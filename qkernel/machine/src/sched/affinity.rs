//! The CPUs that a task may run on (`sched_setaffinity(2)`).
//!
//! Where a task sleeps or rests does not matter, only which CPU picks it. A task that is bound anew while it runs on another CPU leaves
//! that one before it runs user code again; what it does in the kernel it may go on with there.

use core::sync::atomic::Ordering;

use super::cpu_set::CpuSet;
use super::notify::notify;
use super::queue::QueueClass;
use super::schedule::schedule;
use super::sleep::{Sleep, sleep_until};
use super::state;
use super::task::{RUNNING, Runnable, SchedState};
use crate::{arch, platform, time};

/// How often, and how long each time, is waited for a task to leave a CPU. One that is in user code leaves it at once, unless the host
/// does not run it; one that is busy in the kernel comes to user code elsewhere.
const ROUNDS: u32 = 50;
const ROUND_NS: u64 = 100_000;

impl SchedState {
    /// The CPUs it may run on.
    pub fn cpus(&self) -> CpuSet {
        self.cpus.get()
    }

    /// The CPUs that may take it out of the run queue, in which it stands or is about to.
    pub(super) fn cpus_in_queue(&self) -> CpuSet {
        if self.goes_on_anywhere.get() { CpuSet::ALL } else { self.cpus() }
    }

    /// A new task may run there. Before it is started.
    pub fn inherit_cpus(&self, parent: &Self) {
        self.cpus.begin_with(parent.cpus());
    }

    /// Whether it may run on this CPU.
    pub(super) fn may_run_here(&self) -> bool {
        self.cpus().has(arch::cpu_index())
    }

    /// The CPU it runs on, or ran on last.
    pub(super) fn last(&self) -> usize {
        self.last_cpu.load(Ordering::SeqCst) as usize
    }

    fn is_misplaced(&self) -> bool {
        self.state.load(Ordering::SeqCst) == RUNNING && !self.cpus().has(self.last())
    }
}

/// From now on the task runs on these CPUs only, of which there is at least one. On return it runs no user code on another one, as
/// far as that can be had soon. May sleep.
pub fn bind(task: &Runnable, cpus: CpuSet) {
    let state = task.sched();
    // Under the lock, so that a task that is woken meanwhile waits as this says.
    state::lock().bind(state, cpus);
    if state.is_current() {
        move_if_misplaced(state);
        return;
    }
    notify(state.last(), cpus);
    for _ in 0..ROUNDS {
        // Looked at behind the change: a task that comes on a CPU later looks at the set before user code runs.
        if !state.is_misplaced() {
            return;
        }
        if state.last() != arch::cpu_index() {
            platform::kick(state.last());
        }
        let _ = sleep_until(Sleep::Uninterruptible, Some(time::monotonic_ns() + ROUND_NS), || {
            (!state.is_misplaced()).then_some(())
        });
    }
}

/// The current task goes on on a CPU that it may run on.
pub(super) fn move_if_misplaced(state: &SchedState) {
    while !state.may_run_here() {
        schedule(QueueClass::Boundary);
    }
}
