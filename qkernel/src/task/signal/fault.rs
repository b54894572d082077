//! Signals an instruction causes.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::signals::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP, Source, bit};
use crate::task::core::Task;
use crate::task::oom;
use crate::task::signal::action::{Action, SIG_DFL};
use crate::task::signal::facts::Facts;
use crate::task::signal::info::SigInfo;
use machine::mm::Fault;

const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
const BUS_ADRALN: i32 = 1;
const BUS_ADRERR: i32 = 2;
const ILL_ILLOPN: i32 = 2;
const TRAP_TRACE: i32 = 2;
const FPE_INTDIV: i32 = 1;
const FPE_FLTDIV: i32 = 3;
const FPE_FLTOVF: i32 = 4;
const FPE_FLTUND: i32 = 5;
const FPE_FLTRES: i32 = 6;
const FPE_FLTINV: i32 = 7;
const PAGE_FAULT: u64 = 14;
const GENERAL_PROTECTION: u32 = 13;

/// A fault of the current task; `error` is the processor's error code.
pub fn raise_fault(task: &Arc<Task>, fault: Fault, error: u64) {
    let (signal, code, addr) = match fault {
        Fault::NotMapped { addr } => (SIGSEGV, SEGV_MAPERR, addr),
        Fault::Forbidden { addr } => (SIGSEGV, SEGV_ACCERR, addr),
        Fault::Bus { addr } => (SIGBUS, BUS_ADRERR, addr),
        Fault::NoMemory => {
            // The instruction runs again, unless the process is the one that goes.
            oom::relieve(task);
            return;
        }
    };
    task.signals.lock().fault = Facts { trap: PAGE_FAULT, error, cr2: addr };
    force(task, SigInfo { signal, source: Source::Fault { code, addr } });
}

/// A processor exception of the current task.
pub fn raise_exception(task: &Arc<Task>, vector: u32, error: u64) {
    let rip = task.context().run.regs.rip;
    let at_instruction = |code| Source::Fault { code, addr: rip };
    let (signal, source) = match vector {
        0 => (SIGFPE, at_instruction(FPE_INTDIV)),
        1 => (SIGTRAP, at_instruction(TRAP_TRACE)),
        3 => (SIGTRAP, Source::Kernel),
        6 => (SIGILL, at_instruction(ILL_ILLOPN)),
        11 | 12 => (SIGBUS, Source::Kernel),
        16 | 19 => (SIGFPE, at_instruction(fpu_code(task, vector))),
        17 => (SIGBUS, Source::Fault { code: BUS_ADRALN, addr: 0 }),
        _ => (SIGSEGV, Source::Kernel),
    };
    {
        let mut signals = task.signals.lock();
        signals.fault.trap = u64::from(vector);
        signals.fault.error = error;
    }
    force(task, SigInfo { signal, source });
}

/// User code would go on where no user code can be: what the processor would say there.
pub fn raise_bad_instruction_pointer(task: &Arc<Task>, rip: u64) {
    const CANONICAL_HIGH: u64 = 0xffff_8000_0000_0000;
    const CANONICAL_LOW_END: u64 = 0x8000_0000_0000;
    if (CANONICAL_LOW_END..CANONICAL_HIGH).contains(&rip) {
        raise_exception(task, GENERAL_PROTECTION, 0);
    } else {
        raise_fault(task, Fault::NotMapped { addr: rip }, 0x15);
    }
}

/// `si_code` of an x87 (16) or SSE (19) exception, from the unit's status.
fn fpu_code(task: &Task, vector: u32) -> i32 {
    let mut context = task.context();
    context.sync_fpu();
    let word = |at: usize| u32::from(context.fpu.0[at]) | u32::from(context.fpu.0[at + 1]) << 8;
    if vector == 16 { raised_code(word(2) & !word(0)) } else { raised_code(word(24) & !(word(24) >> 7)) }
}

/// `si_code` for the raised and unmasked exception bits.
fn raised_code(bits: u32) -> i32 {
    match bits {
        bits if bits & 0x01 != 0 => FPE_FLTINV,
        bits if bits & 0x04 != 0 => FPE_FLTDIV,
        bits if bits & 0x08 != 0 => FPE_FLTOVF,
        bits if bits & 0x12 != 0 => FPE_FLTUND,
        bits if bits & 0x20 != 0 => FPE_FLTRES,
        _ => FPE_FLTINV,
    }
}

/// Sends the current task a signal it cannot escape: blocked or ignored, it has its default action.
pub fn force(task: &Arc<Task>, info: SigInfo) {
    let sighand = task.process.sighand.get();
    {
        let _signal_lock = task.process.pending.lock();
        let mut own = task.signals.lock();
        let action = sighand.get(info.signal);
        let blocked = own.blocked & bit(info.signal) != 0;
        if blocked || action.ignores(info.signal) {
            sighand.set(info.signal, Action { handler: SIG_DFL, ..action });
            own.blocked &= !bit(info.signal);
        }
        if sighand.get(info.signal).handler == SIG_DFL {
            task.process.is_protected.store(false, Ordering::Relaxed);
        }
        own.pending.flush(bit(info.signal));
        let _ = own.pending.push(info, u64::MAX);
    }
    task.call_attention();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_codes_follow_the_unmasked_bits() {
        assert_eq!(raised_code(0x04), FPE_FLTDIV);
        assert_eq!(raised_code(0x24), FPE_FLTDIV);
        assert_eq!(raised_code(0x10), FPE_FLTUND);
        assert_eq!(raised_code(0x20), FPE_FLTRES);
    }
}
