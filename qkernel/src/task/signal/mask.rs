//! Blocking signals, and masks that last for one call.

use alloc::sync::Arc;

use crate::signals::UNBLOCKABLE;
use crate::task::core::Task;
use crate::task::signal::send::retarget;
use machine::errno::{Errno, Result};

const SIG_BLOCK: u32 = 0;
const SIG_UNBLOCK: u32 = 1;
const SIG_SETMASK: u32 = 2;

/// The mask after `sigprocmask(2)`.
pub fn change_mask(old: u64, how: u32, set: u64) -> Result<u64> {
    match how {
        SIG_BLOCK => Ok(old | set),
        SIG_UNBLOCK => Ok(old & !set),
        SIG_SETMASK => Ok(set),
        _ => Err(Errno::EINVAL),
    }
}

/// Blocks exactly these signals for the current task. Pending ones that are open now are looked at before user code
/// runs; those of the process that it blocks now are left to other threads.
pub fn set_blocked(task: &Arc<Task>, mask: u64) {
    let (open, closed) = {
        let shared = task.process.pending.lock();
        let mut own = task.signals.lock();
        let old = own.blocked;
        own.blocked = mask & !UNBLOCKABLE;
        let open = (shared.set | own.pending.set) & !own.blocked;
        (open, own.blocked & !old & shared.set)
    };
    if open != 0 {
        task.call_attention();
    }
    if closed != 0 {
        retarget(&task.process, task, closed);
    }
}

/// Blocks these signals until [`restore_mask`], or until a handler that runs meanwhile returns.
pub fn set_temporary_mask(task: &Arc<Task>, mask: u64) {
    {
        let mut own = task.signals.lock();
        let blocked = own.blocked;
        own.saved_mask.get_or_insert(blocked);
    }
    set_blocked(task, mask);
}

/// Ends a temporary mask, if there is one.
pub fn restore_mask(task: &Arc<Task>) {
    let saved = task.signals.lock().saved_mask.take();
    if let Some(mask) = saved {
        set_blocked(task, mask);
    }
}

/// Makes a call with its own signal mask, as `ppoll(2)` and `epoll_pwait(2)` do. When a signal interrupts it, the former
/// mask comes back after the handler.
pub fn with_temporary_mask<R>(
    task: &Arc<Task>,
    mask: Option<u64>,
    call: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let Some(mask) = mask else { return call() };
    set_temporary_mask(task, mask);
    let result = call();
    match result {
        Err(Errno::EINTR | Errno::RESTART | Errno::RESTART_NOHAND | Errno::RESTART_BLOCK) => {
            // Delivery ends the mask, with or without a handler.
            task.call_attention();
        }
        _ => restore_mask(task),
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_change_as_asked() {
        assert_eq!(change_mask(0b0110, SIG_BLOCK, 0b1100), Ok(0b1110));
        assert_eq!(change_mask(0b0110, SIG_UNBLOCK, 0b1100), Ok(0b0010));
        assert_eq!(change_mask(0b0110, SIG_SETMASK, 0b1100), Ok(0b1100));
        assert_eq!(change_mask(0, 77, 0), Err(Errno::EINVAL));
    }
}
