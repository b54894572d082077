//! The lower half of the Dormouse kernel: processor, platform, memory, scheduler and host calls.
//!
//! All of the kernel's `unsafe` code is here; the kernel proper above it forbids it. What this crate needs of the kernel
//! above it is registered once at boot ([`upcall`]). `docs/architecture.md` lists the layers.
#![cfg_attr(not(test), no_std)]
#![warn(clippy::too_many_lines)]

extern crate alloc;

pub mod arch;
pub mod blocking;
pub mod boot;
pub mod config;
pub mod counts;
pub mod errno;
pub mod events;
pub mod file;
pub mod handles;
pub mod heap;
pub mod host;
pub mod host_fact;
pub mod host_locks;
pub mod host_watches;
pub mod in_flight;
pub mod lock_order;
pub mod log;
pub mod mm;
pub mod mutex;
pub mod objects;
pub mod outside;
pub mod owner;
pub mod platform;
pub mod random;
pub mod rank;
pub mod recording;
pub mod reopen;
pub mod sched;
pub mod socket;
pub mod spin;
pub mod sync;
#[cfg(feature = "harness")]
pub mod testing;
pub mod thread;
pub mod time;
pub mod upcall;
pub mod vdso;

pub use errno::{Errno, Result};
