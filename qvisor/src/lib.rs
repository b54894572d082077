//! The VMM of Dormouse: guest memory, vCPUs, the platforms, what the kernel asks of the host, the sandbox's life on the
//! host, and the `dormouse` command.

mod activity;
pub mod boot;
pub mod cli;
pub mod container;
pub mod control;
pub mod descriptor_passing;
pub mod directory;
pub mod exec;
pub mod exec_relay;
pub mod footprint;
pub mod front;
pub mod hibernate;
pub mod hostcall;
pub mod image;
pub mod io;
pub mod jail;
pub mod leash;
mod lock;
pub mod memory;
pub mod mounts;
pub mod net;
pub mod oci;
pub mod platform;
pub mod process;
pub mod removal;
pub mod sandbox;
pub mod signals;
pub mod state;
pub mod vcpu;
pub mod vmm;
pub mod watchdog;
