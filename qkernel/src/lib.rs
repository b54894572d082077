//! The Dormouse kernel: a library OS that runs unmodified x86-64 Linux programs.
//!
//! The same code runs in guest ring 0 (platform *kvm*) and inside the VMM process (platform *systrap*), on the lower half
//! in the crate `machine`. See `docs/architecture.md` for the layers. Unit tests link this crate on the host.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

extern crate alloc;

pub mod boot;
pub mod cgroupfs;
pub mod config;
pub mod container;
pub mod creds;
pub mod filesystems;
pub mod fs;
#[cfg(feature = "harness")]
pub mod harness;
pub mod hibernate;
pub mod ipc;
pub mod keys;
pub mod limits;
pub mod loops;
pub mod net;
pub mod proc;
pub mod pseudo;
pub mod run;
pub mod seccomp;
pub mod signals;
pub mod spec;
pub mod syscall;
pub mod sysfs;
pub mod task;
pub mod tty;
