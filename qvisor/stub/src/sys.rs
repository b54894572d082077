//! System calls, always inlined: the seccomp filter looks at the address of the instruction.

use core::arch::asm;

pub const WRITE: u64 = 1;
pub const LSEEK: u64 = 8;
pub const MMAP: u64 = 9;
pub const MUNMAP: u64 = 11;
pub const RT_SIGACTION: u64 = 13;
pub const RT_SIGPROCMASK: u64 = 14;
pub const RT_SIGRETURN: u64 = 15;
pub const CLOSE: u64 = 3;
pub const CLONE: u64 = 56;
pub const GETPPID: u64 = 110;
pub const PRCTL: u64 = 157;
pub const ARCH_PRCTL: u64 = 158;
pub const FUTEX: u64 = 202;
pub const SECCOMP: u64 = 317;
pub const CLOSE_RANGE: u64 = 436;

pub const FUTEX_WAIT: u64 = 0;
pub const FUTEX_WAKE: u64 = 1;
/// All sleepers.
pub const EVERYBODY: u64 = 0x7fff_ffff;

pub const SECCOMP_SET_MODE_FILTER: u64 = 1;

/// Makes a system call.
///
/// # Safety
/// As the call's own.
#[inline(always)]
pub unsafe fn call(number: u64, args: [u64; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller answers for the call; the registers a system call clobbers are named.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number.cast_signed() => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}
