//! Tasks are woken, and called to their signals.

use core::sync::atomic::{AtomicU64, Ordering};

use super::notify::notify_of;
use super::queue::QueueClass;
use super::state;
use super::task::{RUNNING, Runnable, SLEEPING, SLEEPING_UNINTERRUPTIBLE};
use crate::{arch, platform};

/// Tasks that were woken while the sandbox was paused.
static WOKEN_IN_PAUSE: AtomicU64 = AtomicU64::new(0);

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
        let (mut scheduler, now_ns) = state::lock_to_change();
        if !scheduler.wake(task, from, class, now_ns) {
            return false;
        }
    }
    if state::is_paused() {
        WOKEN_IN_PAUSE.fetch_add(1, Ordering::SeqCst);
    }
    notify_of(task);
    true
}

/// A count that changes when a task is woken while the sandbox is paused.
pub fn woken_in_pause() -> u64 {
    WOKEN_IN_PAUSE.load(Ordering::SeqCst)
}

/// Makes the task look at its signals: wakes it from an interruptible sleep, interrupts its user code.
pub fn call_attention(task: &Runnable) {
    task.sched().attention.store(true, Ordering::SeqCst);
    if !wake_interruptible(task) {
        if task.sched().is_at_boundary.get() {
            bring_forward(task);
        }
        let cpu = task.sched().last();
        if cpu < platform::cpus() && cpu != arch::cpu_index() {
            platform::kick(cpu);
        }
    }
}

/// A task that waits on the way to user code comes before others.
#[cold]
fn bring_forward(task: &Runnable) {
    let is_forward = state::lock().bring_forward(task.sched());
    if is_forward {
        notify_of(task);
    }
}
