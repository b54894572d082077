//! A gateway for functions that sleep: it starts a function when it is first asked for, keeps those that were not asked for
//! lately asleep, and wakes them by the next request.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::unwrap_used)]

pub mod backend;
pub mod config;
pub mod gateway;
pub mod oci;
pub mod policy;
pub mod proxy;
pub mod runtimes;
