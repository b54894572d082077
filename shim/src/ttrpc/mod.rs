//! ttrpc, the protocol between containerd and shims: frames with a header of ten bytes over a Unix socket.
//!
//! The server of the `ttrpc` crate keeps several threads for each connection, and one more for each `wait`. Here one
//! thread reads all connections, and a request may be answered later and by any thread.

pub mod frame;
pub mod line;
