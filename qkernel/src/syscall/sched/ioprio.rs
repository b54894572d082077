//! `ioprio_set(2)` and `ioprio_get(2)`.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::creds::{CAP_SYS_ADMIN, CAP_SYS_NICE};
use crate::syscall::context::SyscallResult;
use crate::syscall::sched::priority::chosen;
use crate::syscall::sched::{Subject, check_owner};
use crate::task::context::Ctx;

use machine::errno::{Errno, Result};

/// The tasks `ioprio_get(2)` and `ioprio_set(2)` are about: as `setpriority(2)`, counted from 1.
fn chosen_for_io(cx: &Ctx<'_>, which: u32, who: u32) -> Result<Vec<Subject>> {
    chosen(cx, which.checked_sub(1).ok_or(Errno::EINVAL)?, who)
}

/// `ioprio_set(2)`: kept and reported.
pub(in crate::syscall) fn ioprio_set(cx: &Ctx<'_>, which: u32, who: u32, priority: u32) -> SyscallResult {
    const CLASS_REAL_TIME: u32 = 1;
    const CLASS_IDLE: u32 = 3;
    // What stands above class, hint and level is not looked at.
    let priority = priority & 0xffff;
    let (class, level) = (priority >> 13, priority & 7);
    if class > CLASS_IDLE || class == 0 && level != 0 {
        return Err(Errno::EINVAL);
    }
    let creds = cx.task.creds.get();
    if class == CLASS_REAL_TIME && !creds.has(CAP_SYS_NICE) && !creds.has(CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    for task in chosen_for_io(cx, which, who)? {
        check_owner(cx, &task)?;
        task.policy.io_priority.store(priority, Ordering::Relaxed);
    }
    Ok(0)
}

/// `ioprio_get(2)`.
pub(in crate::syscall) fn ioprio_get(cx: &Ctx<'_>, which: u32, who: u32) -> SyscallResult {
    let tasks = chosen_for_io(cx, which, who)?;
    let best = tasks.iter().map(|task| task.policy.io_priority.load(Ordering::Relaxed)).min();
    Ok(u64::from(best.unwrap_or(0)))
}
