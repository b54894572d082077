//! The loop of a CPU that has nothing to do.

use core::sync::atomic::Ordering;

use super::cpu::this_cpu;
use super::queue::QueueClass;
use super::schedule::schedule;
use super::task::Runnable;
use super::turns::has_news;
use super::{state, timer};
use crate::{arch, events, time};

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
    if !has_work() && !has_news() {
        time::resync();
        let limit_ns = prepare();
        // Who wakes a task while this CPU sees to what it was woken for tells another one, if there is one.
        events::wait(timer::next_deadline().min(limit_ns), || cpu.idle.store(false, Ordering::SeqCst));
    }
    cpu.idle.store(false, Ordering::SeqCst);
}

/// Whether this CPU, which is idle, has a task to run. In a pause those come to rest as well that wait for a budget.
fn has_work() -> bool {
    let has_parked = || state::is_paused() && state::has_parked();
    (state::has_waiting() || has_parked()) && !state::is_frozen() && has_own_work()
}

/// Whether one of those that wait may run on this CPU.
fn has_own_work() -> bool {
    !state::has_bound() || state::lock().queue.has_for(arch::cpu_index(), state::is_paused())
}
