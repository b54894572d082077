//! From a futex to a lock: `FUTEX_WAIT_REQUEUE_PI` and `FUTEX_CMP_REQUEUE_PI`.
//!
//! A waiter brings along the place that it will have among those who wait for the lock. Whoever moves it takes it out of one
//! bucket and puts that place into the other with both locked, so it waits at one of the two at any time, or has the lock.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::task::core::Task;
use crate::task::futex::{BUCKETS, Key, Wait, Waiter, dequeue, enqueue, pi, waiter_keys};
use machine::errno::{Errno, Result};
use machine::mm::{UserAddr, UserMemory};

/// Sleeps until it is moved to the lock at `lock`, and has that. `EAGAIN` when the word has another value, or when a signal
/// came after the move; `ETIMEDOUT` at the deadline.
pub fn wait_requeue_pi(task: &Arc<Task>, user: &UserMemory, wait: &Wait, lock: UserAddr) -> Result<()> {
    if wait.bitset == 0 {
        return Err(Errno::EINVAL);
    }
    let lock_key = Key::of(user, lock, wait.private)?;
    let key = Key::of(user, wait.addr, wait.private)?;
    if key == lock_key {
        return Err(Errno::EINVAL);
    }
    let place = pi::Waiter::new(task, lock_key);
    let waiter = Waiter::new(task, wait, key, Some(place.clone()));
    enqueue(user, wait, key, &waiter)?;
    let slept = place.sleep(wait.deadline_ns);
    if dequeue(&waiter) {
        return Err(if slept.is_ok() { Errno::ETIMEDOUT } else { Errno::RESTART_ALWAYS });
    }
    let locked = match pi::settle(&place, slept) {
        Ok(None) => Ok(()),
        Ok(Some(ended)) => pi::acquire(task, user, (lock, lock_key), false, wait.deadline_ns, ended),
        Err(error) => Err(error),
    };
    // The wait at the first futex is over, and cannot be begun again.
    locked.map_err(|error| if error == Errno::RESTART_ALWAYS { Errno::EAGAIN } else { error })
}

/// Gives the lock in the second word to the longest waiting at the first if it is free, and moves `move_count` others to
/// it, or one more; how many there were. Only if the first word has the expected value.
pub fn cmp_requeue_pi(
    user: &UserMemory,
    (from, to): (UserAddr, UserAddr),
    private: bool,
    move_count: usize,
    expected: u32,
) -> Result<usize> {
    let from_key = Key::of(user, from, private)?;
    let to_key = Key::of(user, to, private)?;
    if from_key == to_key {
        return Err(Errno::EINVAL);
    }
    if user.with_atomic(from, false, |word| word.load(Ordering::SeqCst))? != expected {
        return Err(Errno::EAGAIN);
    }
    let mut granted = Vec::new();
    let done = user.with_atomic(to, true, |word| {
        let mut bucket = BUCKETS[from_key.bucket()].lock();
        let mut locks = pi::BUCKETS[to_key.bucket()].lock_beside();
        let mut result = Ok(());
        let mut move_over = |waiter: &Waiter| {
            let place = place_at(waiter, to_key)?;
            if pi::take_or_queue(&mut locks, word, &place, false, 0)? {
                place.grant();
                granted.push(place);
            }
            Ok(())
        };
        let moved = bucket.extract_if(waiter_keys(from_key), |_, waiter| {
            if result.is_ok() {
                result = move_over(waiter);
            }
            result.is_ok()
        });
        let done = moved.take(move_count.saturating_add(1)).count();
        result.map(|()| done)
    });
    granted.iter().for_each(|place| place.wake());
    done?
}

/// The place of a waiter among those of the lock.
fn place_at(waiter: &Waiter, lock: Key) -> Result<Arc<pi::Waiter>> {
    waiter.lock.clone().filter(|place| place.key == lock).ok_or(Errno::EINVAL)
}
