//! Values that the lock of the run queue guards but that lie elsewhere: in tasks and in CPUs.
//!
//! The lock holds the only [`Key`], so whoever has a reference to it holds the lock.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use super::cpu_set::CpuSet;

/// The right to what the run queue's lock guards. There is one, under that lock.
pub(super) struct Key(());

impl Key {
    /// Makes the key.
    ///
    /// # Safety
    /// It is called once, for what the run queue's lock holds.
    pub(super) const unsafe fn new() -> Self {
        Self(())
    }
}

/// A value that is read and written under the lock only.
pub(super) struct Guarded<T>(UnsafeCell<T>);

// SAFETY: the value is reached by `get` and `set` alone, whose callers hold the lock, as the one key proves.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T: Copy> Guarded<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(super) fn get(&self, _key: &Key) -> T {
        // SAFETY: (1) the lock is held, so nobody else is in here; (2) no reference to the value leaves this type.
        unsafe { *self.0.get() }
    }

    pub(super) fn set(&self, _key: &mut Key, value: T) {
        // SAFETY: as in `get`.
        unsafe { *self.0.get() = value };
    }
}

/// A value that is written under the lock only, and read by anybody without it. What is read without it may be another value
/// already; who reads it under the lock has the latest.
pub(super) struct Shown<T>(AtomicU64, PhantomData<T>);

/// A value that fits into a word.
pub(super) trait Word: Copy + PartialEq {
    fn to_word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

impl Word for bool {
    fn to_word(self) -> u64 {
        u64::from(self)
    }
    fn from_word(word: u64) -> Self {
        word != 0
    }
}

impl Word for usize {
    fn to_word(self) -> u64 {
        self as u64
    }
    fn from_word(word: u64) -> Self {
        abi::word::to_usize(word)
    }
}

impl Word for CpuSet {
    fn to_word(self) -> u64 {
        self.bits()
    }
    fn from_word(word: u64) -> Self {
        Self::from_bits(word)
    }
}

impl Shown<bool> {
    /// Shows false.
    pub(super) const fn no() -> Self {
        Self(AtomicU64::new(0), PhantomData)
    }
}

impl Shown<usize> {
    /// Shows 0.
    pub(super) const fn zero() -> Self {
        Self(AtomicU64::new(0), PhantomData)
    }
}

impl<T: Word> Shown<T> {
    /// Shows a value.
    pub(super) fn new(value: T) -> Self {
        Self(AtomicU64::new(value.to_word()), PhantomData)
    }

    /// The value, in one order with the stores and loads of all others.
    pub(super) fn get(&self) -> T {
        T::from_word(self.0.load(Ordering::SeqCst))
    }

    /// Shows a value, in one order with the stores and loads of all others.
    pub(super) fn set(&self, _key: &mut Key, value: T) {
        self.0.store(value.to_word(), Ordering::SeqCst);
    }

    /// [`Self::set`] for a value that is mostly the one that is shown already.
    pub(super) fn update(&self, key: &mut Key, value: T) {
        if self.0.load(Ordering::Relaxed) != value.to_word() {
            self.set(key, value);
        }
    }

    /// Shows the first value of something that nobody else knows yet.
    pub(super) fn begin_with(&self, value: T) {
        self.0.store(value.to_word(), Ordering::Relaxed);
    }
}
