//! Locks: spin locks that give a contended core away, and sleeping locks for sections that call the host.
//!
//! Order (outer to inner): address-space mutex, inode mutexes, file-table, process tree, signal, wait queues, run queue,
//! timers, frame allocator, heap. Nothing sleeps holding a spin lock.

use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::task::wait::WaitQueue;

/// Spins briefly, then lets the host run the lock's holder.
pub struct Relax;

impl spin::RelaxStrategy for Relax {
    fn relax() {
        crate::platform::relax();
    }
}

/// A spin lock. Sections under it are short and never sleep.
pub type SpinLock<T> = spin::mutex::SpinMutex<T, Relax>;
/// The guard of a [`SpinLock`].
pub type SpinGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
/// A spinning reader-writer lock.
pub type SpinRwLock<T> = spin::rwlock::RwLock<T, Relax>;
pub use spin::once::Once;

/// A lock whose waiters sleep. Held across hostcalls and page faults.
pub struct Mutex<T: ?Sized> {
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
    pub const fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), waiters: WaitQueue::new(), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes the lock, sleeping (uninterruptibly) while another task holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if !self.take() {
            self.waiters.wait_uninterruptible(|| self.take());
        }
        MutexGuard { mutex: self }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        // Made only if it is ours: a guard that is dropped gives the lock away, whoever holds it.
        self.take().then(|| MutexGuard { mutex: self })
    }

    fn take(&self) -> bool {
        self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// Holds a [`Mutex`].
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
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

/// A value that is replaced as a whole and read by cloning an `Arc`.
pub struct Shared<T: ?Sized>(SpinLock<Arc<T>>);

impl<T: ?Sized> Shared<T> {
    /// Holds `value`.
    pub const fn new(value: Arc<T>) -> Self {
        Self(SpinLock::new(value))
    }
    /// The current value.
    pub fn get(&self) -> Arc<T> {
        self.0.lock().clone()
    }
    /// Replaces the value, returning the former one.
    pub fn set(&self, value: Arc<T>) -> Arc<T> {
        core::mem::replace(&mut *self.0.lock(), value)
    }
}
