//! Resource usage: `getrusage(2)`, `times(2)`.

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;

use crate::task::usage;
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
        CHILDREN => process.children_used.lock().rusage(),
        _ => return Err(Errno::EINVAL),
    };
    cx.user().write(to, &usage)?;
    Ok(0)
}

/// `times(2)`, in hundredths of a second.
pub(super) fn times(cx: &Ctx<'_>, to: UserAddr) -> SyscallResult {
    const TICK_NS: u64 = 10_000_000;
    let process = cx.process();
    let (own, children) = (process.used(), *process.children_used.lock());
    let counts = [own.user, own.system, children.user, children.system];
    cx.user().write_opt(to, &counts.map(|ticks| machine::time::ticks_to_ns(ticks) / TICK_NS))?;
    Ok(machine::time::boottime_ns() / TICK_NS)
}
