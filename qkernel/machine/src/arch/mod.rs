//! The processor: per-CPU data, stack switching, and ring 0 (kvm).

pub mod ring0;

use abi::run::CpuHeader;
use core::arch::{asm, naked_asm};

/// This CPU's header. Valid until the task is switched out; the kernel is not pre-empted.
#[inline]
pub fn cpu() -> &'static CpuHeader {
    let header: *const CpuHeader;
    // SAFETY: GS base points at this CPU's header whenever kernel code runs, and headers live as long as the kernel.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) header, options(nostack, preserves_flags));
        &*header
    }
}

/// This CPU's index.
#[inline]
pub fn cpu_index() -> usize {
    cpu().cpu as usize
}

/// The time-stamp counter.
#[inline]
pub fn read_tsc() -> u64 {
    // SAFETY: RDTSC has no side effect and is permitted on both platforms.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Saves the callee-saved state on the current stack, stores the stack pointer to `*save`, and continues on `load`,
/// which was saved by this function or made by [`prepare_stack`].
///
/// # Safety
/// `load` must be such a saved stack pointer that nothing else runs on; `save` must be valid for a write.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn switch_stacks(save: *mut u64, load: u64) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Makes a fresh stack ending at `top` (16-byte aligned) start in `entry`. Returns the stack pointer to load.
///
/// # Safety
/// The 64 bytes below `top` must be writable and unused.
pub unsafe fn prepare_stack(top: u64, entry: extern "sysv64" fn() -> !) -> u64 {
    let sp = top - 64;
    let words = sp as *mut u64;
    // SAFETY: the caller vouches for the memory; six zero registers, the return address, and a zero that keeps the
    // stack aligned as after a call.
    unsafe {
        for i in 0..6 {
            words.add(i).write(0);
        }
        words.add(6).write(entry as usize as u64);
        words.add(7).write(0);
    }
    sp
}

/// Fills `bytes` bytes at `to` with zeros.
///
/// # Safety
/// The range must be writable.
#[inline]
pub unsafe fn zero_bytes(to: *mut u8, bytes: usize) {
    // SAFETY: the caller vouches for the range; the direction flag is clear in kernel code.
    unsafe {
        asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") 0u8, options(nostack, preserves_flags));
    }
}

/// Copies `bytes` bytes.
///
/// # Safety
/// Both ranges must be valid and must not overlap.
#[inline]
pub unsafe fn copy_bytes(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller vouches for the ranges; the direction flag is clear in kernel code.
    unsafe {
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
    }
}

/// `AT_HWCAP`: CPUID leaf 1, register EDX.
pub fn cpu_features() -> u32 {
    core::arch::x86_64::__cpuid(1).edx
}
