//! What a sandbox's kernel runs on.

pub mod kvm;
pub mod probe;
