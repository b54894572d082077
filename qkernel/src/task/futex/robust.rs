//! The robust list: locks whose owner ended without unlocking.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::task::core::Task;
use crate::task::futex::{OWNER_DIED, TID_MASK, WAITERS, wake_address};
use machine::errno::Result;
use machine::mm::{UserAddr, UserMemory};

/// Most entries of a list that are looked at.
const ROBUST_MAX: usize = 2048;

/// Handles the robust futexes a task that ends, or executes a new program, holds (`set_robust_list(2)`).
pub fn release_robust_list(task: &Arc<Task>, user: &UserMemory) {
    let head = task.robust_list.swap(0, Ordering::Relaxed);
    if head == 0 {
        return;
    }
    // struct robust_list_head: first entry, offset of the futex word from an entry, entry being (un)locked.
    let Ok([first, offset, pending]) = user.read::<[u64; 3]>(UserAddr::new(head)) else { return };
    let word_of = |entry: u64| UserAddr::new((entry & !1).wrapping_add(offset));
    let mut entry = first;
    for _ in 0..ROBUST_MAX {
        if entry & !1 == head {
            break;
        }
        // Read on first: whoever is woken may free the entry.
        let next = user.read::<u64>(UserAddr::new(entry & !1));
        if entry & !1 != pending & !1
            && release(task, user, word_of(entry), Kind { pi: entry & 1 != 0, pending: false }).is_err()
        {
            break;
        }
        let Ok(next) = next else { break };
        entry = next;
    }
    if pending & !1 != 0 {
        let _ = release(task, user, word_of(pending), Kind { pi: pending & 1 != 0, pending: true });
    }
    crate::task::futex::pi::owner_ended(&task.process.container.pids, task.tid());
}

/// The kind of an entry of a robust list.
#[derive(Clone, Copy)]
struct Kind {
    /// A lock with an owner in the kernel; its waiters look for themselves.
    pi: bool,
    /// It was just being locked or unlocked.
    pending: bool,
}

/// Marks one word as left behind by its dead owner, and wakes a waiter.
fn release(task: &Task, user: &UserMemory, addr: UserAddr, kind: Kind) -> Result<()> {
    let tid = task.tid();
    let wake = user.with_atomic(addr, true, |word| {
        let mut old = word.load(Ordering::SeqCst);
        if kind.pending && !kind.pi && old == 0 {
            return true; // unlocked, but the waiter not yet woken
        }
        while old & TID_MASK == tid {
            let new = (old & WAITERS) | OWNER_DIED;
            match word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return old & WAITERS != 0 && !kind.pi,
                Err(now) => old = now,
            }
        }
        false
    })?;
    if wake {
        wake_address(user, addr, 1);
    }
    Ok(())
}
