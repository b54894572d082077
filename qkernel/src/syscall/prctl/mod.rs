//! `prctl(2)`.

mod kept;
mod privileges;

use abi::word::low32;
use core::sync::atomic::Ordering;

use crate::signals::SIGRTMAX;
use crate::syscall::context::SyscallResult;
use crate::syscall::prctl::kept::{kept, unused};
use crate::syscall::seccomp;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;

const PR_SET_PDEATHSIG: u32 = 1;
const PR_GET_PDEATHSIG: u32 = 2;
const PR_GET_DUMPABLE: u32 = 3;
const PR_SET_DUMPABLE: u32 = 4;
const PR_GET_TIMING: u32 = 13;
const PR_SET_TIMING: u32 = 14;
const PR_SET_NAME: u32 = 15;
const PR_GET_NAME: u32 = 16;
const PR_GET_SECCOMP: u32 = 21;
const PR_SET_SECCOMP: u32 = 22;
const PR_GET_TSC: u32 = 25;
const PR_SET_TIMERSLACK: u32 = 29;
const PR_GET_TIMERSLACK: u32 = 30;
const PR_TASK_PERF_EVENTS_DISABLE: u32 = 31;
const PR_TASK_PERF_EVENTS_ENABLE: u32 = 32;
const PR_SET_CHILD_SUBREAPER: u32 = 36;
const PR_GET_CHILD_SUBREAPER: u32 = 37;
const PR_SET_NO_NEW_PRIVS: u32 = 38;
const PR_GET_NO_NEW_PRIVS: u32 = 39;
const PR_GET_TID_ADDRESS: u32 = 40;
const PR_SET_THP_DISABLE: u32 = 41;
const PR_GET_THP_DISABLE: u32 = 42;
/// The time-stamp counter can be read.
const PR_TSC_ENABLE: u32 = 1;
const PR_SET_VMA: u32 = 0x5356_4d41;

/// `prctl(2)`.
pub(super) fn prctl(cx: &Ctx<'_>, option: u32, a: u64, b: u64, c: u64, d: u64) -> SyscallResult {
    let process = cx.process();
    match option {
        PR_SET_PDEATHSIG if a > u64::from(SIGRTMAX) => Err(Errno::EINVAL),
        PR_SET_PDEATHSIG => {
            cx.task.death_signal.store(low32(a), Ordering::Relaxed);
            Ok(0)
        }
        PR_GET_PDEATHSIG => {
            cx.user().write(UserAddr::new(a), &cx.task.death_signal.load(Ordering::Relaxed))?;
            Ok(0)
        }
        PR_GET_DUMPABLE => Ok(u64::from(process.dumpable.load(Ordering::Relaxed))),
        PR_SET_DUMPABLE if a > 1 => Err(Errno::EINVAL),
        PR_SET_DUMPABLE => {
            process.dumpable.store(low32(a), Ordering::Relaxed);
            Ok(0)
        }
        PR_SET_NAME => set_name(cx, UserAddr::new(a)),
        PR_GET_NAME => {
            let name = *cx.task.comm.lock();
            cx.user().write(UserAddr::new(a), &name)?;
            Ok(0)
        }
        PR_GET_TIMING => Ok(0),
        PR_SET_TIMING if a != 0 => Err(Errno::EINVAL),
        PR_SET_TIMING => Ok(0),
        PR_GET_TSC => {
            cx.user().write(UserAddr::new(a), &PR_TSC_ENABLE)?;
            Ok(0)
        }
        PR_GET_SECCOMP => Ok(cx.task.confinement.mode() as u64),
        PR_SET_SECCOMP => seccomp::by_prctl(cx, a, UserAddr::new(b)),
        PR_SET_TIMERSLACK => {
            cx.task.timer_slack_ns.set(a);
            Ok(0)
        }
        PR_GET_TIMERSLACK => Ok(cx.task.timer_slack_ns.get()),
        PR_TASK_PERF_EVENTS_DISABLE | PR_TASK_PERF_EVENTS_ENABLE => Ok(0),
        PR_GET_TID_ADDRESS => {
            cx.user().write(UserAddr::new(a), &cx.task.clear_child_tid.load(Ordering::Relaxed))?;
            Ok(0)
        }
        // PR_SET_VMA_ANON_NAME: names of mappings are not kept.
        PR_SET_VMA if a == 0 => Ok(0),
        _ => marks(cx, option, [a, b, c, d]),
    }
}

/// Marks of a process that are set or not, and options that are kept without effect.
fn marks(cx: &Ctx<'_>, option: u32, [a, b, c, d]: [u64; 4]) -> SyscallResult {
    let process = cx.process();
    match option {
        PR_SET_CHILD_SUBREAPER => {
            process.is_subreaper.store(a != 0, Ordering::Relaxed);
            Ok(0)
        }
        PR_GET_CHILD_SUBREAPER => {
            cx.user().write(UserAddr::new(a), &u32::from(process.is_subreaper.load(Ordering::Relaxed)))?;
            Ok(0)
        }
        PR_SET_NO_NEW_PRIVS => {
            unused(&[b, c, d])?;
            if a != 1 {
                return Err(Errno::EINVAL);
            }
            cx.task.confinement.set_no_new_privs();
            Ok(0)
        }
        PR_GET_NO_NEW_PRIVS => {
            unused(&[a, b, c, d])?;
            Ok(u64::from(cx.task.confinement.no_new_privs()))
        }
        PR_SET_THP_DISABLE => {
            unused(&[b, c, d])?;
            process.refuses_huge_pages.store(a != 0, Ordering::Relaxed);
            Ok(0)
        }
        PR_GET_THP_DISABLE => {
            unused(&[a, b, c, d])?;
            Ok(process.refuses_huge_pages.load(Ordering::Relaxed).into())
        }
        _ => kept(cx, &cx.task.creds.get(), option, [a, b, c, d]),
    }
}

fn set_name(cx: &Ctx<'_>, addr: UserAddr) -> SyscallResult {
    let mut name = [0u8; 16];
    // A name that is too long is cut rather than refused.
    let given = match cx.user().read_cstr(addr, 15, Errno::ENAMETOOLONG) {
        Err(Errno::ENAMETOOLONG) => cx.user().read_array(addr, 15)?,
        given => given?,
    };
    name[..given.len()].copy_from_slice(&given);
    *cx.task.comm.lock() = name;
    Ok(0)
}
