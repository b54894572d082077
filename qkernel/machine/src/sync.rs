//! Locks.
//!
//! Order (outer to inner): address-space mutex, inode mutexes, file-table, process tree, signal, wait queues, run queue,
//! timers, frame allocator, heap. Nothing sleeps holding a spin lock.

pub use crate::mutex::{Mutex, MutexGuard};
pub use crate::spin::{Once, Shared, SpinLock};
