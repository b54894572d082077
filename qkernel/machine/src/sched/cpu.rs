//! The CPUs as the scheduler knows them: what each runs, and whether it has anything to run.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::guarded::Shown;
use super::task::{Runnable, SchedState};
#[cfg(all(feature = "checks", not(test)))]
use crate::lock_order;
use crate::rank::Rank;
use crate::spin::SpinLock;
use crate::{arch, host, owner};

/// A CPU, its current task and its idle one.
pub(super) struct Cpu {
    pub(super) idle_task: SpinLock<Option<Runnable>>,
    /// The task that was switched out last, to be released by whoever runs next on this CPU.
    pub(super) previous: SpinLock<Option<Runnable>>,
    pub(super) current: SpinLock<Option<Runnable>>,
    /// The current task's state. Written and read by this CPU alone.
    pub(super) running: AtomicPtr<SchedState>,
    /// It waits for work, or is about to. Set by the CPU itself, and cleared by it or by whoever is going to kick it.
    pub(super) idle: AtomicBool,
    /// A task other than the idle one was picked for it.
    pub(super) busy: Shown<bool>,
    /// The task that rests on it, if one does. Set by the CPU itself, and cleared by whoever takes the task away.
    pub(super) resting: SpinLock<Option<Runnable>>,
    /// The task that was switched out last rests. Written and read by this CPU alone.
    pub(super) leaves_resting: AtomicBool,
    /// When long work last showed the host that it goes on. Written and read by this CPU alone.
    pub(super) shown_ns: AtomicU64,
    /// See [`super::work`]. Written and read by this CPU alone.
    pub(super) work: AtomicU32,
    /// See [`super::stretch`]. Written and read by this CPU alone.
    #[cfg(feature = "checks")]
    pub(super) stretch_tsc: AtomicU64,
}

impl Cpu {
    /// It runs this task from now on, which `current` keeps.
    pub(super) fn run(&self, task: &SchedState) {
        self.running.store(core::ptr::from_ref(task).cast_mut(), Ordering::Relaxed);
        owner::set_current(task.owner());
        owner::set_uses_reserve(task.uses_reserve());
        #[cfg(all(feature = "checks", not(test)))]
        // SAFETY: `current` keeps the task until the CPU runs another.
        unsafe {
            lock_order::run_task(&task.locks);
        }
    }
}

pub(super) static CPUS: [Cpu; abi::layout::MAX_CPUS as usize] = [const {
    Cpu {
        idle_task: SpinLock::new(Rank::CpuTask, None),
        previous: SpinLock::new(Rank::CpuTask, None),
        current: SpinLock::new(Rank::CpuTask, None),
        running: AtomicPtr::new(core::ptr::null_mut()),
        idle: AtomicBool::new(false),
        busy: Shown::no(),
        resting: SpinLock::new(Rank::CpuTask, None),
        leaves_resting: AtomicBool::new(false),
        shown_ns: AtomicU64::new(0),
        work: AtomicU32::new(0),
        #[cfg(feature = "checks")]
        stretch_tsc: AtomicU64::new(0),
    }
}; abi::layout::MAX_CPUS as usize];

/// The record of the CPU that this is called on.
pub(super) fn this_cpu() -> &'static Cpu {
    &CPUS[arch::cpu_index()]
}

/// The task this CPU runs.
pub fn current() -> Runnable {
    match &*this_cpu().current.lock() {
        Some(task) => task.clone(),
        None => host::die("no current task"),
    }
}
