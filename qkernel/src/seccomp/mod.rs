//! Filters of system calls: `seccomp(2)`'s programs, and the chains of them that tasks have.

pub mod filter;
pub mod program;
