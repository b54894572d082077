//! Arguments and results of system calls.

use abi::word::{low32, to_usize};

use machine::errno::Result;
use machine::mm::UserAddr;

/// The value that a system call returns in `rax`.
pub type SyscallResult = Result<u64>;

/// A raw argument as a type.
pub trait FromArg {
    fn from_arg(arg: u64) -> Self;
}
impl FromArg for u64 {
    fn from_arg(arg: u64) -> Self {
        arg
    }
}
impl FromArg for UserAddr {
    fn from_arg(arg: u64) -> Self {
        Self::new(arg)
    }
}
impl FromArg for i64 {
    fn from_arg(arg: u64) -> Self {
        arg.cast_signed()
    }
}
impl FromArg for u32 {
    /// The low half, as the ABI says for 32-bit arguments.
    fn from_arg(arg: u64) -> Self {
        low32(arg)
    }
}
impl FromArg for i32 {
    fn from_arg(arg: u64) -> Self {
        low32(arg).cast_signed()
    }
}
impl FromArg for usize {
    fn from_arg(arg: u64) -> Self {
        to_usize(arg)
    }
}

/// Kernel-internal: the call has set all registers itself (`rt_sigreturn`, `execve`).
pub const KEEP_REGISTERS: i32 = 4096;
