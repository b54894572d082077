//! The lock the allocators are generic over, and a spin lock for users that have no lock of their own.

use crate::sync::{AtomicBool, Ordering, UnsafeCell, relax};

/// Mutual exclusion without data, supplied by the code that builds an allocator.
///
/// # Safety
/// Between a return of `lock` and the matching `unlock` no other call of `lock` on the same object returns,
/// and what was written before `unlock` is visible after the next `lock` returns.
pub unsafe trait RawLock {
    /// Takes the lock; returns once it is held.
    fn lock(&self);

    /// Releases the lock.
    ///
    /// # Safety
    /// The caller took the lock by [`RawLock::lock`] and has not released it since.
    unsafe fn unlock(&self);
}

/// A test-and-test-and-set spin lock.
pub struct SpinLock {
    held: AtomicBool,
}

impl SpinLock {
    /// Makes a lock that is not held.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { held: AtomicBool::new(false) }
    }

    /// Makes a lock that is not held.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { held: AtomicBool::new(false) }
    }
}

impl Default for SpinLock {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: only the winner of the exchange returns from `lock`; Acquire there pairs with Release in `unlock`.
unsafe impl RawLock for SpinLock {
    fn lock(&self) {
        while self.held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.held.load(Ordering::Relaxed) {
                relax();
            }
        }
    }

    unsafe fn unlock(&self) {
        self.held.store(false, Ordering::Release);
    }
}

#[cfg(feature = "spin")]
// SAFETY: the guard is forgotten, so the mutex stays locked until `force_unlock`.
unsafe impl<R: spin::RelaxStrategy> RawLock for spin::mutex::SpinMutex<(), R> {
    fn lock(&self) {
        core::mem::forget(spin::mutex::SpinMutex::lock(self));
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock, by the contract of `unlock`.
        unsafe { self.force_unlock() }
    }
}

/// A value reached only under a [`RawLock`].
pub(crate) struct Lock<L, T> {
    raw: L,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time, hence `T: Send` is enough.
unsafe impl<L: RawLock + Sync, T: Send> Sync for Lock<L, T> {}

impl<L: RawLock, T> Lock<L, T> {
    #[cfg(not(loom))]
    pub(crate) const fn new(raw: L, value: T) -> Self {
        Self { raw, value: UnsafeCell::new(value) }
    }

    #[cfg(loom)]
    pub(crate) fn new(raw: L, value: T) -> Self {
        Self { raw, value: UnsafeCell::new(value) }
    }

    /// Runs `f` on the value with the lock held. `f` must not take the same lock again.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        /// Unlocks on the way out, by return or by panic.
        struct Held<'a, L: RawLock>(&'a L);
        impl<L: RawLock> Drop for Held<'_, L> {
            fn drop(&mut self) {
                // SAFETY: `with` took the lock just before it made this guard.
                unsafe { self.0.unlock() }
            }
        }
        self.raw.lock();
        let _held = Held(&self.raw);
        // SAFETY: the lock is held until `_held` drops, so no other reference to the value exists.
        self.value.with_mut(|value| f(unsafe { &mut *value }))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn counts_right<L: RawLock + Sync>(raw: L) {
        let lock = Lock::new(raw, 0usize);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| lock.with(|count| *count += 1)));
            }
        });
        assert_eq!(lock.with(|count| *count), 40_000);
    }

    #[test]
    fn a_spin_lock_excludes() {
        counts_right(SpinLock::new());
    }

    #[cfg(feature = "spin")]
    #[test]
    fn a_mutex_of_spin_serves_as_lock() {
        counts_right(spin::mutex::SpinMutex::<()>::new(()));
    }

    #[test]
    fn a_panic_releases_the_lock() {
        let lock = Lock::new(SpinLock::new(), ());
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lock.with(|()| panic!("expected"))));
        assert!(caught.is_err());
        lock.with(|()| {});
    }
}
