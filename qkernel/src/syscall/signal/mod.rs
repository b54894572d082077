//! Signals: dispositions, masks, and the stack of handlers.

pub(super) mod kill;
pub(super) mod permission;
pub(super) mod sigqueue;
pub(super) mod suspend;

use abi::word::to_usize;

use crate::signals::{SIGRTMAX, UNBLOCKABLE};
use crate::syscall::context::{KEEP_REGISTERS, SyscallResult};
use crate::task::context::Ctx;
use crate::task::signal;
use crate::task::signal::action::Action;
use crate::task::signal::altstack::{StackT, change_alt_stack};
use crate::task::signal::mask::change_mask;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// Bytes of the kernel's signal set.
const SET_BYTES: u64 = 8;

fn check_set_size(size: u64) -> Result<()> {
    if size == SET_BYTES { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `rt_sigaction(2)`.
pub(super) fn rt_sigaction(
    cx: &Ctx<'_>,
    number: u32,
    new: UserAddr,
    old: UserAddr,
    size: u64,
) -> SyscallResult {
    check_set_size(size)?;
    let new: Option<Action> = cx.user().read_opt(new)?;
    let caught = new.is_some() && number <= SIGRTMAX && crate::signals::bit(number.max(1)) & UNBLOCKABLE != 0;
    if !crate::signals::is_valid(number) || caught {
        return Err(Errno::EINVAL);
    }
    let former = match new {
        Some(action) => signal::set_action(cx.process(), number, action),
        None => cx.process().sighand.get().get(number),
    };
    cx.user().write_opt(old, &former)?;
    Ok(0)
}

/// `rt_sigprocmask(2)`.
pub(super) fn rt_sigprocmask(
    cx: &Ctx<'_>,
    how: u32,
    new: UserAddr,
    old: UserAddr,
    size: u64,
) -> SyscallResult {
    check_set_size(size)?;
    let former = cx.task.signals.lock().blocked;
    if let Some(set) = cx.user().read_opt::<u64>(new)? {
        signal::set_blocked(cx.task, change_mask(former, how, set & !UNBLOCKABLE)?);
    }
    cx.user().write_opt(old, &former)?;
    Ok(0)
}

/// `rt_sigpending(2)`.
pub(super) fn rt_sigpending(cx: &Ctx<'_>, set: UserAddr, size: u64) -> SyscallResult {
    if size > SET_BYTES {
        return Err(Errno::EINVAL);
    }
    let pending = signal::pending_set(cx.task) & cx.task.signals.lock().blocked;
    cx.user().write_bytes(set, &pending.to_le_bytes()[..to_usize(size)])?;
    Ok(0)
}

/// `rt_sigreturn(2)`.
pub(super) fn rt_sigreturn(cx: &Ctx<'_>) -> SyscallResult {
    if signal::return_from_handler(cx.task, cx.user()).is_err() {
        signal::refuse_frame(cx.task, 0);
    }
    Err(Errno(KEEP_REGISTERS))
}

/// `sigaltstack(2)`.
pub(super) fn sigaltstack(cx: &Ctx<'_>, new: UserAddr, old: UserAddr) -> SyscallResult {
    let new: Option<StackT> = cx.user().read_opt(new)?;
    let sp = cx.task.context().run.regs.rsp;
    let former = {
        let mut signals = cx.task.signals.lock();
        let former = signals.alt_stack.described(sp);
        if let Some(new) = new {
            signals.alt_stack = change_alt_stack(&signals.alt_stack, &new, sp)?;
        }
        former
    };
    cx.user().write_opt(old, &former)?;
    Ok(0)
}
