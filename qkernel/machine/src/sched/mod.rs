//! The scheduler: one run queue, N vCPUs, round robin with a time slice; user code is pre-empted, the kernel is not.
//! Between owners the run queue divides the time ([`queue`]).

mod affinity;
mod budget;
mod charged;
mod cpu_set;
mod load;
pub mod pause;
pub mod periods;
pub mod pressure;
mod queue;
mod rest;
pub mod set_times;
pub mod shares;
pub mod stack;
pub mod timer;
pub mod wait;
mod waiting;
pub mod work;

use alloc::sync::Arc;
use core::any::Any;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

pub use affinity::bind;
pub use budget::{Quota, Throttling};
pub use charged::{ChargedTo, charge_to};
pub use cpu_set::CpuSet;
pub use load::{Averages, LOAD_SHIFT};
pub use waiting::Waiting;

use queue::{Place, RunQueue};
use rest::Rest;

use crate::config::TIME_SLICE_NS;
use crate::errno::{Errno, Result};
use crate::lock_order;
use crate::rank::Rank;
use crate::spin::{SpinGuard, SpinLock};
use crate::{arch, events, host, in_flight, owner, platform, time};

const RUNNING: u8 = 0;
const RUNNABLE: u8 = 1;
const SLEEPING: u8 = 2;
const SLEEPING_UNINTERRUPTIBLE: u8 = 3;
const DEAD: u8 = 4;

/// Whether signals end a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sleep {
    Interruptible,
    Uninterruptible,
}

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
    /// Saves what the CPU `cpu`, this one or another one, holds of a task that rests there ([`rest`]), as
    /// [`Self::leave_cpu`] does. Called by whoever fetches the task from there.
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
fn add_own(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// A task's part of the scheduler.
pub struct SchedState {
    state: AtomicU8,
    /// Its stack is in use by some CPU, or it rests on one: nobody may switch to it before that has ended.
    on_cpu: AtomicBool,
    /// Saved stack pointer while it is switched out.
    sp: UnsafeCell<u64>,
    /// Its memory goes with the task.
    stack: Option<stack::KernelStack>,
    slice_end_ns: AtomicU64,
    /// The number and the lane of its entry in the run queue. Written under the queue's lock.
    ticket: AtomicU64,
    lane: AtomicU8,
    /// It waits in the run queue on the way to user code, in a sandbox that has several owners.
    is_at_boundary: AtomicBool,
    /// Until then it may run user code without a look at its owner's budget. Written by the task itself, or under the queue's
    /// lock to 0.
    granted_until_ns: AtomicU64,
    rest: Rest,
    /// The CPUs it may run on. Written under the queue's lock.
    cpus: AtomicU64,
    /// Any CPU may take it out of the run queue. Written under the queue's lock.
    goes_on_anywhere: AtomicBool,
    /// The CPU it last ran on.
    pub last_cpu: AtomicU32,
    /// User and kernel time, in ticks of the time-stamp counter.
    pub user_ticks: AtomicU64,
    pub system_ticks: AtomicU64,
    /// Counter value up to which those are complete.
    counted_until: AtomicU64,
    pub switches: AtomicU64,
    pub involuntary_switches: AtomicU64,
    /// Page faults that were answered at once, and those whose content had to be waited for.
    pub minor_faults: AtomicU64,
    pub major_faults: AtomicU64,
    pub reads: Transfers,
    pub writes: Transfers,
    /// When its deadlines were set.
    set_times: set_times::SetTimes,
    /// How its waits look from outside.
    pub waiting: Waiting,
    /// Attempts to wake it.
    wakes: AtomicU32,
    /// How many things it holds that others of all owners wait for: see [`be_urgent`].
    urgent: AtomicU32,
    /// Set when the task should look at its signals before it sleeps or runs user code.
    attention: AtomicBool,
    /// It may have memory beyond the limits.
    uses_reserve: AtomicBool,
    /// The number of the owner of the memory that it takes.
    owner: AtomicU8,
    is_idle: bool,
    /// The mutexes it holds.
    #[cfg(all(feature = "checks", not(test)))]
    locks: lock_order::Locks,
    /// The task's main function, on its own stack. The task ends when it returns.
    main: fn(),
}

// SAFETY: `sp` is touched only by the CPU that switches the task in or out, and `on_cpu` and `rest` order those.
unsafe impl Sync for SchedState {}

impl SchedState {
    /// A new task that will do `main` on a stack of its own.
    pub fn new(main: fn()) -> Result<Self> {
        let stack = stack::KernelStack::new()?;
        // SAFETY: the stack is fresh and ours.
        let sp = unsafe { arch::prepare_stack(stack.top(), begin_task) };
        Ok(Self::with(sp, Some(stack), main))
    }

    /// A CPU's idle task, running on the stack it was booted on.
    pub fn idle() -> Self {
        let mut state = Self::with(0, None, || {});
        state.is_idle = true;
        state.state.store(RUNNING, Ordering::Relaxed);
        state.on_cpu.store(true, Ordering::Relaxed);
        state
    }

    fn with(sp: u64, stack: Option<stack::KernelStack>, main: fn()) -> Self {
        Self {
            state: AtomicU8::new(SLEEPING_UNINTERRUPTIBLE),
            on_cpu: AtomicBool::new(false),
            sp: UnsafeCell::new(sp),
            stack,
            slice_end_ns: AtomicU64::new(0),
            ticket: AtomicU64::new(0),
            lane: AtomicU8::new(0),
            is_at_boundary: AtomicBool::new(false),
            granted_until_ns: AtomicU64::new(0),
            rest: Rest::new(),
            cpus: AtomicU64::new(CpuSet::ALL.bits()),
            goes_on_anywhere: AtomicBool::new(false),
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
            set_times: set_times::SetTimes::default(),
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

    /// Whether it is the task that runs on this CPU.
    pub fn is_current(&self) -> bool {
        core::ptr::eq(this_cpu().running.load(Ordering::Relaxed), self)
    }

    /// Whether another CPU, or an idle one, is fetching what the CPU that it rests on holds of it.
    pub fn is_fetched(&self) -> bool {
        self.rest.is_fetched()
    }

    /// Nothing runs on its stack, and its stack pointer is stable.
    fn is_off_stack(&self) -> bool {
        !self.on_cpu.load(Ordering::SeqCst) || self.rest.cpu().is_some()
    }

    /// Gives back what its stack does not need while it sleeps. Only while the scheduler is frozen.
    pub fn trim_stack(&self, _frozen: &Frozen) {
        if let Some(stack) = self.stack.as_ref().filter(|_| self.is_off_stack()) {
            // SAFETY: it runs on no CPU and, with the scheduler frozen, comes on none: its stack pointer stays.
            stack.trim(unsafe { *self.sp.get() });
        }
    }

    /// Counts the time since the last count as user or as kernel time. For the running task itself.
    pub fn count_time(&self, in_user: bool) {
        if in_user {
            work::begin_stretch();
        }
        let now = arch::read_tsc();
        let since = now.saturating_sub(self.counted_until.load(Ordering::Relaxed));
        self.counted_until.store(now, Ordering::Relaxed);
        add_own(if in_user { &self.user_ticks } else { &self.system_ticks }, since);
        periods::ran(now, since);
    }

    /// Counts a page fault of the running task. `waited`: its content was not there.
    pub fn count_fault(&self, waited: bool) {
        add_own(if waited { &self.major_faults } else { &self.minor_faults }, 1);
    }

    /// It waits for a CPU.
    fn is_runnable(&self) -> bool {
        self.state.load(Ordering::SeqCst) == RUNNABLE
    }

    /// Where it stands in the run queue.
    fn place(&self) -> (owner::Owner, u64) {
        (owner::Owner::new(self.lane.load(Ordering::Relaxed)), self.ticket.load(Ordering::Relaxed))
    }

    /// The task starts to run: nothing before counts.
    fn start_count(&self) {
        work::begin_stretch();
        self.counted_until.store(arch::read_tsc(), Ordering::Relaxed);
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

struct Cpu {
    idle_task: SpinLock<Option<Runnable>>,
    /// The task that was switched out last, to be released by whoever runs next on this CPU.
    previous: SpinLock<Option<Runnable>>,
    current: SpinLock<Option<Runnable>>,
    /// The current task's state. Written and read by this CPU alone.
    running: AtomicPtr<SchedState>,
    idle: AtomicBool,
    /// A task other than the idle one was picked for it. Written under the queue's lock.
    busy: AtomicBool,
    /// The task that rests on it, if one does. Set by the CPU itself, and cleared by whoever takes the task away.
    resting: SpinLock<Option<Runnable>>,
    /// The task that was switched out last rests. Written and read by this CPU alone.
    leaves_resting: AtomicBool,
    /// When long work last showed the host that it goes on.
    shown_ns: AtomicU64,
    /// See [`work`]. Written and read by this CPU alone.
    work: AtomicU32,
    #[cfg(feature = "checks")]
    stretch_tsc: AtomicU64,
}

/// How often long work shows that.
const SHOWN_EVERY_NS: u64 = 100_000_000;

impl Cpu {
    /// It runs this task from now on, which `current` keeps.
    fn run(&self, task: &SchedState) {
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

static CPUS: [Cpu; abi::layout::MAX_CPUS as usize] = [const {
    Cpu {
        idle_task: SpinLock::new(Rank::CpuTask, None),
        previous: SpinLock::new(Rank::CpuTask, None),
        current: SpinLock::new(Rank::CpuTask, None),
        running: AtomicPtr::new(core::ptr::null_mut()),
        idle: AtomicBool::new(false),
        busy: AtomicBool::new(false),
        resting: SpinLock::new(Rank::CpuTask, None),
        leaves_resting: AtomicBool::new(false),
        shown_ns: AtomicU64::new(0),
        work: AtomicU32::new(0),
        #[cfg(feature = "checks")]
        stretch_tsc: AtomicU64::new(0),
    }
}; abi::layout::MAX_CPUS as usize];

static QUEUE: SpinLock<RunQueue<Runnable>> = SpinLock::new(Rank::RunQueue, RunQueue::new());
/// How many tasks in the queue wait for a CPU, and how many for their owner's budget, for a look without the lock.
static QUEUED: AtomicU32 = AtomicU32::new(0);
/// Whether one of them may not run on every CPU.
static HAS_BOUND: AtomicBool = AtomicBool::new(false);
static PARKED: AtomicU32 = AtomicU32::new(0);
/// Tasks that were woken while the sandbox was paused.
static WOKEN_IN_PAUSE: AtomicU64 = AtomicU64::new(0);
/// No CPU takes a task from the queue. Written under its lock.
static FROZEN: AtomicBool = AtomicBool::new(false);

fn this_cpu() -> &'static Cpu {
    &CPUS[arch::cpu_index()]
}

/// The task this CPU runs.
pub fn current() -> Runnable {
    match &*this_cpu().current.lock() {
        Some(task) => task.clone(),
        None => host::die("no current task"),
    }
}

/// Makes a new task runnable for the first time.
pub fn start(task: &Runnable) {
    wake_from(task, SLEEPING_UNINTERRUPTIBLE, Place::Kernel);
}

/// Wakes a sleeping task; false when it wasn't asleep.
pub fn wake(task: &Runnable) -> bool {
    wake_interruptible(task) || wake_from(task, SLEEPING_UNINTERRUPTIBLE, Place::Urgent)
}

/// Wakes a task that sleeps interruptibly.
pub fn wake_interruptible(task: &Runnable) -> bool {
    wake_from(task, SLEEPING, Place::Kernel)
}

/// Locks the queue, for a change of what runs or waits; and what time it is.
fn queue_to_change() -> (SpinGuard<'static, RunQueue<Runnable>>, u64) {
    let mut queue = QUEUE.lock();
    let is_still = FROZEN.load(Ordering::SeqCst) || pause::is_paused();
    let now_ns = time::monotonic_ns();
    queue.sample(now_ns, (!is_still).then_some(in_flight::Awaited::by));
    (queue, now_ns)
}

/// See [`RunQueue::sample`].
fn sample_load() {
    drop(queue_to_change());
}

/// The load of an owner.
pub fn load_averages(owner: owner::Owner) -> Averages {
    queue_to_change().0.load(owner)
}

/// The pressure on an owner's tasks: how much of the time they have been held up so far.
pub fn pressure(owner: owner::Owner) -> pressure::Pressure {
    queue_to_change().0.pressure(owner)
}

/// The time, if the queue keeps any.
fn now_for<T>(queue: &RunQueue<T>) -> u64 {
    if queue.keeps_time() { time::monotonic_ns() } else { 0 }
}

/// Adds a task to the queue. The caller mirrors it.
///
/// `is_busy`: it is in the middle of the kernel's work, and may hold a mutex there that tasks on other CPUs wait for. So any CPU may have
/// it go on, and the one that it is bound to once it comes to user code.
fn add(queue: &mut RunQueue<Runnable>, task: &Runnable, (place, is_busy): (Place, bool), now_ns: u64) {
    let state = task.sched();
    state.goes_on_anywhere.store(is_busy, Ordering::SeqCst);
    let owner = state.owner();
    let place = match place {
        Place::Boundary if queue.keeps_time() => {
            state.is_at_boundary.store(true, Ordering::SeqCst);
            // In this order: whoever calls its attention afterwards finds it at the boundary.
            if state.wants_attention() { Place::Kernel } else { Place::Boundary }
        }
        Place::Boundary => Place::Kernel,
        place => place,
    };
    let ticket = queue.add(owner, place, (task.clone(), state.cpus_in_queue()), now_ns);
    state.ticket.store(ticket, Ordering::Relaxed);
    state.lane.store(owner.number(), Ordering::Relaxed);
}

/// Shows others how many tasks wait.
fn mirror(queue: &RunQueue<Runnable>) {
    QUEUED.store(u32::try_from(queue.waiting()).unwrap_or(u32::MAX), Ordering::SeqCst);
    if HAS_BOUND.load(Ordering::Relaxed) != queue.has_bound() {
        HAS_BOUND.store(queue.has_bound(), Ordering::SeqCst);
    }
    let parked = u32::try_from(queue.parked()).unwrap_or(u32::MAX);
    if PARKED.load(Ordering::Relaxed) != parked {
        PARKED.store(parked, Ordering::SeqCst);
    }
}

fn wake_from(task: &Runnable, from: u8, place: Place) -> bool {
    let state = &task.sched().state;
    // Before the look at its state: see `sleep_until`.
    task.sched().wakes.fetch_add(1, Ordering::SeqCst);
    if state.load(Ordering::SeqCst) != from {
        return false;
    }
    if task.sched().is_idle() {
        // It stands in no queue, from which another CPU could take it: its own comes back to it when it has nothing else to do.
        return state.compare_exchange(from, RUNNING, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    }
    {
        // State and queue change together: whoever sees a runnable task under the lock finds it in the queue.
        let (mut queue, now_ns) = queue_to_change();
        if state.compare_exchange(from, RUNNABLE, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return false;
        }
        add(&mut queue, task, (place, place == Place::Urgent), now_ns);
        mirror(&queue);
    }
    if pause::is_paused() {
        WOKEN_IN_PAUSE.fetch_add(1, Ordering::SeqCst);
    }
    notify_of(task);
    true
}

/// Makes a CPU notice a task that waits.
fn notify_of(task: &Runnable) {
    notify(task.sched().last(), task.sched().cpus_in_queue());
}

/// Makes some CPU of a set notice the queue: an idle one if there is one, else those that run user code without a time limit.
fn notify(preferred: usize, set: CpuSet) {
    let me = arch::cpu_index();
    if current().sched().is_idle() && set.has(me) && QUEUED.load(Ordering::SeqCst) <= 1 {
        return; // in the idle loop already, which looks at the queue again before it blocks
    }
    let cpus = platform::cpus();
    let order = core::iter::once(preferred.min(cpus - 1)).chain(0..cpus);
    for cpu in order.filter(|&cpu| cpu != me && set.has(cpu)) {
        if CPUS[cpu].idle.swap(false, Ordering::SeqCst) {
            platform::kick(cpu);
            return;
        }
    }
    for cpu in (0..cpus).filter(|&cpu| cpu != me && set.has(cpu) && runs_without_end(cpu)) {
        platform::kick(cpu);
    }
}

/// Makes all other CPUs notice the queue that would not by themselves.
fn notify_all() {
    let me = arch::cpu_index();
    for cpu in (0..platform::cpus()).filter(|&cpu| cpu != me) {
        if CPUS[cpu].idle.swap(false, Ordering::SeqCst) || runs_without_end(cpu) {
            platform::kick(cpu);
        }
    }
}

/// Whether a CPU runs user code for longer than a time slice.
fn runs_without_end(cpu: usize) -> bool {
    let limit = time::monotonic_ns() + TIME_SLICE_NS;
    platform::header_of(cpu).deadline_ns.load(Ordering::SeqCst) > limit
}

/// Sleeps until `ready` yields, a signal comes (interruptible sleeps), or `deadline_ns` passes (`None`).
///
/// The caller has registered with whatever wakes it.
#[cfg_attr(feature = "checks", track_caller)]
pub fn sleep_until<R>(
    kind: Sleep,
    deadline_ns: Option<u64>,
    mut ready: impl FnMut() -> Option<R>,
) -> Result<Option<R>> {
    lock_order::may_sleep();
    let task = current();
    let state = if kind == Sleep::Interruptible { SLEEPING } else { SLEEPING_UNINTERRUPTIBLE };
    let mut told = None;
    let result = loop {
        // `ready` may sleep itself, on a mutex, after the task was woken and queued: out of the queue first, or the task
        // would stand in it while it runs. The outer sleep then finds itself running, and asks `ready` once more.
        settle(&task);
        let wakes = task.sched().wakes.load(Ordering::SeqCst);
        task.sched().state.store(state, Ordering::SeqCst);
        if let Some(value) = ready() {
            break Ok(Some(value));
        }
        if kind == Sleep::Interruptible && is_interrupted(&task) {
            break Err(Errno::RESTART);
        }
        if deadline_ns.is_some_and(|deadline| time::monotonic_ns() >= deadline) {
            break Ok(None);
        }
        // For each sleep anew: it may have fired on a CPU whose counter is ahead of that of the CPU where this goes on, and
        // where the time has not come yet.
        let alarm = deadline_ns.map(|deadline| timer::wake_at(deadline, &task));
        if let Some(deadline) = deadline_ns.filter(|_| told.is_none() && kind == Sleep::Interruptible) {
            task.begin_timed_wait(deadline);
            told = Some(deadline);
        }
        // `ready` may have let others go on, and been settled for that. Who tried to wake the task since then found it running, and
        // counted first; who tries from now on finds it asleep.
        if task.sched().state.load(Ordering::SeqCst) == RUNNING {
            task.sched().state.store(state, Ordering::SeqCst);
            if task.sched().wakes.load(Ordering::SeqCst) != wakes {
                continue;
            }
        }
        schedule(Place::Kernel);
        drop(alarm);
    };
    if told.is_some() {
        task.end_timed_wait();
    }
    task.sched().waiting.ended(deadline_ns.is_some() && matches!(result, Ok(None)));
    // Awake for whatever reason: if a wake-up came meanwhile the task sits in the queue, and must not run twice.
    settle(&task);
    result
}

/// Whether the current task is to look at its signals, and there is cause. A call for attention that came late, when the
/// task had seen to its cause already, is forgotten: it must not end the next sleep.
pub fn is_interrupted(task: &Runnable) -> bool {
    let sched = task.sched();
    if !sched.wants_attention() {
        return false;
    }
    // In this order: a cause that comes after the look calls again.
    sched.clear_attention();
    let has_cause = task.has_cause();
    if has_cause {
        sched.attention.store(true, Ordering::SeqCst);
    }
    has_cause
}

/// Turns "about to sleep" back into running.
fn settle(task: &Runnable) {
    let state = &task.sched().state;
    for from in [SLEEPING, SLEEPING_UNINTERRUPTIBLE] {
        if state.compare_exchange(from, RUNNING, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            return;
        }
    }
    if state.load(Ordering::SeqCst) == RUNNABLE {
        let mut queue = QUEUE.lock();
        let now_ns = now_for(&queue);
        let (lane, ticket) = task.sched().place();
        let removed = queue.remove(lane, ticket, now_ns);
        mirror(&queue);
        state.store(RUNNING, Ordering::SeqCst);
        drop(queue);
        drop(removed);
    }
}

/// Gives the CPU to the next task if there is one; the current one stays runnable. Timers fire and news of the host are taken as by
/// [`let_others_go_on`].
pub fn yield_now() {
    let state = current();
    if !take_news(state.sched()) && QUEUED.load(Ordering::SeqCst) != 0 {
        schedule(Place::Kernel);
    }
}

/// Fires timers that are due, and has the idle task take news of the host if there are any; whether it did.
fn take_news(state: &SchedState) -> bool {
    // An idle task comes back only once its CPU has nothing else to do, and may hold a mutex that others wait for.
    if state.is_idle() {
        return false;
    }
    // They take no mutex, so it does not matter what the task holds.
    timer::run_expired();
    let has_news = has_news();
    if has_news {
        // To act on news may take a mutex that the task holds: the idle task can wait for it.
        schedule_to(Turn::Idle, Place::Kernel);
    }
    has_news
}

/// Work of the kernel that takes long says so now and then: timers that are due fire, news of the host are taken, others run whose
/// turn it is, and the host sees that it goes on. `EINTR`: the task is to end. The caller may sleep.
#[cfg_attr(feature = "checks", track_caller)]
pub fn go_on() -> Result<()> {
    let task = current();
    if task.is_to_end() {
        return Err(Errno::EINTR);
    }
    let_others_go_on();
    Ok(())
}

/// [`go_on`] for work that a task finishes even if it is to end.
#[cfg_attr(feature = "checks", track_caller)]
pub fn let_others_go_on() {
    lock_order::may_sleep();
    let task = current();
    // About to sleep until what it does now succeeds, it asks once more then.
    settle(&task);
    let state = task.sched();
    #[cfg(feature = "checks")]
    work::end_stretch(core::panic::Location::caller());
    if !take_news(state) && !state.is_idle() && QUEUED.load(Ordering::SeqCst) != 0 {
        let is_urgent = state.urgent.load(Ordering::Relaxed) != 0;
        let_others_in(state, if is_urgent { Place::Urgent } else { Place::Kernel });
    }
    let now = time::monotonic_ns();
    let shown = &this_cpu().shown_ns;
    if now.wrapping_sub(shown.load(Ordering::Relaxed)) >= SHOWN_EVERY_NS {
        shown.store(now, Ordering::Relaxed);
        platform::show_progress();
    }
}

/// Gives the CPU to the next task if the current one's time slice is over.
fn let_others_in(state: &SchedState, place: Place) {
    if time::monotonic_ns() >= state.slice_end_ns.load(Ordering::Relaxed) {
        state.involuntary_switches.fetch_add(1, Ordering::Relaxed);
        schedule(place);
    }
}

/// The current task holds something that tasks of other owners wait for, for as long as this lives: where it lets others go on, its
/// owner's share does not keep it waiting.
pub struct Urgent(Option<Runnable>);

/// See [`Urgent`].
pub fn be_urgent() -> Urgent {
    // In unit tests there is no task.
    let task = platform::is_ready().then(current);
    if let Some(task) = &task {
        task.sched().urgent.fetch_add(1, Ordering::Relaxed);
    }
    Urgent(task)
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.sched().urgent.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// That of the first task in the queue.
    First,
    /// This CPU's idle task.
    Idle,
}

/// Switches to another task. The current one goes on later if it is runnable, from `place` in the queue, or once it is woken.
#[cfg_attr(feature = "checks", track_caller)]
fn schedule(place: Place) {
    schedule_to(Turn::First, place);
}

#[cfg_attr(feature = "checks", track_caller)]
fn schedule_to(turn: Turn, place: Place) {
    lock_order::may_sleep();
    let me = current();
    let cpu = arch::cpu_index();
    let next = {
        let (mut queue, now_ns) = queue_to_change();
        queue.leave(cpu, now_ns);
        if me.sched().state.load(Ordering::SeqCst) == RUNNING && !me.sched().is_idle() {
            me.sched().state.store(RUNNABLE, Ordering::SeqCst);
            add(&mut queue, &me, (place, place != Place::Boundary), now_ns);
        }
        // A task that was woken while still about to sleep elsewhere is left to the CPU it is on.
        let free = |task: &Runnable| Arc::ptr_eq(task, &me) || task.sched().is_off_stack();
        let next = if turn == Turn::Idle || FROZEN.load(Ordering::SeqCst) {
            None
        } else {
            queue.pick(cpu, pause::is_paused(), now_ns, free)
        };
        this_cpu().busy.store(next.is_some(), Ordering::SeqCst);
        mirror(&queue);
        next
    };
    let next = next.map(|(next, slice_ns)| {
        next.sched().slice_end_ns.store(time::monotonic_ns() + slice_ns, Ordering::Relaxed);
        if next.sched().is_at_boundary.load(Ordering::Relaxed) {
            next.sched().is_at_boundary.store(false, Ordering::SeqCst);
        }
        next
    });
    let next = match next {
        Some(next) => next,
        None => match &*this_cpu().idle_task.lock() {
            Some(idle) => idle.clone(),
            None => host::die("no idle task"),
        },
    };
    if !next.sched().is_idle() {
        next.sched().state.store(RUNNING, Ordering::SeqCst);
    }
    if Arc::ptr_eq(&next, &me) {
        return;
    }
    switch_to(me, next);
}

fn switch_to(me: Runnable, next: Runnable) {
    if me.sched().is_idle() {
        rest::end_on(arch::cpu_index(), &next);
    }
    if !me.sched().is_idle() {
        me.sched().count_time(false);
    }
    let rests = next.sched().is_idle() && me.sched().may_rest();
    this_cpu().leaves_resting.store(rests, Ordering::Relaxed);
    if rests {
        me.rest_on_cpu();
    } else {
        me.leave_cpu();
    }
    rest::take(&next);
    while next.sched().on_cpu.swap(true, Ordering::Acquire) {
        core::hint::spin_loop();
    }
    me.sched().switches.fetch_add(1, Ordering::Relaxed);
    next.sched().start_count();
    let cpu = this_cpu();
    next.enter_cpu();
    // In this order with a look at its CPUs before user code: see `affinity::bind`.
    next.sched().last_cpu.store(arch::cpu().cpu, Ordering::SeqCst);
    let save = me.sched().sp.get();
    // SAFETY: `on_cpu` of `next` is ours, so its saved stack pointer is stable and nothing runs on its stack.
    let load = unsafe { *next.sched().sp.get() };
    cpu.run(next.sched());
    *cpu.current.lock() = Some(next);
    *cpu.previous.lock() = Some(me);
    // SAFETY: `save` belongs to the task kept alive by `previous`; `load` was made by `prepare_stack` or a switch.
    unsafe { arch::switch_stacks(save, load) };
    finish_switch();
}

/// The first function of a new task, on its own stack.
extern "sysv64" fn begin_task() -> ! {
    finish_switch();
    let main = current().sched().main;
    main();
    exit_current()
}

/// Runs first after a switch: lets go of the task that was left.
fn finish_switch() {
    let cpu = this_cpu();
    let previous = cpu.previous.lock().take();
    if let Some(previous) = previous {
        if cpu.leaves_resting.swap(false, Ordering::Relaxed) {
            // This CPU looks at the queue before it blocks, but may not run all that waits there.
            let leaves = !previous.sched().cpus().is_all();
            let leaves = leaves.then(|| previous.clone());
            rest::begin(previous);
            leaves.iter().filter(|task| task.sched().is_runnable()).for_each(notify_of);
            return;
        }
        previous.sched().on_cpu.store(false, Ordering::SeqCst);
        if previous.sched().is_runnable() {
            notify_of(&previous);
        }
        // The last reference to a dead task may go here; its stack is not in use any more.
        drop(previous);
    }
}

/// Ends the current task. Its `Arc` is dropped by whatever runs next.
fn exit_current() -> ! {
    let me = current();
    me.sched().state.store(DEAD, Ordering::SeqCst);
    drop(me);
    schedule(Place::Kernel);
    host::die("a dead task ran")
}

/// Called before user code runs: lets others in when the time slice is over, and says when to interrupt: at `watch_ns`
/// (monotonic) at the latest.
pub fn before_user(state: &SchedState, watch_ns: u64) {
    loop {
        affinity::move_if_misplaced(state);
        share_cpu(state, watch_ns);
        // It may be another CPU now, from which it was bound meanwhile.
        if state.may_run_here() {
            return;
        }
    }
}

fn share_cpu(state: &SchedState, watch_ns: u64) {
    let mut deadline = timer::next_deadline().min(watch_ns);
    // Before the look at the queue: whoever fills it later sees that this CPU must be kicked.
    events::publish_deadline(deadline);
    if QUEUED.load(Ordering::SeqCst) != 0 {
        let_others_in(state, Place::Boundary);
        let slice = state.slice_end_ns.load(Ordering::Relaxed);
        deadline = timer::next_deadline().min(slice).min(watch_ns);
    }
    let granted = state.granted_until_ns.load(Ordering::Relaxed);
    if granted != u64::MAX {
        deadline = shares::within_budget(state, granted, deadline).min(watch_ns);
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

/// Makes the task look at its signals: wakes it from an interruptible sleep, interrupts its user code.
pub fn call_attention(task: &Runnable) {
    task.sched().attention.store(true, Ordering::SeqCst);
    if !wake_interruptible(task) {
        if task.sched().is_at_boundary.load(Ordering::SeqCst) {
            bring_forward(task);
        }
        let cpu = task.sched().last_cpu.load(Ordering::SeqCst) as usize;
        if cpu < platform::cpus() && cpu != arch::cpu_index() {
            platform::kick(cpu);
        }
    }
}

/// A task that waits on the way to user code comes before others, and whatever its owner's budget.
#[cold]
fn bring_forward(task: &Runnable) {
    let mut queue = QUEUE.lock();
    let now_ns = now_for(&queue);
    let (lane, ticket) = task.sched().place();
    let Some(ticket) = queue.promote(lane, ticket, now_ns) else { return };
    task.sched().ticket.store(ticket, Ordering::Relaxed);
    mirror(&queue);
    drop(queue);
    notify_of(task);
}

/// Makes the code running on this CPU's boot stack its idle task.
pub fn adopt_idle(idle: &Runnable) {
    let cpu = this_cpu();
    *cpu.idle_task.lock() = Some(idle.clone());
    cpu.run(idle.sched());
    *cpu.current.lock() = Some(idle.clone());
}

/// Runs other tasks, if there are any to run; false: there are none. For a CPU's idle task.
pub fn run_others() -> bool {
    let has_work = has_work();
    if has_work {
        schedule(Place::Kernel);
    }
    has_work
}

/// Blocks this CPU until it has work, or until the time (monotonic) that `prepare` says; it is called once it is certain
/// that there is no work now. For a CPU's idle task.
pub fn wait_for_work(prepare: impl FnOnce() -> u64) {
    let cpu = this_cpu();
    cpu.idle.store(true, Ordering::SeqCst);
    if !has_work() && arch::cpu().pending.load(Ordering::SeqCst) == 0 {
        time::resync();
        let limit_ns = prepare();
        // Who wakes a task while this CPU sees to what it was woken for tells another one, if there is one.
        events::wait(timer::next_deadline().min(limit_ns), || cpu.idle.store(false, Ordering::SeqCst));
    }
    cpu.idle.store(false, Ordering::SeqCst);
}

/// A count that changes when a task is woken while the sandbox is paused.
pub fn woken_in_pause() -> u64 {
    WOKEN_IN_PAUSE.load(Ordering::SeqCst)
}

/// Makes another CPU that has nothing to do look around, whether it waits already or is about to; false: there is none.
pub fn rouse_another() -> bool {
    let me = arch::cpu_index();
    let mut others = (0..platform::cpus()).filter(|&cpu| cpu != me);
    let waits = others.clone().find(|&cpu| CPUS[cpu].idle.swap(false, Ordering::SeqCst));
    let is_free = |&cpu: &usize| !CPUS[cpu].busy.load(Ordering::SeqCst);
    waits.or_else(|| others.find(is_free)).map(platform::kick).is_some()
}

/// Whether this CPU, which is idle, has a task to run. In a pause those come to rest as well that wait for a budget.
fn has_work() -> bool {
    let has_parked = || pause::is_paused() && has_parked();
    (QUEUED.load(Ordering::SeqCst) != 0 || has_parked()) && !FROZEN.load(Ordering::SeqCst) && has_own_work()
}

/// Whether one of those that wait may run on this CPU.
fn has_own_work() -> bool {
    !HAS_BOUND.load(Ordering::SeqCst) || QUEUE.lock().has_for(arch::cpu_index(), pause::is_paused())
}

/// Whether tasks wait for their owner's budget.
pub fn has_parked() -> bool {
    PARKED.load(Ordering::SeqCst) != 0
}

/// Whether tasks wait for a CPU.
pub fn has_waiting() -> bool {
    QUEUED.load(Ordering::SeqCst) != 0
}

/// Whether the host has told this CPU of something that it has yet to look at.
pub fn has_news() -> bool {
    arch::cpu().pending.load(Ordering::SeqCst) != 0
}

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

/// Tasks of an owner that run or wait for a CPU.
pub fn running_tasks(owner: owner::Owner) -> usize {
    QUEUE.lock().running(owner)
}
