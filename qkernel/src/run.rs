//! The loop of a task: user code, its traps, signals and the scheduler.

use alloc::sync::Arc;

use machine::mm::{Fault, sites};
use machine::platform::Trap;
use machine::sched;
use machine::thread;

use crate::signals::SIGKILL;
use crate::syscall::dispatch::dispatch;
use crate::task::core::{Task, current};
use crate::task::{itimer, pause, sequences, signal};

/// Runs the current task until it ends.
pub fn run_task() {
    let task = current();
    let start = task.start.lock().take();
    if let Some(start) = start {
        start(&task);
    }
    // A new thread comes from the call that made it.
    let mut in_call = true;
    // Since it last ran user code its sequence has ended, and it was told its CPU.
    let mut is_fresh = false;
    loop {
        thread::handle_pending();
        if pause::rest(&task) {
            continue;
        }
        if task.wants_attention() && signal::deliver_pending(&task).is_break() {
            break;
        }
        task.thread.flush_mirror();
        if sequences::are_stale(&task, is_fresh) {
            is_fresh = sequences::refresh(&task, in_call);
            if task.wants_attention() {
                continue;
            }
        }
        let watch_ns = itimer::check_deadline(&task).min(task.rseq.break_ns());
        sched::before_user(&task.thread.sched, watch_ns);
        // It may have waited for the CPU just now.
        if task.wants_attention() || pause::is_to_rest(&task) || sequences::are_stale(&task, is_fresh) {
            continue;
        }
        let rip = task.context().run.regs.rip;
        if rip >= abi::layout::USER_MAX {
            // A jump there would fault at once; some addresses there the processor doesn't even let the kernel load.
            signal::raise_bad_instruction_pointer(&task, rip);
            continue;
        }
        let Some(trap) = task.thread.run_user() else { break };
        is_fresh = false;
        in_call = matches!(trap, Trap::Syscall | Trap::PatchedSyscall);
        itimer::check(&task);
        let number = task.context().run.regs.rax;
        handle_trap(&task, trap);
        sched::work::end_stretch(format_args!("{trap:?} {number}"));
    }
}

fn handle_trap(task: &Arc<Task>, trap: Trap) {
    let is_plain = trap == Trap::PatchedSyscall || !sites::are_there();
    let trap = if is_plain {
        trap
    } else {
        signal::correct(task, |aspace, regs| aspace.correct(regs, trap)).unwrap_or(trap)
    };
    match trap {
        Trap::Syscall => dispatch(task),
        Trap::PatchedSyscall => {
            dispatch(task);
            if sites::is_slot(task.context().run.regs.rip) {
                signal::correct(task, |aspace, regs| aspace.after_call(regs));
            }
        }
        Trap::Interrupt => task.rseq.interrupted(),
        Trap::PageFault { addr, error } => {
            let Some(aspace) = task.aspace() else { return };
            // An access of the processor's own on behalf of user code (a descriptor table, say) no mapping can help.
            let result = match error & abi::run::PF_USER {
                0 => Err(Fault::Forbidden { addr }),
                _ => aspace.handle_fault(addr, error),
            };
            let rip = task.context().run.regs.rip;
            if let Err(fault) = result
                && !aspace.have_slots_gone(addr, rip)
            {
                let error = aspace.error_code(addr, error);
                signal::raise_fault(task, fault, error);
            }
        }
        Trap::Bus { addr, .. } if task.aspace().is_some_and(|aspace| aspace.lost_template(addr)) => {}
        Trap::Bus { addr, error } => {
            signal::raise_fault(task, Fault::Bus { addr }, error | abi::run::PF_USER)
        }
        Trap::Exception { vector, error } => signal::raise_exception(task, vector, error),
        Trap::Lost => {
            machine::warn!("task {}: its address space is lost", task.tid());
            signal::kill_process(&task.process, SIGKILL);
        }
    }
}
