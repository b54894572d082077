//! The memory allocators of the Dormouse kernel.
//!
//! - [`bitmap`] hands out 4 KiB frames of *user memory* from 4 MiB blocks and counts references to them
//!   (Hibernate Container, section 3.3). It stores nothing in a free frame, so that every free frame can go
//!   back to the host.
//! - [`buddy`] is the kernel's own heap: a binary buddy of pages, and slabs of small objects on top.
//!
//! Neither allocates, panics on exhaustion, or depends on anything but `core`. Both take their lock from the
//! caller ([`RawLock`]), so that the kernel's ordered locks, a plain [`SpinLock`] and the model checker all
//! fit.
#![cfg_attr(not(any(test, loom)), no_std)]
#![warn(missing_docs)]
#![warn(clippy::too_many_lines)]

pub mod bitmap;
#[cfg(not(loom))]
pub mod buddy;
mod lock;
mod sync;

pub use lock::{RawLock, SpinLock};
