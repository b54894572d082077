//! Locks whose waiters sleep, for sections that call the host.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::lock_order::{HeldMutex, LockRank};
use crate::rank::Rank;
use crate::sched::wait::WaitQueue;

/// A lock with a rank whose waiters sleep. Held across hostcalls and page faults.
pub struct Mutex<T: ?Sized> {
    rank: LockRank,
    locked: AtomicBool,
    waiters: WaitQueue,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one reference at a time, so a `Send` value may be shared through it.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            rank: LockRank::new(rank),
            locked: AtomicBool::new(false),
            waiters: WaitQueue::new(),
            value: UnsafeCell::new(value),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock, sleeping (uninterruptibly) while another task holds it.
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.rank.expect_mutex(false);
        self.wait()
    }

    /// Takes the lock beside others of its rank: the caller has an order among those.
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn lock_beside(&self) -> MutexGuard<'_, T> {
        self.rank.expect_mutex(true);
        self.wait()
    }

    /// Takes the lock if it is free.
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        // Made only once the lock is taken: a guard unlocks when it goes. (Not by `then`, which has a caller of its own.)
        if take(&self.locked) { Some(self.guard()) } else { None }
    }

    /// The value, where nobody else can have the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    #[inline(always)]
    #[cfg_attr(feature = "checks", track_caller)]
    fn wait(&self) -> MutexGuard<'_, T> {
        if !take(&self.locked) {
            wait_to_take(&self.locked, &self.waiters);
        }
        self.guard()
    }

    #[inline(always)]
    #[cfg_attr(feature = "checks", track_caller)]
    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, _held: self.rank.hold_mutex() }
    }
}

fn take(locked: &AtomicBool) -> bool {
    locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// The rare case, once for mutexes of all types.
#[cold]
#[inline(never)]
fn wait_to_take(locked: &AtomicBool, waiters: &WaitQueue) {
    waiters.wait_uninterruptible(|| take(locked));
}

/// Holds a [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// Gone after the lock.
    _held: HeldMutex,
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists only while `locked` is ours.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists only while `locked` is ours, and is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.locked.store(false, Ordering::Release);
        // Pairs with the waiter's registration: it queues itself before it tries to take the lock again.
        core::sync::atomic::fence(Ordering::SeqCst);
        self.mutex.waiters.wake_one_quick();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_at_a_lock_that_is_held_leaves_it_held() {
        let mutex = Mutex::new(Rank::Inode, 1);
        let guard = mutex.try_lock();
        assert!(guard.is_some() && mutex.try_lock().is_none() && mutex.try_lock().is_none());
        drop(guard);
        assert!(mutex.try_lock().is_some());
    }
}
