//! The VMM of Dormouse: platforms, host I/O, the sandbox's life on the host.

pub mod platform;
