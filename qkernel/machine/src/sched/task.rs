//! A task as the scheduler knows it: its state, its stack, and what is counted for it.

use alloc::sync::Arc;
use core::any::Any;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::cpu_set::CpuSet;
use super::guarded::{Guarded, Shown};
use super::rest_place::Rest;
use super::set_times::SetTimes;
use super::stack::KernelStack;
use super::waiting::Waiting;
#[cfg(all(feature = "checks", not(test)))]
use crate::lock_order;
use crate::owner::{self, Owner};

pub(super) const RUNNING: u8 = 0;
pub(super) const RUNNABLE: u8 = 1;
pub(super) const SLEEPING: u8 = 2;
pub(super) const SLEEPING_UNINTERRUPTIBLE: u8 = 3;
pub(super) const DEAD: u8 = 4;

/// A task of the kernel above, as the scheduler runs it.
pub trait Run: Any + Send + Sync {
    /// Its part of the scheduler.
    fn sched(&self) -> &SchedState;
    /// It begins to run on this CPU: makes its memory the CPU's.
    fn enter_cpu(&self);
    /// It leaves the CPU it is current on: saves what the CPU holds of it.
    fn leave_cpu(&self);
    /// It sleeps, and what the CPU holds of it stays there.
    fn rest_on_cpu(&self);
    /// Saves what the CPU `cpu`, this one or another one, holds of a task that rests there ([`super::rest`]),
    /// as [`Self::leave_cpu`] does. Called by whoever fetches the task from there.
    fn fetch_from(&self, cpu: usize);
    /// Whether something really is there for the task to look at. Whoever gives it cause calls its attention afterwards.
    fn has_cause(&self) -> bool;
    /// Whether it has been told to end: nothing that it does is worth finishing.
    fn is_to_end(&self) -> bool;
    /// It is about to sleep, in a call that signals end, until `deadline_ns` (monotonic) unless something else wakes it before.
    fn begin_timed_wait(&self, _deadline_ns: u64) {}
    /// The sleep that [`Self::begin_timed_wait`] told of has ended.
    fn end_timed_wait(&self) {}
}

/// A task, whatever the kernel above makes of it.
pub type Runnable = Arc<dyn Run>;

/// Calls of a task that read or wrote, and the bytes they moved.
pub struct Transfers {
    pub calls: AtomicU64,
    pub bytes: AtomicU64,
}

impl Transfers {
    const fn new() -> Self {
        Self { calls: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Counts a call of the running task, whose they are, and the bytes that it moved.
    pub fn count(&self, bytes: u64) {
        add_own(&self.calls, 1);
        add_own(&self.bytes, bytes);
    }
}

/// Adds to a counter that nobody but the running task writes.
pub(super) fn add_own(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// A task's place in the run queue.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The owner in whose lane its entry is.
    pub(super) lane: Owner,
    /// The number of its entry.
    pub(super) ticket: u64,
}

/// A task's part of the scheduler.
pub struct SchedState {
    /// Changed under the queue's lock wherever it becomes or has been `RUNNABLE`; else by the task itself, or by whoever wakes it.
    pub(super) state: AtomicU8,
    /// Its stack is in use by some CPU, or it rests on one: nobody may switch to it before that has ended.
    pub(super) on_cpu: AtomicBool,
    /// Saved stack pointer while it is switched out.
    pub(super) sp: UnsafeCell<u64>,
    /// Its memory goes with the task.
    pub(super) stack: Option<KernelStack>,
    /// Written by the CPU that has picked it, and read by the task itself.
    pub(super) slice_end_ns: AtomicU64,
    /// Where it stands in the run queue, if it does.
    pub(super) place: Guarded<Place>,
    /// It waits in the run queue on the way to user code, in a sandbox that has several owners. Read by whoever calls its attention.
    pub(super) is_at_boundary: Shown<bool>,
    /// Until then it may run user code without a look at its owner's budget. Read by the task itself, which writes it under the
    /// queue's lock when it asks. Whoever has changed the limit under that lock sets it to 0 afterwards.
    pub(super) granted_until_ns: AtomicU64,
    pub(super) rest: Rest,
    /// The CPUs it may run on. Read by the task itself before it runs user code, and by whoever looks for a CPU that may run it.
    pub(super) cpus: Shown<CpuSet>,
    /// Any CPU may take it out of the run queue. Read by whoever looks for one that does.
    pub(super) goes_on_anywhere: Shown<bool>,
    /// The CPU it last ran on. Written by that CPU, and read by anybody.
    pub last_cpu: AtomicU32,
    /// User and kernel time, in ticks of the time-stamp counter.
    pub user_ticks: AtomicU64,
    pub system_ticks: AtomicU64,
    /// Counter value up to which those are complete.
    pub(super) counted_until: AtomicU64,
    pub switches: AtomicU64,
    pub involuntary_switches: AtomicU64,
    /// Page faults that were answered at once, and those whose content had to be waited for.
    pub minor_faults: AtomicU64,
    pub major_faults: AtomicU64,
    pub reads: Transfers,
    pub writes: Transfers,
    /// When its deadlines were set.
    pub(super) set_times: SetTimes,
    /// How its waits look from outside.
    pub waiting: Waiting,
    /// Attempts to wake it.
    pub(super) wakes: AtomicU32,
    /// How many things it holds that others of all owners wait for: see [`super::be_urgent`].
    pub(super) urgent: AtomicU32,
    /// Set when the task should look at its signals before it sleeps or runs user code.
    pub(super) attention: AtomicBool,
    /// It may have memory beyond the limits.
    pub(super) uses_reserve: AtomicBool,
    /// The number of the owner of the memory that it takes.
    pub(super) owner: AtomicU8,
    pub(super) is_idle: bool,
    /// The mutexes it holds.
    #[cfg(all(feature = "checks", not(test)))]
    pub(super) locks: lock_order::Locks,
    /// The task's main function, on its own stack. The task ends when it returns.
    pub(super) main: fn(),
}

// SAFETY: `sp` is touched only by the CPU that switches the task in or out, and `on_cpu` and `rest` order those.
unsafe impl Sync for SchedState {}

impl SchedState {
    /// A CPU's idle task, running on the stack it was booted on.
    pub fn idle() -> Self {
        let mut state = Self::with(0, None, || {});
        state.is_idle = true;
        state.state.store(RUNNING, Ordering::Relaxed);
        state.on_cpu.store(true, Ordering::Relaxed);
        state
    }

    pub(super) fn with(sp: u64, stack: Option<KernelStack>, main: fn()) -> Self {
        Self {
            state: AtomicU8::new(SLEEPING_UNINTERRUPTIBLE),
            on_cpu: AtomicBool::new(false),
            sp: UnsafeCell::new(sp),
            stack,
            slice_end_ns: AtomicU64::new(0),
            place: Guarded::new(Place { lane: Owner::SANDBOX, ticket: 0 }),
            is_at_boundary: Shown::no(),
            granted_until_ns: AtomicU64::new(0),
            rest: Rest::new(),
            cpus: Shown::new(CpuSet::ALL),
            goes_on_anywhere: Shown::no(),
            last_cpu: AtomicU32::new(0),
            user_ticks: AtomicU64::new(0),
            system_ticks: AtomicU64::new(0),
            counted_until: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            involuntary_switches: AtomicU64::new(0),
            minor_faults: AtomicU64::new(0),
            major_faults: AtomicU64::new(0),
            reads: Transfers::new(),
            writes: Transfers::new(),
            set_times: SetTimes::default(),
            waiting: Waiting::new(),
            wakes: AtomicU32::new(0),
            urgent: AtomicU32::new(0),
            attention: AtomicBool::new(false),
            uses_reserve: AtomicBool::new(false),
            owner: AtomicU8::new(owner::current().number()),
            is_idle: false,
            #[cfg(all(feature = "checks", not(test)))]
            locks: lock_order::Locks::new(),
            main,
        }
    }

    /// Whether it stands for a CPU with nothing to do.
    pub fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Whether the task should look at its signals (a hint that may be stale in the true direction).
    pub fn wants_attention(&self) -> bool {
        self.attention.load(Ordering::SeqCst)
    }

    /// The hint was looked at.
    pub fn clear_attention(&self) {
        self.attention.store(false, Ordering::SeqCst);
    }

    /// Whether it may have memory beyond the limits.
    pub fn uses_reserve(&self) -> bool {
        self.uses_reserve.load(Ordering::Relaxed)
    }

    /// Lets it have memory and handles beyond the limits, from when it runs next.
    pub fn allow_reserve(&self) {
        self.uses_reserve.store(true, Ordering::Relaxed);
    }

    /// The task's main function.
    pub fn main(&self) -> fn() {
        self.main
    }

    /// Whether another CPU, or an idle one, is fetching what the CPU that it rests on holds of it.
    pub fn is_fetched(&self) -> bool {
        self.rest.is_fetched()
    }

    /// Nothing runs on its stack, and its stack pointer is stable.
    pub(super) fn is_off_stack(&self) -> bool {
        !self.on_cpu.load(Ordering::SeqCst) || self.rest.cpu().is_some()
    }

    /// Counts a page fault of the running task. `waited`: its content was not there.
    pub fn count_fault(&self, waited: bool) {
        add_own(if waited { &self.major_faults } else { &self.minor_faults }, 1);
    }

    /// It waits for a CPU.
    pub(super) fn is_runnable(&self) -> bool {
        self.state.load(Ordering::SeqCst) == RUNNABLE
    }

    /// One letter as in `/proc/PID/stat`: R, S or D.
    pub fn letter(&self) -> u8 {
        match self.state.load(Ordering::Relaxed) {
            RUNNING | RUNNABLE => b'R',
            SLEEPING => b'S',
            DEAD => b'Z',
            _ => b'D',
        }
    }
}
