//! `membarrier(2)`.

use core::sync::atomic::Ordering;

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::platform;

const MEMBARRIER_QUERY: i32 = 0;
const MEMBARRIER_GLOBAL: i32 = 1;
const MEMBARRIER_GLOBAL_EXPEDITED: i32 = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const MEMBARRIER_PRIVATE_SYNC_CORE: i32 = 1 << 5;
const MEMBARRIER_REGISTER_PRIVATE_SYNC_CORE: i32 = 1 << 6;
const MEMBARRIER_GET_REGISTRATIONS: i32 = 1 << 9;
/// Those that there are; the barrier for restartable sequences (bits 7 and 8) is not among them.
const MEMBARRIER_ALL: i32 = ((1 << 7) - 1) | MEMBARRIER_GET_REGISTRATIONS;

/// `membarrier(2)`.
///
/// A CPU that enters the kernel has ordered its memory accesses, and one that goes back to user code has serialised its
/// instruction stream. So the barrier is to make every CPU that runs user code concerned leave it once; those in the
/// kernel are past their barrier already. Registration has nothing to prepare; without it, private barriers answer `EPERM`.
pub(super) fn membarrier(cx: &Ctx<'_>, command: i32, flags: u32, _cpu: i32) -> SyscallResult {
    let registered = &cx.task.process.kept.barriers;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    match command {
        MEMBARRIER_QUERY => return Ok(MEMBARRIER_ALL.unsigned_abs().into()),
        MEMBARRIER_GLOBAL | MEMBARRIER_GLOBAL_EXPEDITED => leave_user_code(|_| true),
        MEMBARRIER_PRIVATE_EXPEDITED | MEMBARRIER_PRIVATE_SYNC_CORE => {
            // The command that registers for it is the next bit.
            if registered.load(Ordering::Relaxed) & (command << 1).unsigned_abs() == 0 {
                return Err(Errno::EPERM);
            }
            let aspace = cx.aspace();
            let mine = aspace.machine().mark();
            leave_user_code(|id| id == mine);
        }
        MEMBARRIER_REGISTER_GLOBAL_EXPEDITED
        | MEMBARRIER_REGISTER_PRIVATE_EXPEDITED
        | MEMBARRIER_REGISTER_PRIVATE_SYNC_CORE => {
            registered.fetch_or(command.unsigned_abs(), Ordering::Relaxed);
        }
        MEMBARRIER_GET_REGISTRATIONS => {
            let mut told = registered.load(Ordering::Relaxed);
            // As on Linux, which does not let this one stand for the other.
            if told & MEMBARRIER_REGISTER_PRIVATE_SYNC_CORE.unsigned_abs() != 0 {
                told |= MEMBARRIER_REGISTER_PRIVATE_EXPEDITED.unsigned_abs();
            }
            return Ok(told.into());
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// Makes the other CPUs leave user code of the address spaces `concerned` says, as `platform::shoot_down` does.
fn leave_user_code(concerned: impl Fn(u64) -> bool) {
    let me = machine::arch::cpu_index();
    for cpu in (0..platform::cpus()).filter(|&cpu| cpu != me) {
        let header = platform::header_of(cpu);
        let runs = || {
            let id = header.in_user.load(Ordering::SeqCst);
            id != 0 && concerned(id)
        };
        while runs() {
            platform::kick(cpu);
            for _ in 0..1000 {
                if !runs() {
                    break;
                }
                core::hint::spin_loop();
            }
        }
    }
}
