//! The switch from one task to another, how a task begins, and how it ends.

use core::sync::atomic::Ordering;

use super::cpu::{current, this_cpu};
use super::queue::QueueClass;
use super::stack::KernelStack;
use super::task::{DEAD, Runnable, SchedState};
use super::{notify_of, rest, schedule};
use crate::errno::Result;
use crate::{arch, host};

impl SchedState {
    /// A new task that will do `main` on a stack of its own.
    pub fn new(main: fn()) -> Result<Self> {
        let stack = KernelStack::new()?;
        // SAFETY: the stack is fresh and ours.
        let sp = unsafe { arch::prepare_stack(stack.top(), begin_task) };
        Ok(Self::with(sp, Some(stack), main))
    }
}

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
    schedule(QueueClass::Kernel);
    host::die("a dead task ran")
}
