//! Resource usage: `getrusage(2)`, `times(2)`.

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;

use crate::task::usage;
use core::sync::atomic::Ordering;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// `getrusage(2)`.
pub(super) fn getrusage(cx: &Ctx<'_>, who: i32, to: UserAddr) -> SyscallResult {
    const SELF: i32 = 0;
    const CHILDREN: i32 = -1;
    const THREAD: i32 = 1;
    let process = cx.process();
    let usage = match who {
        SELF => usage::of_process(process, Some(cx.aspace())),
        THREAD => usage::of_thread(cx.task, cx.aspace()),
        CHILDREN => usage::of_children(process),
        _ => return Err(Errno::EINVAL),
    };
    cx.user().write(to, &usage)?;
    Ok(0)
}

/// `times(2)`, in hundredths of a second.
pub(super) fn times(cx: &Ctx<'_>, to: UserAddr) -> SyscallResult {
    const TICK_NS: u64 = 10_000_000;
    let process = cx.process();
    let (user, system) = process.cpu_ticks();
    let counts = [
        user,
        system,
        process.children_user.load(Ordering::Relaxed),
        process.children_system.load(Ordering::Relaxed),
    ];
    cx.user().write_opt(to, &counts.map(|ticks| machine::time::ticks_to_ns(ticks) / TICK_NS))?;
    Ok(machine::time::boottime_ns() / TICK_NS)
}
