//! The platforms that run the kernel: its vCPUs and, on systrap, the applications' address spaces.

pub mod folios;
pub mod kvm;
pub mod machine;
pub mod probe;
pub mod systrap;
