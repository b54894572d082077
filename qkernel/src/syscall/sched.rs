//! Scheduling: kept and reported; all tasks take turns alike.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::{Ctx, SyscallResult};
use crate::errno::{Errno, Result};
use crate::platform;
use crate::task::creds::CAP_SYS_NICE;
use crate::task::process::{TREE, find_task};
use crate::task::{Task, sched};

const NICE_MIN: i32 = -20;
const NICE_MAX: i32 = 19;

/// `sched_yield(2)`.
pub(super) fn sched_yield(_cx: &Ctx<'_>) -> SyscallResult {
    sched::yield_now();
    Ok(0)
}

/// The task of an id; 0 is the caller.
fn target(cx: &Ctx<'_>, tid: i32) -> Result<Arc<Task>> {
    match u32::try_from(tid).map_err(|_| Errno::EINVAL)? {
        0 => Ok(cx.task.clone()),
        tid => find_task(tid).ok_or(Errno::ESRCH),
    }
}

/// Whether the caller may change how another task is scheduled.
fn check_owner(cx: &Ctx<'_>, task: &Task) -> Result<()> {
    let (me, them) = (cx.task.creds.get(), task.creds.get());
    let owns = me.euid == them.uid || me.euid == them.euid;
    if owns || me.has(CAP_SYS_NICE) { Ok(()) } else { Err(Errno::EPERM) }
}

/// The tasks `getpriority(2)` and `setpriority(2)` are about.
fn chosen(cx: &Ctx<'_>, which: u32, who: u32) -> Result<Vec<Arc<Task>>> {
    const PROCESS: u32 = 0;
    const GROUP: u32 = 1;
    const USER: u32 = 2;
    let all = || TREE.lock().tasks.values().filter_map(alloc::sync::Weak::upgrade).collect::<Vec<_>>();
    let tasks = match which {
        PROCESS if who == 0 => alloc::vec![cx.task.clone()],
        PROCESS => find_task(who).into_iter().collect(),
        GROUP => {
            let tree = TREE.lock();
            let own = tree.nodes.get(&cx.process().pid).map_or(0, |node| node.group);
            let members = tree.group_members(if who == 0 { own } else { who });
            drop(tree);
            members.iter().flat_map(|process| process.tasks.lock().clone()).collect()
        }
        USER => {
            let uid = if who == 0 { cx.task.creds.get().uid } else { who };
            all().into_iter().filter(|task| task.creds.get().uid == uid).collect()
        }
        _ => return Err(Errno::EINVAL),
    };
    if tasks.is_empty() { Err(Errno::ESRCH) } else { Ok(tasks) }
}

/// `getpriority(2)`, the raw call: 20 minus the nice value.
pub(super) fn getpriority(cx: &Ctx<'_>, which: u32, who: u32) -> SyscallResult {
    let tasks = chosen(cx, which, who)?;
    let nice = tasks.iter().map(|task| task.sched.nice.load(Ordering::Relaxed)).min().unwrap_or(0);
    Ok(u64::from((20 - nice).max(1).unsigned_abs()))
}

/// `setpriority(2)`.
pub(super) fn setpriority(cx: &Ctx<'_>, which: u32, who: u32, nice: i32) -> SyscallResult {
    let nice = nice.clamp(NICE_MIN, NICE_MAX);
    let tasks = chosen(cx, which, who)?;
    let privileged = cx.task.creds.get().has(CAP_SYS_NICE);
    for task in tasks {
        check_owner(cx, &task)?;
        if nice < task.sched.nice.load(Ordering::Relaxed) && !privileged {
            return Err(Errno::EACCES);
        }
        task.sched.nice.store(nice, Ordering::Relaxed);
    }
    Ok(0)
}

/// One bit for each vCPU.
fn all_cpus() -> u64 {
    u64::MAX >> (64 - platform::cpus().clamp(1, 64))
}

/// `sched_getaffinity(2)`, the raw call: returns the bytes written.
pub(super) fn sched_getaffinity(cx: &Ctx<'_>, tid: i32, size: u32, mask: u64) -> SyscallResult {
    if size < 8 || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let kept = target(cx, tid)?.sched.affinity.load(Ordering::Relaxed) & all_cpus();
    cx.user().write(mask, &kept)?;
    Ok(8)
}

/// `sched_setaffinity(2)`: kept and reported, not followed.
pub(super) fn sched_setaffinity(cx: &Ctx<'_>, tid: i32, size: u32, mask: u64) -> SyscallResult {
    let mut bytes = [0u8; 8];
    let given = (size as usize).min(bytes.len());
    cx.user().read_bytes(mask, &mut bytes[..given])?;
    let wanted = u64::from_le_bytes(bytes) & all_cpus();
    let task = target(cx, tid)?;
    check_owner(cx, &task)?;
    if wanted == 0 {
        return Err(Errno::EINVAL);
    }
    task.sched.affinity.store(wanted, Ordering::Relaxed);
    Ok(0)
}
