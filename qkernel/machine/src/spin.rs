//! Spin locks, which give a contended core away.

use alloc::sync::Arc;
use allocator::RawLock;
use core::ops::{Deref, DerefMut};

use crate::lock_order::{HeldSpin, LockRank};
use crate::rank::Rank;

/// Spins briefly, then lets the host run the lock's holder.
pub struct Relax;

impl spin::RelaxStrategy for Relax {
    fn relax() {
        crate::platform::relax();
    }
}

/// A spin lock with a rank. Sections under it are short and never sleep.
pub struct SpinLock<T: ?Sized> {
    rank: LockRank,
    inner: spin::mutex::SpinMutex<T, Relax>,
}

/// Holds a [`SpinLock`].
pub struct SpinGuard<'a, T: ?Sized> {
    inner: spin::mutex::SpinMutexGuard<'a, T, Relax>,
    /// Gone after the lock.
    _held: HeldSpin,
}

impl<T> SpinLock<T> {
    /// A lock that is not held.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { rank: LockRank::new(rank), inner: spin::mutex::SpinMutex::new(value) }
    }
}

impl<T: ?Sized> SpinLock<T> {
    /// Takes the lock.
    #[inline]
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        self.rank.expect_spin(false);
        SpinGuard { inner: self.inner.lock(), _held: self.rank.hold_spin() }
    }

    /// Takes the lock beside others of its rank: the caller has an order among those.
    #[inline]
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn lock_beside(&self) -> SpinGuard<'_, T> {
        self.rank.expect_spin(true);
        SpinGuard { inner: self.inner.lock(), _held: self.rank.hold_spin() }
    }

    /// Takes the lock if it is free.
    #[inline]
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(SpinGuard { inner, _held: self.rank.hold_spin() })
    }
}

impl<T: ?Sized> Deref for SpinGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

// SAFETY: as the allocator's own for a spinning mutex: the guard is forgotten, so the lock stays held until `unlock`.
unsafe impl RawLock for SpinLock<()> {
    fn lock(&self) {
        core::mem::forget(SpinLock::lock(self));
    }

    unsafe fn unlock(&self) {
        // SAFETY: the caller holds the lock, by the contract of `unlock`.
        unsafe { self.inner.force_unlock() };
        self.rank.release_spin();
    }
}

pub use spin::once::Once;

/// A value that is replaced as a whole and read by cloning an `Arc`.
pub struct Shared<T: ?Sized>(SpinLock<Arc<T>>);

impl<T: ?Sized> Shared<T> {
    /// Holds `value`.
    pub const fn new(value: Arc<T>) -> Self {
        Self(SpinLock::new(Rank::Value, value))
    }
    /// The current value.
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn get(&self) -> Arc<T> {
        self.0.lock().clone()
    }
    /// Replaces the value, returning the former one.
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn set(&self, value: Arc<T>) -> Arc<T> {
        core::mem::replace(&mut *self.0.lock(), value)
    }
}
