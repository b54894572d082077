//! The VMM of Dormouse: one sandbox on the host. Guest memory, vCPUs, the platforms, hostcalls, the jail, and the home
//! of pages while the sandbox sleeps.
#![warn(clippy::unwrap_used)]

mod activity;
pub mod boot;
pub mod broker;
pub mod checkpoint;
pub mod companions;
pub mod container_queue;
pub mod cpu;
pub mod descriptor_passing;
pub mod directory;
mod dispatch;
pub mod errno;
pub mod exec_relay;
pub mod fault_signals;
pub mod footprint;
pub mod futex;
pub mod guest_memory;
pub mod handover;
pub mod hibernate;
pub mod host_paths;
pub mod hostcall;
pub mod ids;
pub mod image;
pub mod jail;
pub mod leash;
pub mod limits;
pub mod lock;
pub mod memory;
pub mod mounts;
pub mod net;
pub mod platform;
pub mod pod_place;
pub mod process;
pub mod recoverable_copy;
pub mod request;
pub mod sandbox;
pub mod sealed_file;
pub mod signals;
pub mod snapshot;
pub mod successor;
pub mod sys;
pub mod vcpu;
pub mod watchdog;
