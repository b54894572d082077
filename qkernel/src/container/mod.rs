//! Containers and exec'd processes: how the records of the VMM become processes. (`task::container::Container` is what
//! they have in common.)

pub mod create;
pub mod exec;
pub mod launch;
pub mod limits;
pub mod pause;
pub mod processes;
pub mod setup;
pub mod usage;
