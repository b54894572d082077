//! What the kernel (`qkernel`) and the VMM (`qvisor`) agree on.
//!
//! Every type that crosses the border is `#[repr(C)]`, has no padding the compiler chose, and its size is pinned
//! at compile time. The VMM treats all of it as hostile: it copies a request out of shared memory once, checks the
//! copy, and never reads the original again.
#![no_std]

pub mod boot;
pub mod hostcall;
pub mod kvm;
pub mod layout;
pub mod run;
pub mod socket;
pub mod stats;

pub use hostcall::HostCall;
pub use layout::{PAGE_SHIFT, PAGE_SIZE};

/// Version of this interface; the VMM refuses a kernel built with another one.
pub const ABI_VERSION: u32 = 1;
