//! Applies a task's filters, or strict mode, to a system call before it is performed.

use abi::seccomp::{ALLOW, ERRNO, KILL_THREAD, LOG, NOTIFY, TRACE, TRAP, VERDICT_DATA_BITS};
use abi::word::low32;
use alloc::sync::Arc;

use crate::seccomp::filter::Verdict;
use crate::seccomp::program::Data;
use crate::signals::{SIGKILL, SIGSYS, Source};
use crate::syscall::context::{KEEP_REGISTERS, SyscallResult};
use crate::syscall::properties::Properties;
use crate::task::confinement::Mode;
use crate::task::core::Task;
use crate::task::signal::fault::force;
use crate::task::signal::info::SigInfo;
use crate::task::signal::send::kill_process;
use machine::errno::Errno;
use machine::log::RateLimit;

/// The largest error number of a verdict (`MAX_ERRNO`).
const ERRNO_MAX: u32 = 4095;

static LOGGED: RateLimit = RateLimit::new();

/// The result of a call that is not performed; `None`: it is.
#[inline]
pub fn filter(
    task: &Arc<Task>,
    number: u64,
    properties: Properties,
    args: &[u64; 6],
) -> Option<SyscallResult> {
    match task.confinement.mode() {
        Mode::Off => None,
        Mode::Strict => strict(task, properties),
        Mode::Filter => {
            let call = low32(number);
            let data = || Data::new(call, seen_address(task), args);
            let verdict = task.confinement.verdict(call, data)?;
            carry_out(task, call, verdict)
        }
    }
}

/// Where the program has called from, as it knows it.
fn seen_address(task: &Arc<Task>) -> u64 {
    let mut regs = task.context().run.regs;
    if let Some(aspace) = task.aspace() {
        aspace.hide_slots(&mut regs);
    }
    regs.rip
}

#[cold]
fn strict(task: &Arc<Task>, properties: Properties) -> Option<SyscallResult> {
    if properties.contains(Properties::STRICT) {
        return None;
    }
    end_thread(task, SIGKILL);
    Some(Err(Errno(KEEP_REGISTERS)))
}

fn carry_out(task: &Arc<Task>, number: u32, verdict: Verdict) -> Option<SyscallResult> {
    let data = verdict.value & VERDICT_DATA_BITS;
    let action = verdict.action();
    if action == ALLOW {
        return None;
    }
    if verdict.logs || action == LOG {
        log(task, number, verdict.value);
    }
    match action {
        LOG => None,
        // A number that means something inside the kernel means nothing here.
        ERRNO => Some(Ok((-i64::from(data.min(ERRNO_MAX))).cast_unsigned())),
        // There is nobody to ask.
        TRACE | NOTIFY => Some(Err(Errno::ENOSYS)),
        TRAP => {
            let addr = task.context().run.regs.rip;
            let source = Source::Syscall { addr, number: number.cast_signed(), errno: data };
            force(task, SigInfo { signal: SIGSYS, source });
            Some(Err(Errno(KEEP_REGISTERS)))
        }
        KILL_THREAD if task.process.tasks.lock().len() > 1 => {
            log(task, number, verdict.value);
            end_thread(task, SIGSYS);
            Some(Err(Errno(KEEP_REGISTERS)))
        }
        // An action that is not known is the strictest, as on Linux.
        _ => {
            log(task, number, verdict.value);
            kill_process(&task.process, SIGSYS);
            Some(Err(Errno(KEEP_REGISTERS)))
        }
    }
}

/// Ends the current task alone, as by a signal that it cannot handle.
fn end_thread(task: &Arc<Task>, signal: u32) {
    task.set_exit_status(signal.cast_signed());
    task.set_dying();
    task.call_attention();
}

#[cold]
fn log(task: &Task, number: u32, verdict: u32) {
    if machine::log::enabled(machine::log::Level::Info) && LOGGED.allow() {
        machine::info!("task {}: its filter has {verdict:#010x} for system call {number}", task.tid());
    }
}
