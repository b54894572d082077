//! Locks. [`Rank`] is their order. Nothing sleeps holding a spin lock.

pub use crate::mutex::{Mutex, MutexGuard};
pub use crate::rank::Rank;
pub use crate::spin::{Once, Shared, SpinGuard, SpinLock};
