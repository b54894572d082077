//! `futex_waitv(2)`: waiting at several futexes at once.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::task::core::Task;
use crate::task::futex::{Key, Wait, Waiter, dequeue, enqueue};
use machine::errno::{Errno, Result};
use machine::mm::{UserMemory, account};
use machine::sched;

/// Kernel memory of a waiter with its places in a list and in a tree.
const WAITER_BYTES: usize = size_of::<Waiter>() + 160;

/// Sleeps until one of the futexes is woken; which one. `EAGAIN` when a word has another value, `ETIMEDOUT` at the
/// deadline, `Errno::RESTART` when a signal comes.
pub fn wait_any(
    task: &Arc<Task>,
    user: &UserMemory,
    waits: &[Wait],
    deadline_ns: Option<u64>,
) -> Result<usize> {
    let keys = waits.iter().map(|wait| Key::of(user, wait.addr, wait.private));
    let keys = keys.collect::<Result<Vec<_>>>()?;
    account::check(waits.len() * WAITER_BYTES)?;
    let mut queued = Vec::with_capacity(waits.len());
    for (wait, key) in waits.iter().zip(keys) {
        let waiter = Waiter::new(task, wait, key, None);
        if let Err(error) = enqueue(user, wait, key, &waiter) {
            // One that was queued before may have been woken by now: that must not be lost.
            return leave(&queued).ok_or(error);
        }
        queued.push(waiter);
    }
    let woken = || queued.iter().any(|waiter| waiter.woken.load(Ordering::SeqCst)).then_some(());
    let slept = sched::sleep_until(sched::Sleep::Interruptible, deadline_ns, woken);
    leave(&queued).ok_or(slept.err().unwrap_or(Errno::ETIMEDOUT))
}

/// Takes all out of their buckets; the last one that was woken.
fn leave(queued: &[Arc<Waiter>]) -> Option<usize> {
    let mut woken = None;
    for (at, waiter) in queued.iter().enumerate() {
        if waiter.woken.load(Ordering::SeqCst) || !dequeue(waiter) {
            woken = Some(at);
        }
    }
    woken
}
