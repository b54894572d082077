//! The switch from one task to another.

use core::sync::atomic::Ordering;

use super::cpu::this_cpu;
use super::notify::notify_of;
use super::rest;
use super::task::Runnable;
use crate::arch;

/// Leaves the current task `me` for `next`, which has been picked for this CPU.
pub(super) fn switch_to(me: Runnable, next: Runnable) {
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

/// Runs first after a switch: lets go of the task that was left.
pub(super) fn finish_switch() {
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
