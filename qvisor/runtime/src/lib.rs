//! The surroundings of a sandbox's VMM: bundles, state, the control protocol, control groups, hooks, the steps of a
//! container's life, and the supervisor in the VMM's own process.
#![deny(unsafe_code)]
#![warn(clippy::unwrap_used)]

pub mod cgroup;
pub mod container;
pub mod control;
pub mod environment;
pub mod exec;
pub mod front;
pub mod hooks;
pub mod keeper;
pub mod oci;
pub mod orders;
pub mod overview;
pub mod platform;
pub mod preserved;
pub mod reasons;
pub mod removal;
pub mod resources;
pub mod settings;
pub mod snapshot;
pub mod state;
pub mod status;
pub mod stderr_log;
pub mod supervisor;
pub mod units;
pub mod vmm_process;
pub mod words;
