//! The VMM of Dormouse: platforms, host I/O, the sandbox's life on the host, and the `dormouse` command.

pub mod boot;
pub mod cli;
pub mod control;
pub mod front;
pub mod hostcall;
pub mod io;
pub mod jail;
pub mod mounts;
pub mod process;
pub mod signals;
pub mod state;
pub mod vmm;
