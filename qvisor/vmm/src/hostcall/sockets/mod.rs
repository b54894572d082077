//! Host sockets: the calls of [`abi::socket`].
//!
//! [`allow`] lists the sockets that a sandbox may make, the options it may set, and the messages it may send; nothing
//! else reaches the host. Sockets never wait and are closed on exec. Addresses, control data and option values are
//! copied out of guest memory once and bounded.
#![deny(unsafe_code)]

pub mod allow;
pub mod decode;
pub mod request;
mod serve;
pub(super) mod sys;
#[cfg(test)]
mod tests;
