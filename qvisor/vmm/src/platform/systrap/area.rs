//! The area that a stub thread and the VMM share; the stub has the same file.

#[allow(clippy::pedantic, reason = "shared with the stub")]
#[path = "../../../../stub/src/area.rs"]
mod shared;

pub use shared::*;
