//! Spin locks, which give a contended core away.

use alloc::sync::Arc;

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
pub use spin::once::Once;

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
