//! Processes and threads: their ids, their end, and `arch_prctl(2)`.

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use core::sync::atomic::Ordering;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// `getpid(2)`.
pub(super) fn getpid(cx: &Ctx<'_>) -> SyscallResult {
    Ok(u64::from(cx.process().pid))
}

/// `gettid(2)`.
pub(super) fn gettid(cx: &Ctx<'_>) -> SyscallResult {
    Ok(u64::from(cx.task.tid()))
}

/// `getppid(2)`.
pub(super) fn getppid(cx: &Ctx<'_>) -> SyscallResult {
    Ok(u64::from(cx.process().parent.load(Ordering::Relaxed)))
}

/// `exit(2)`: of this thread alone. The task leaves at the user boundary.
pub(super) fn exit(cx: &Ctx<'_>, status: i32) -> SyscallResult {
    cx.task.set_exit_status(crate::task::group_exit::exited(status));
    cx.task.set_dying();
    cx.task.call_attention();
    Ok(0)
}

/// `exit_group(2)`.
pub(super) fn exit_group(cx: &Ctx<'_>, status: i32) -> SyscallResult {
    crate::task::group_exit::begin_group_exit(cx.process(), crate::task::group_exit::exited(status));
    Ok(0)
}

/// `set_tid_address(2)`.
pub(super) fn set_tid_address(cx: &Ctx<'_>, addr: UserAddr) -> SyscallResult {
    cx.task.clear_child_tid.store(addr.get(), Ordering::Relaxed);
    Ok(u64::from(cx.task.tid()))
}

/// `arch_prctl(2)`.
pub(super) fn arch_prctl(cx: &Ctx<'_>, code: u32, addr: UserAddr) -> SyscallResult {
    const SET_GS: u32 = 0x1001;
    const SET_FS: u32 = 0x1002;
    const GET_FS: u32 = 0x1003;
    const GET_GS: u32 = 0x1004;
    // The registers are let go before user memory is written, which may sleep.
    let bases = {
        let regs = &mut cx.task.context().run.regs;
        match code {
            SET_FS | SET_GS if !addr.is_user() => return Err(Errno::EPERM),
            SET_FS => regs.fs_base = addr.get(),
            SET_GS => regs.gs_base = addr.get(),
            _ => {}
        }
        (regs.fs_base, regs.gs_base)
    };
    match code {
        SET_FS | SET_GS => {}
        GET_FS => cx.user().write(addr, &bases.0)?,
        GET_GS => cx.user().write(addr, &bases.1)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}
