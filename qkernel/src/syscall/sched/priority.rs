//! `getpriority(2)` and `setpriority(2)`.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::syscall::context::SyscallResult;
use crate::syscall::sched::{NICE_MAX, NICE_MIN, Subject, check_owner, set_nice};
use crate::task::context::Ctx;

use machine::errno::{Errno, Result};

/// The tasks `getpriority(2)` and `setpriority(2)` are about.
pub(super) fn chosen(cx: &Ctx<'_>, which: u32, who: u32) -> Result<Vec<Subject>> {
    const PROCESS: u32 = 0;
    const GROUP: u32 = 1;
    const USER: u32 = 2;
    let all =
        || cx.pids().tree.lock().tasks.values().filter_map(alloc::sync::Weak::upgrade).collect::<Vec<_>>();
    let tasks = match which {
        PROCESS if who == 0 => return Ok(alloc::vec![Subject::of(cx.task)]),
        PROCESS => return Subject::find(cx, who).map(|found| alloc::vec![found]).ok_or(Errno::ESRCH),
        GROUP => {
            let tree = cx.pids().tree.lock();
            let own = tree.nodes.get(&cx.process().pid).map_or(0, |node| node.group);
            let members = tree.group_members(if who == 0 { own } else { who });
            drop(tree);
            members.iter().flat_map(|process| process.tasks.lock().clone()).collect::<Vec<_>>()
        }
        USER => {
            let uid = if who == 0 { cx.task.creds.get().uid } else { who };
            all().into_iter().filter(|task| task.creds.get().uid == uid).collect()
        }
        _ => return Err(Errno::EINVAL),
    };
    if tasks.is_empty() {
        return Err(Errno::ESRCH);
    }
    Ok(tasks.iter().map(Subject::of).collect())
}

/// `getpriority(2)`, the raw call: 20 minus the nice value.
pub(in crate::syscall) fn getpriority(cx: &Ctx<'_>, which: u32, who: u32) -> SyscallResult {
    let tasks = chosen(cx, which, who)?;
    let nice = tasks.iter().map(|task| task.policy.nice.load(Ordering::Relaxed)).min().unwrap_or(0);
    Ok(u64::from((20 - nice).max(1).unsigned_abs()))
}

/// `setpriority(2)`.
pub(in crate::syscall) fn setpriority(cx: &Ctx<'_>, which: u32, who: u32, nice: i32) -> SyscallResult {
    let nice = nice.clamp(NICE_MIN, NICE_MAX);
    let tasks = chosen(cx, which, who)?;
    for task in tasks {
        check_owner(cx, &task)?;
        set_nice(cx, &task, nice)?;
    }
    Ok(0)
}
