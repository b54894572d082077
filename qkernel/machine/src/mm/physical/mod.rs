//! Physical memory: frames, who owns them, whether their content is there, and what kernel memory is charged to.

pub mod account;
pub(super) mod frame_owners;
pub mod frames;
pub mod owners;
pub mod residency;
