//! The host's side: answers hostcalls, and runs "user code", which is the next step of the sequence.

use abi::HostCall;
use abi::hostcall as hc;
use abi::run::{PF_USER, RunState, TRAP_INTERRUPT, TRAP_PAGE_FAULT, TRAP_SYSCALL, TrapInfo};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::steps::{Step, Steps};
use crate::platform;
use crate::sync::SpinLock;
use crate::task;

const EXIT_GROUP: u64 = 231;
const ENOSYS: i64 = 38;
/// Mapping operations are the stub's affair; here memory is reached by the kernel alone.
const DONE: i64 = 0;

struct Feed {
    steps: Steps,
    first_pid: u32,
}

static FEED: SpinLock<Feed> = SpinLock::new(Feed { steps: Steps::new(Vec::new()), first_pid: 0 });
static TRACE: SpinLock<Option<fn(&str)>> = SpinLock::new(None);
static NEXT_STUB: AtomicU64 = AtomicU64::new(1);
/// The host's clock, in nanoseconds: a little later at each look.
static CLOCK_NS: AtomicU64 = AtomicU64::new(1 << 30);
const LOOK_NS: u64 = 1000;

/// Gives the tasks their steps.
pub fn feed(bytes: &[u8], first_pid: u32) {
    *FEED.lock() = Feed { steps: Steps::new(bytes.to_vec()), first_pid };
}

/// What prints the kernel's log.
pub fn set_trace(trace: Option<fn(&str)>) {
    *TRACE.lock() = trace;
}

fn text(phys: u64, len: u64) -> &'static str {
    // SAFETY: the kernel passes a string that it holds until the call returns.
    let bytes = unsafe { core::slice::from_raw_parts(platform::ptr::<u8>(phys), len as usize) };
    core::str::from_utf8(bytes).unwrap_or("?")
}

/// The hostcall entry.
pub extern "sysv64" fn enter(call: *mut HostCall) {
    // SAFETY: the kernel passes a call of its own.
    let call = unsafe { &mut *call };
    call.result = answer(call.number, &call.args);
}

fn answer(number: u32, args: &[u64; 6]) -> i64 {
    match number {
        hc::LOG => {
            let trace = *TRACE.lock();
            if let Some(trace) = trace {
                trace(text(args[0], args[1]));
            }
            DONE
        }
        hc::PANIC => panic!("the kernel gives up: {}", text(args[0], args[1])),
        hc::EXIT => panic!("the kernel ends the sandbox: {:#x}", args[0]),
        hc::CLOCK => {
            let now = CLOCK_NS.fetch_add(LOOK_NS, Ordering::Relaxed);
            let clocks =
                crate::time::HostClocks { monotonic_ns: now, realtime_ns: now + (1 << 60), boottime_ns: now };
            // SAFETY: the kernel passes the place for them.
            unsafe { platform::ptr::<crate::time::HostClocks>(args[0]).write(clocks) };
            DONE
        }
        hc::RANDOM => {
            for at in 0..args[1] {
                // SAFETY: the kernel passes a buffer of this length.
                unsafe { platform::ptr::<u8>(args[0]).add(at as usize).write(at as u8) };
            }
            DONE
        }
        hc::RELEASE => {
            // SAFETY: the kernel releases whole pages that it does not use.
            unsafe { platform::ptr::<u8>(args[0]).write_bytes(0, args[1] as usize) };
            DONE
        }
        hc::AS_CREATE => NEXT_STUB.fetch_add(1, Ordering::Relaxed).cast_signed(),
        hc::AS_RUN => {
            // SAFETY: the kernel passes the state of the task that it runs, and lends it for the call.
            run(unsafe { &mut *(args[1] as *mut RunState) });
            DONE
        }
        hc::AS_DESTROY | hc::AS_SYNC | hc::AS_SAVE_FPU | hc::KICK | hc::YIELD | hc::SET_DEADLINE => DONE,
        hc::REPORT | hc::EVENTS | hc::IDLE | hc::CLOSE | hc::STATS | hc::CPU_TIME => DONE,
        // No files, sockets or sleeping memory of the host's.
        _ => -ENOSYS,
    }
}

/// The next step of the current task.
fn run(state: &mut RunState) {
    let task = task::current();
    let step = {
        let mut feed = FEED.lock();
        let first_pid = feed.first_pid;
        feed.steps.next(task.process.pid, first_pid)
    };
    let aspace = task.aspace();
    state.trap = TrapInfo { kind: TRAP_INTERRUPT, ..TrapInfo::default() };
    match step {
        Step::Call { number, args } => {
            let regs = &mut state.regs;
            regs.rax = number;
            [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = args;
            state.trap.kind = TRAP_SYSCALL;
        }
        Step::Write { addr, bytes } => {
            // A page that cannot be written stays as it is.
            let _ = aspace.map(|aspace| aspace.copy_out(addr, &bytes));
        }
        Step::Fault { addr, error } => {
            state.trap = TrapInfo { kind: TRAP_PAGE_FAULT, vector: 14, error: error | PF_USER, addr };
        }
        Step::End => {
            state.regs.rax = EXIT_GROUP;
            state.regs.rdi = 0;
            state.trap.kind = TRAP_SYSCALL;
        }
    }
}
