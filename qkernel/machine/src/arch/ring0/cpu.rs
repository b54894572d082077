//! Control registers and model-specific registers.

use abi::boot::BootInfo;
use abi::word::{high32, low32};
use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::sync::atomic::Ordering;

use super::{BOOT_ROOT, entry, fpu, tables};

const MSR_SYSENTER_CS: u32 = 0x174;
const MSR_EFER: u32 = 0xc000_0080;
const MSR_STAR: u32 = 0xc000_0081;
const MSR_LSTAR: u32 = 0xc000_0082;
const MSR_CSTAR: u32 = 0xc000_0083;
const MSR_SFMASK: u32 = 0xc000_0084;
const MSR_GS_BASE: u32 = 0xc000_0101;
const MSR_KERNEL_GS_BASE: u32 = 0xc000_0102;
const MSR_TSC_AUX: u32 = 0xc000_0103;

const EFER_SCE: u64 = 1;
const EFER_NXE: u64 = 1 << 11;

/// PE, MP, ET, NE, WP, AM, PG; EM, TS, NW and CD clear.
const CR0: u64 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 16 | 1 << 18 | 1 << 31;

const CR4_PAE: u64 = 1 << 5;
const CR4_PGE: u64 = 1 << 7;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_OSXMMEXCPT: u64 = 1 << 10;
const CR4_UMIP: u64 = 1 << 11;
const CR4_FSGSBASE: u64 = 1 << 16;
const CR4_OSXSAVE: u64 = 1 << 18;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;

/// Flags `syscall` clears: all that user code could have set.
const SYSCALL_FLAGS_CLEARED: u64 = 0x25_7fd5;

/// Makes this CPU ready to run user code. Called once on each CPU, with `cpu` its index.
pub fn init_cpu(boot: &BootInfo, cpu: u32) {
    let gs_base = read_msr(MSR_GS_BASE);
    // SAFETY: called once on each CPU, in ring 0 with interrupts off, as this function demands.
    unsafe { tables::load(cpu as usize) };
    write_msr(MSR_GS_BASE, gs_base);
    write_msr(MSR_KERNEL_GS_BASE, 0);
    write_control_registers();
    write_msr(MSR_EFER, read_msr(MSR_EFER) | EFER_SCE | EFER_NXE);
    let selectors = u64::from(tables::SYSRET_BASE) << 48 | u64::from(tables::KERNEL_CODE) << 32;
    write_msr(MSR_STAR, selectors);
    let entry = entry::syscall_entry as *const () as u64;
    write_msr(MSR_LSTAR, entry);
    // No 32-bit code can run; should it, it arrives at the same place, and never at address 0.
    write_msr(MSR_CSTAR, entry);
    write_msr(MSR_SFMASK, SYSCALL_FLAGS_CLEARED);
    write_msr(MSR_SYSENTER_CS, 0);
    if has_tsc_aux() {
        // The value that `rdtscp` and `rdpid` tell user code; Linux puts the CPU's number there.
        write_msr(MSR_TSC_AUX, u64::from(cpu));
    }
    fpu::init(boot.xsave_mask);
    if cpu == 0 {
        BOOT_ROOT.store(read_cr3(), Ordering::Relaxed);
    }
}

fn write_control_registers() {
    // SAFETY of the leaves: leaf 7 exists on every processor with FSGSBASE, which the VMM demands.
    let features = __cpuid_count(7, 0);
    let mut cr4 = CR4_PAE | CR4_PGE | CR4_OSFXSR | CR4_OSXMMEXCPT | CR4_OSXSAVE | CR4_FSGSBASE;
    if features.ebx & 1 << 7 != 0 {
        cr4 |= CR4_SMEP;
    }
    if features.ebx & 1 << 20 != 0 {
        cr4 |= CR4_SMAP;
    }
    if features.ecx & 1 << 2 != 0 {
        cr4 |= CR4_UMIP;
    }
    // SAFETY: the page tables are built for these modes: nothing of the kernel's is a user page.
    unsafe {
        asm!("mov cr0, {}", in(reg) CR0, options(nostack, preserves_flags));
        asm!("mov cr4, {}", in(reg) cr4, options(nostack, preserves_flags));
    }
}

fn has_tsc_aux() -> bool {
    let rdtscp = __cpuid_count(0x8000_0001, 0).edx & 1 << 27 != 0;
    rdtscp || __cpuid_count(7, 0).ecx & 1 << 22 != 0
}

fn read_cr3() -> u64 {
    let root: u64;
    // SAFETY: reading CR3 has no side effect.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nomem, nostack, preserves_flags)) };
    root & 0x000f_ffff_ffff_f000
}

fn read_msr(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: callers name registers that every 64-bit processor has; reading has no side effect.
    unsafe {
        asm!("rdmsr", in("ecx") index, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

fn write_msr(index: u32, value: u64) {
    // SAFETY: callers write registers this module owns, with values the rest of it is built for.
    unsafe {
        asm!("wrmsr", in("ecx") index, in("eax") low32(value), in("edx") high32(value),
            options(nostack, preserves_flags));
    }
}
