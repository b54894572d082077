//! What the kernel asks of the host.

pub mod attrs;
pub mod decode;
pub mod files;
pub mod guest;
pub mod streams;
pub mod sys;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
