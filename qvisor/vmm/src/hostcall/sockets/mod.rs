//! Host sockets: the calls of [`abi::socket`].
//!
//! What a sandbox may make, set and send is listed in [`allow`]; nothing else reaches the host. Sockets never wait and
//! are closed on exec. Addresses, control data and option values are copied out of guest memory once and bounded.
#![deny(unsafe_code)]

pub mod allow;
pub mod decode;
pub mod request;
mod serve;
mod sys;
#[cfg(test)]
mod tests;
