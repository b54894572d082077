//! The scheduler's state behind its lock: the run queue, and what each task and CPU has of it.
//!
//! What is read without the lock as well, by a CPU that looks for work or is about to run user code, is [`Shown`].

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::cpu::CPUS;
use super::cpu_set::CpuSet;
use super::guarded::{Key, Shown};
use super::load::Averages;
use super::pressure::Pressure;
use super::queue::{QueueClass, RunQueue};
use super::task::{Place, RUNNABLE, RUNNING, Runnable, SchedState};
use crate::owner::Owner;
use crate::rank::Rank;
use crate::spin::{SpinGuard, SpinLock};
use crate::{in_flight, platform, time};

/// The state that the lock guards. Places in the queue are kept by the tasks ([`SchedState::place`]).
pub(super) struct Scheduler {
    pub(super) queue: RunQueue<Runnable>,
    key: Key,
}

static SCHEDULER: SpinLock<Scheduler> = SpinLock::new(
    Rank::RunQueue,
    // SAFETY: this is the only key, and it stays here.
    Scheduler { queue: RunQueue::new(), key: unsafe { Key::new() } },
);

/// The part of the scheduler that everybody sees without its lock. Written by [`Scheduler`] alone.
struct Look {
    /// Tasks in the queue that wait for a CPU. Shown before a CPU is told of them, so that one that is about to block, or to run
    /// user code without a time limit, either sees them or is told.
    waiting: Shown<usize>,
    /// Tasks in the queue that wait for their owner's budget.
    parked: Shown<usize>,
    /// One in the queue may not run on every CPU.
    has_bound: Shown<bool>,
    /// No CPU takes a task from the queue.
    is_frozen: Shown<bool>,
    /// Tasks rest at the user boundary. Looked at before each return to user code.
    is_paused: Shown<bool>,
}

static LOOK: Look = Look {
    waiting: Shown::zero(),
    parked: Shown::zero(),
    has_bound: Shown::no(),
    is_frozen: Shown::no(),
    is_paused: Shown::no(),
};

/// How many tasks wait for a CPU.
pub(super) fn waiting() -> usize {
    LOOK.waiting.get()
}

/// Whether tasks wait for a CPU.
pub fn has_waiting() -> bool {
    waiting() != 0
}

/// Whether tasks wait for their owner's budget.
pub fn has_parked() -> bool {
    LOOK.parked.get() != 0
}

/// Whether one of those that wait may not run on every CPU.
pub(super) fn has_bound() -> bool {
    LOOK.has_bound.get()
}

/// Whether no CPU takes a task from the queue.
pub(super) fn is_frozen() -> bool {
    LOOK.is_frozen.get()
}

/// Whether tasks rest at the user boundary, or will.
pub fn is_paused() -> bool {
    LOOK.is_paused.get()
}

/// Locks the scheduler.
#[cfg_attr(feature = "checks", track_caller)]
pub(super) fn lock() -> SpinGuard<'static, Scheduler> {
    SCHEDULER.lock()
}

/// Locks the scheduler for a change of what runs or waits; and what time it is.
#[cfg_attr(feature = "checks", track_caller)]
pub(super) fn lock_to_change() -> (SpinGuard<'static, Scheduler>, u64) {
    let mut scheduler = SCHEDULER.lock();
    let is_still = is_frozen() || is_paused();
    let now_ns = time::monotonic_ns();
    scheduler.queue.sample(now_ns, (!is_still).then_some(in_flight::Awaited::by));
    (scheduler, now_ns)
}

/// The load of an owner.
pub fn load_averages(owner: Owner) -> Averages {
    lock_to_change().0.queue.load(owner)
}

/// The pressure on an owner's tasks: how much of the time they have been held up so far.
pub fn pressure(owner: Owner) -> Pressure {
    lock_to_change().0.queue.pressure(owner)
}

/// Tasks of an owner that run or wait for a CPU.
pub fn running_tasks(owner: Owner) -> usize {
    lock().queue.running(owner)
}

/// The task that a CPU is to run, and its time slice in nanoseconds.
pub(super) type Turn = (Runnable, u64);

impl Scheduler {
    /// The time, if the queue keeps any.
    fn now_ns(&self) -> u64 {
        if self.queue.keeps_time() { time::monotonic_ns() } else { 0 }
    }

    /// Shows everybody how many tasks wait. Called after each change of the queue.
    pub(super) fn show(&mut self) {
        LOOK.waiting.set(&mut self.key, self.queue.waiting());
        LOOK.has_bound.update(&mut self.key, self.queue.has_bound());
        LOOK.parked.update(&mut self.key, self.queue.parked());
    }

    /// Adds a task to the queue. The caller shows it.
    ///
    /// `is_busy`: it is in the middle of the kernel's work, and may hold a mutex there that tasks on other CPUs wait for. So any CPU
    /// may have it go on, and the one that it is bound to once it comes to user code.
    fn add(&mut self, task: &Runnable, class: QueueClass, is_busy: bool, now_ns: u64) {
        let state = task.sched();
        state.goes_on_anywhere.set(&mut self.key, is_busy);
        let owner = state.owner();
        let class = match class {
            QueueClass::Boundary if self.queue.keeps_time() => {
                state.is_at_boundary.set(&mut self.key, true);
                // In this order: whoever calls its attention afterwards finds it at the boundary.
                if state.wants_attention() { QueueClass::Kernel } else { QueueClass::Boundary }
            }
            QueueClass::Boundary => QueueClass::Kernel,
            class => class,
        };
        let ticket = self.queue.add(owner, class, (task.clone(), state.cpus_in_queue()), now_ns);
        state.place.set(&mut self.key, Place { lane: owner, ticket });
    }

    /// A task that sleeps in the state `from` waits for a CPU from now on; false: it does not sleep so. State and queue change
    /// together: whoever sees a runnable task under the lock finds it in the queue.
    pub(super) fn wake(&mut self, task: &Runnable, from: u8, class: QueueClass, now_ns: u64) -> bool {
        let state = &task.sched().state;
        if state.compare_exchange(from, RUNNABLE, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return false;
        }
        self.add(task, class, class == QueueClass::Urgent, now_ns);
        self.show();
        true
    }

    /// A task that runs already was woken meanwhile: it does not wait any more. Result: the queue's reference to it.
    pub(super) fn take_back(&mut self, task: &Runnable) -> Option<Runnable> {
        let now_ns = self.now_ns();
        let Place { lane, ticket } = task.sched().place.get(&self.key);
        let removed = self.queue.remove(lane, ticket, now_ns);
        self.show();
        task.sched().state.store(RUNNING, Ordering::SeqCst);
        removed
    }

    /// A task that waits on the way to user code comes before others, and whatever its owner's budget; false: it does not wait there.
    pub(super) fn bring_forward(&mut self, task: &SchedState) -> bool {
        let now_ns = self.now_ns();
        let Place { lane, ticket } = task.place.get(&self.key);
        let Some(ticket) = self.queue.promote(lane, ticket, now_ns) else { return false };
        task.place.set(&mut self.key, Place { lane, ticket });
        self.show();
        true
    }

    /// A task may run on these CPUs from now on, wherever it is.
    pub(super) fn bind(&mut self, task: &SchedState, cpus: CpuSet) {
        task.cpus.set(&mut self.key, cpus);
        if task.is_runnable() {
            let Place { lane, ticket } = task.place.get(&self.key);
            self.queue.bind(lane, ticket, task.cpus_in_queue());
            self.show();
        }
    }

    /// The task `me`, which the CPU runs, goes on later if it is runnable, in this class of the queue, or once it is woken.
    pub(super) fn leave(&mut self, cpu: usize, me: &Runnable, class: QueueClass, now_ns: u64) {
        self.queue.leave(cpu, now_ns);
        let state = me.sched();
        if state.state.load(Ordering::SeqCst) == RUNNING && !state.is_idle() {
            state.state.store(RUNNABLE, Ordering::SeqCst);
            self.add(me, class, class != QueueClass::Boundary, now_ns);
        }
    }

    /// The CPU, which has left `me`, runs the next task; `None`: its idle one, for want of another or as `is_idle` says.
    pub(super) fn pick(&mut self, cpu: usize, me: &Runnable, is_idle: bool, now_ns: u64) -> Option<Turn> {
        // A task that was woken while still about to sleep elsewhere is left to the CPU it is on.
        let free = |task: &Runnable| Arc::ptr_eq(task, me) || task.sched().is_off_stack();
        let next =
            if is_idle || is_frozen() { None } else { self.queue.pick(cpu, is_paused(), now_ns, free) };
        if let Some((next, _)) = &next {
            next.sched().is_at_boundary.update(&mut self.key, false);
        }
        CPUS[cpu].busy.set(&mut self.key, next.is_some());
        self.show();
        next
    }

    /// Whether no CPU runs a task, or is about to.
    pub(super) fn are_cpus_free(&self) -> bool {
        !CPUS.iter().take(platform::cpus()).any(|cpu| cpu.busy.get())
    }

    /// CPUs take tasks from the queue from now on, or do not.
    pub(super) fn set_frozen(&mut self, is_frozen: bool) {
        LOOK.is_frozen.set(&mut self.key, is_frozen);
    }

    /// Tasks rest at the user boundary from now on, or do not.
    pub(super) fn set_paused(&mut self, is_paused: bool) {
        LOOK.is_paused.set(&mut self.key, is_paused);
    }

    /// Under another VMM no CPU runs a task.
    pub(super) fn forget_cpus(&mut self) {
        CPUS.iter().for_each(|cpu| cpu.busy.set(&mut self.key, false));
        self.set_frozen(false);
    }
}
