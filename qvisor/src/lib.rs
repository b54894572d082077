//! The VMM of Dormouse: guest memory, vCPUs, the platforms, and what the kernel asks of the host.

pub mod boot;
pub mod hostcall;
pub mod image;
pub mod memory;
pub mod platform;
pub mod sandbox;
pub mod vcpu;
