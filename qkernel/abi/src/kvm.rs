//! Constants and structures of the kvm platform alone.

/// Interrupt vector of a kick, a deadline or any other call for the kernel's attention.
pub const VECTOR_KICK: u32 = 0x20;
/// Interrupt vector that tells the kernel that user code touched a mapped host file behind its end. It arrives at the
/// instruction that did; the address is not known.
pub const VECTOR_BUS: u32 = 0x21;
