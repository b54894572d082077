//! From the registers of a task to the system call they ask for, and back.

use abi::run::UserRegs;
use alloc::sync::Arc;

use machine::errno::Errno;
use machine::mm::account;

use crate::fs::sigio;
use crate::net::passing;
use crate::syscall::context::KEEP_REGISTERS;
use crate::syscall::properties::Properties;
use crate::syscall::seccomp::entry::filter;
use crate::syscall::table::{self, PROPERTIES};
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::{oom, signal};

/// The number of the call that goes on with an interrupted sleep.
const RESUMING: u64 = PROPERTIES.only(Properties::RESUMES);

/// Performs the system call the current task's registers ask for.
pub fn dispatch(task: &Arc<Task>) {
    let cx = Ctx::new(task);
    let (number, args) = enter_call(&mut task.context().run.regs);
    let properties = PROPERTIES.of(number);
    account::relieve();
    let result = if let Some(result) = filter(task, number, properties, &args) {
        result
    } else if account::is_overdrawn() && !properties.contains(Properties::GIVES_BACK) {
        oom::relieve(task);
        Err(Errno::ENOMEM)
    } else {
        table::call(&cx, number, args)
    };
    drop(cx);
    sigio::delivery::deliver();
    passing::collect_if_due();
    if properties.contains(Properties::RUNS_PROGRAM) {
        // The memory of the former program has gone with the call's hold on it.
        task.process.container.ipc().drop_unattached();
    }
    if table::strace() {
        table::trace(task, number, &args, &result);
    }
    match result {
        Ok(value) => set_result(task, value),
        Err(
            error @ (Errno::RESTART | Errno::RESTART_ALWAYS | Errno::RESTART_NOHAND | Errno::RESTART_BLOCK),
        ) => {
            let again = if error == Errno::RESTART_BLOCK { RESUMING } else { number };
            signal::call_interrupted(task, error, again);
        }
        Err(Errno(KEEP_REGISTERS)) => {}
        Err(error) => set_result(task, (-i64::from(error.0)).cast_unsigned()),
    }
}

/// The call's number and arguments.
fn enter_call(regs: &mut UserRegs) -> (u64, [u64; 6]) {
    // The entry leaves rcx and r11 as the instruction does: return address and flags.
    regs.rcx = regs.rip;
    regs.r11 = regs.rflags;
    // As on Linux, only the low half of the number counts.
    (regs.rax & 0xffff_ffff, [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9])
}

fn set_result(task: &Arc<Task>, value: u64) {
    task.context().run.regs.rax = value;
}
