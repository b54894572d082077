//! The robust list: `set_robust_list(2)`, `get_robust_list(2)`.

use core::sync::atomic::Ordering;

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// Bytes of `struct robust_list_head`.
const ROBUST_HEAD_BYTES: u64 = 24;

/// `set_robust_list(2)`.
pub(super) fn set_robust_list(cx: &Ctx<'_>, head: UserAddr, size: u64) -> SyscallResult {
    if size != ROBUST_HEAD_BYTES {
        return Err(Errno::EINVAL);
    }
    cx.task.robust_list.store(head.get(), Ordering::Relaxed);
    Ok(0)
}

/// `get_robust_list(2)`.
pub(super) fn get_robust_list(cx: &Ctx<'_>, tid: i32, head: UserAddr, size: UserAddr) -> SyscallResult {
    let task = match tid {
        0 => cx.task.clone(),
        tid => cx.pids().find_task(u32::try_from(tid).map_err(|_| Errno::ESRCH)?).ok_or(Errno::ESRCH)?,
    };
    let (me, them) = (cx.task.creds.get(), task.creds.get());
    let allowed = me.euid == them.uid || me.has(crate::creds::CAP_SYS_PTRACE);
    if !allowed {
        return Err(Errno::EPERM);
    }
    cx.user().write(size, &ROBUST_HEAD_BYTES)?;
    cx.user().write(head, &task.robust_list.load(Ordering::Relaxed))?;
    Ok(0)
}
