//! The Dormouse kernel: a library OS that runs unmodified x86-64 Linux programs.
//!
//! The same code runs in guest ring 0 (platform *kvm*) and inside the VMM process (platform *systrap*). See
//! `docs/architecture.md` for the layers. Unit tests link this crate on the host.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

extern crate alloc;

#[allow(unsafe_code)]
pub mod arch;
pub mod boot;
pub mod config;
pub mod errno;
pub mod fs;
#[cfg(feature = "harness")]
#[allow(unsafe_code)]
pub mod harness;
pub mod hibernate;
#[allow(unsafe_code)]
pub mod host;
pub mod log;
#[allow(unsafe_code)]
pub mod mm;
pub mod net;
#[allow(unsafe_code)]
pub mod platform;
pub mod random;
#[allow(unsafe_code)]
pub mod sync;
pub mod syscall;
#[allow(unsafe_code)]
pub mod task;
pub mod time;

pub use errno::{Errno, Result};
