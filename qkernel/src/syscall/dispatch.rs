//! From the registers of a task to the system call they ask for, and back.

use abi::run::UserRegs;
use alloc::sync::Arc;

use machine::errno::Errno;
use machine::mm::account;

use crate::fs::sigio;
use crate::net::passing;
use crate::syscall::context::KEEP_REGISTERS;
use crate::syscall::seccomp::entry::filter;
use crate::syscall::table;
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::{oom, signal};

/// Calls that go on when the kernel's memory is down to its reserve: those that give memory back, end things, or wait.
const GIVING_BACK: &[u64] = &[
    0,   // read
    1,   // write
    3,   // close
    7,   // poll
    11,  // munmap
    13,  // rt_sigaction
    14,  // rt_sigprocmask
    15,  // rt_sigreturn
    24,  // sched_yield
    28,  // madvise
    31,  // shmctl
    34,  // pause
    35,  // nanosleep
    39,  // getpid
    60,  // exit
    61,  // wait4
    62,  // kill
    65,  // semop
    66,  // semctl
    67,  // shmdt
    70,  // msgrcv
    71,  // msgctl
    77,  // ftruncate
    84,  // rmdir
    87,  // unlink
    186, // gettid
    200, // tkill
    202, // futex
    220, // semtimedop
    230, // clock_nanosleep
    231, // exit_group
    232, // epoll_wait
    234, // tgkill
    241, // mq_unlink
    243, // mq_timedreceive
    247, // waitid
    263, // unlinkat
    436, // close_range
    449, // futex_waitv
    454, // futex_wake
    455, // futex_wait
];

const EXECVE: u64 = 59;
const EXECVEAT: u64 = 322;

/// Performs the system call the current task's registers ask for.
pub fn dispatch(task: &Arc<Task>) {
    let cx = Ctx::new(task);
    let (number, args) = enter_call(&mut task.context().run.regs);
    account::relieve();
    let result = if let Some(result) = filter(task, number, &args) {
        result
    } else if account::is_overdrawn() && !GIVING_BACK.contains(&number) {
        oom::relieve(task);
        Err(Errno::ENOMEM)
    } else {
        table::call(&cx, number, args)
    };
    drop(cx);
    sigio::delivery::deliver();
    passing::collect_if_due();
    if matches!(number, EXECVE | EXECVEAT) {
        // The memory of the former program has gone with the call's hold on it.
        task.process.container.ipc().drop_unattached();
    }
    if table::strace() {
        table::trace(task, number, &args, &result);
    }
    match result {
        Ok(value) => set_result(task, value),
        Err(Errno::RESTART | Errno::RESTART_ALWAYS | Errno::RESTART_NOHAND | Errno::RESTART_BLOCK) => {
            let error = result.err().unwrap_or(Errno::EINTR);
            signal::call_interrupted(task, error, number);
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
