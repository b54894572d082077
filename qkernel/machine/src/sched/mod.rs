//! The scheduler: one run queue, N vCPUs, round robin with a time slice; user code is pre-empted, the kernel is not.
//! Between owners the run queue divides the time ([`queue`]).

mod affinity;
mod budget;
mod charged;
mod cpu;
mod cpu_set;
mod freeze;
mod load;
pub mod pause;
pub mod periods;
pub mod pressure;
mod queue;
mod rest;
mod revive;
pub mod set_times;
pub mod shares;
mod sleep;
pub mod stack;
mod switch;
mod task;
pub mod timer;
pub mod wait;
mod waiting;
pub mod work;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

pub use affinity::bind;
pub use budget::{Quota, Throttling};
pub use charged::{ChargedTo, charge_to};
pub use cpu::current;
pub use cpu_set::CpuSet;
pub use freeze::{Frozen, freeze, freeze_queue, is_at_rest};
pub use load::{Averages, LOAD_SHIFT};
pub use revive::{fetch_all, forget_cpus};
pub use sleep::{Sleep, is_interrupted, sleep_until};
pub use task::{Run, Runnable, SchedState, Transfers};
pub use waiting::Waiting;

use cpu::{CPUS, this_cpu};
use queue::{QueueClass, RunQueue};
use sleep::settle;
use switch::switch_to;
use task::{RUNNABLE, RUNNING, SLEEPING, SLEEPING_UNINTERRUPTIBLE};

use crate::config::TIME_SLICE_NS;
use crate::errno::{Errno, Result};
use crate::lock_order;
use crate::rank::Rank;
use crate::spin::{SpinGuard, SpinLock};
use crate::{arch, events, host, in_flight, owner, platform, time};

/// How often long work shows the host that it goes on.
const SHOWN_EVERY_NS: u64 = 100_000_000;

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

/// Makes a new task runnable for the first time.
pub fn start(task: &Runnable) {
    wake_from(task, SLEEPING_UNINTERRUPTIBLE, QueueClass::Kernel);
}

/// Wakes a sleeping task; false when it wasn't asleep.
pub fn wake(task: &Runnable) -> bool {
    wake_interruptible(task) || wake_from(task, SLEEPING_UNINTERRUPTIBLE, QueueClass::Urgent)
}

/// Wakes a task that sleeps interruptibly.
pub fn wake_interruptible(task: &Runnable) -> bool {
    wake_from(task, SLEEPING, QueueClass::Kernel)
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
fn add(queue: &mut RunQueue<Runnable>, task: &Runnable, (class, is_busy): (QueueClass, bool), now_ns: u64) {
    let state = task.sched();
    state.goes_on_anywhere.store(is_busy, Ordering::SeqCst);
    let owner = state.owner();
    let class = match class {
        QueueClass::Boundary if queue.keeps_time() => {
            state.is_at_boundary.store(true, Ordering::SeqCst);
            // In this order: whoever calls its attention afterwards finds it at the boundary.
            if state.wants_attention() { QueueClass::Kernel } else { QueueClass::Boundary }
        }
        QueueClass::Boundary => QueueClass::Kernel,
        class => class,
    };
    let ticket = queue.add(owner, class, (task.clone(), state.cpus_in_queue()), now_ns);
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

fn wake_from(task: &Runnable, from: u8, class: QueueClass) -> bool {
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
        add(&mut queue, task, (class, class == QueueClass::Urgent), now_ns);
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
    let limit = time::on_host(time::monotonic_ns() + TIME_SLICE_NS);
    platform::header_of(cpu).deadline_ns.load(Ordering::SeqCst) > limit
}
/// Gives the CPU to the next task if there is one; the current one stays runnable. Timers fire and news of the host are taken as by
/// [`let_others_go_on`].
pub fn yield_now() {
    let state = current();
    if !take_news(state.sched()) && QUEUED.load(Ordering::SeqCst) != 0 {
        schedule(QueueClass::Kernel);
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
        schedule_to(Turn::Idle, QueueClass::Kernel);
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
        let_others_in(state, if is_urgent { QueueClass::Urgent } else { QueueClass::Kernel });
    }
    let now = time::monotonic_ns();
    let shown = &this_cpu().shown_ns;
    if now.wrapping_sub(shown.load(Ordering::Relaxed)) >= SHOWN_EVERY_NS {
        shown.store(now, Ordering::Relaxed);
        platform::show_progress();
    }
}

/// Gives the CPU to the next task if the current one's time slice is over.
fn let_others_in(state: &SchedState, class: QueueClass) {
    if time::monotonic_ns() >= state.slice_end_ns.load(Ordering::Relaxed) {
        state.involuntary_switches.fetch_add(1, Ordering::Relaxed);
        schedule(class);
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

/// Switches to another task. The current one goes on later if it is runnable, in this class of the queue, or once it is woken.
#[cfg_attr(feature = "checks", track_caller)]
fn schedule(class: QueueClass) {
    schedule_to(Turn::First, class);
}

#[cfg_attr(feature = "checks", track_caller)]
fn schedule_to(turn: Turn, class: QueueClass) {
    lock_order::may_sleep();
    let me = current();
    let cpu = arch::cpu_index();
    let next = {
        let (mut queue, now_ns) = queue_to_change();
        queue.leave(cpu, now_ns);
        if me.sched().state.load(Ordering::SeqCst) == RUNNING && !me.sched().is_idle() {
            me.sched().state.store(RUNNABLE, Ordering::SeqCst);
            add(&mut queue, &me, (class, class != QueueClass::Boundary), now_ns);
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
        let_others_in(state, QueueClass::Boundary);
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
    let former = cpu.idle_task.lock().replace(idle.clone());
    cpu.run(idle.sched());
    *cpu.current.lock() = Some(idle.clone());
    drop(former);
}

/// Runs other tasks, if there are any to run; false: there are none. For a CPU's idle task.
pub fn run_others() -> bool {
    let has_work = has_work();
    if has_work {
        schedule(QueueClass::Kernel);
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

/// Tasks of an owner that run or wait for a CPU.
pub fn running_tasks(owner: owner::Owner) -> usize {
    QUEUE.lock().running(owner)
}
