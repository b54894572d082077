//! Hostcalls on the host's files, sockets and network, and the events that the kernel is told.
#![deny(unsafe_code)]

mod arguments;
mod attrs;
mod counted;
pub mod decode;
pub mod events;
mod fd_name;
pub mod file;
mod files;
pub(crate) mod handover;
pub mod host_io;
pub mod io_threads;
mod locks;
pub mod quota;
#[cfg(test)]
mod quota_tests;
mod reads;
pub mod route;
mod serve;
pub mod sockets;
mod stream_kind;
#[cfg(test)]
mod stream_tests;
mod streams;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod ties;
mod watches;
