//! Ring 0 under KVM: what the kernel does with a processor that is its own.
//!
//! The kernel runs with interrupts off, always. User code runs in ring 3 with interrupts on; [`run_user`] enters it and
//! returns, as a function, when it traps. While kernel code runs, GS base is the CPU's [`abi::run::CpuHeader`] and
//! `KERNEL_GS_BASE` is of no meaning; while user code runs, GS base is the user's and `KERNEL_GS_BASE` is the header.
//!
//! Kernel pages are mapped global and the kernel runs without PCIDs, so loading a root drops user translations only.

mod cpu;
mod entry;
mod fault;
mod fpu;
mod guard;
mod tables;

use abi::HostCall;
use abi::hostcall::HOSTCALL_PORT;
use abi::layout::LINEAR_BASE_KVM;
use abi::run::{TRAP_BUS, TRAP_EXCEPTION, TRAP_INTERRUPT, TRAP_PAGE_FAULT, TRAP_SYSCALL, TrapInfo, UserRegs};
use abi::word::low32;
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

pub use cpu::init_cpu;
pub use fpu::{fpu_image_is_valid, init_fpu, restore_fpu, save_fpu};
pub use guard::{guard_page, unguard_page};

/// Guest-physical address of the page-table root the VMM booted with.
static BOOT_ROOT: AtomicU64 = AtomicU64::new(0);

/// First address that is not canonical in the lower half. User code lives below it.
const LOWER_HALF_END: u64 = 1 << 47;
/// Exception vectors.
const VECTOR_GENERAL_PROTECTION: u32 = 13;
const VECTOR_PAGE_FAULT: u32 = 14;
const VECTOR_NMI: u32 = 2;

/// Flags user code may set: the arithmetic ones, TF, DF, NT, RF, AC and ID.
const RFLAGS_USER: u64 = 0x25_4dd5;
/// Flags that are always set in user mode: bit 1 and IF.
const RFLAGS_FIXED: u64 = 0x202;
/// TF and RF, which `sysret` does not restore as user code expects.
const RFLAGS_SLOW: u64 = 0x1_0100;

/// Runs user code with `regs` until it traps. On return `regs` holds the user state at the trap.
///
/// The current page tables are those of the task, and the FPU holds its state. Returns [`TRAP_INTERRUPT`] at once,
/// with nothing changed, while `CpuHeader::pending` is set; it is looked at with interrupts off, and a kick that
/// comes later arrives as an interrupt when user code has begun. A state the processor cannot load (an instruction
/// pointer or base beyond its half) is reported as a general protection fault of the user's.
///
/// After [`TRAP_SYSCALL`] `rcx` and `r11` hold `rip` and `rflags`, as the instruction leaves them; as long as they do,
/// the way back is the fast one.
pub fn run_user(regs: &mut UserRegs) -> TrapInfo {
    regs.rflags = (regs.rflags & RFLAGS_USER) | RFLAGS_FIXED;
    if regs.rip >= LOWER_HALF_END || !is_canonical(regs.fs_base) || !is_canonical(regs.gs_base) {
        return TrapInfo { kind: TRAP_EXCEPTION, vector: VECTOR_GENERAL_PROTECTION, error: 0, addr: 0 };
    }
    let fast = regs.rcx == regs.rip && regs.r11 == regs.rflags && regs.rflags & RFLAGS_SLOW == 0;
    // SAFETY: `regs` is exclusively ours; its flags, instruction pointer and bases were just made loadable.
    let raw = unsafe { entry::enter_user(regs, u64::from(fast)) };
    trap_info(raw)
}

/// Makes sense of what the entry code recorded.
fn trap_info(raw: entry::RawTrap) -> TrapInfo {
    if raw.code == entry::CODE_SYSCALL {
        return TrapInfo { kind: TRAP_SYSCALL, ..TrapInfo::default() };
    }
    let vector = u32::try_from(raw.code).unwrap_or(0);
    let kind = match vector {
        VECTOR_PAGE_FAULT => TRAP_PAGE_FAULT,
        VECTOR_NMI => TRAP_INTERRUPT,
        abi::kvm::VECTOR_BUS => TRAP_BUS,
        0..=31 => TRAP_EXCEPTION,
        _ => TRAP_INTERRUPT,
    };
    let addr = if kind == TRAP_PAGE_FAULT { read_cr2() } else { 0 };
    TrapInfo { kind, vector, error: raw.error, addr }
}

/// Whether bits 63 to 47 are all alike.
fn is_canonical(addr: u64) -> bool {
    matches!(addr >> 47, 0 | 0x1_ffff)
}

fn read_cr2() -> u64 {
    let addr: u64;
    // SAFETY: reading CR2 has no side effect; the kernel is in ring 0.
    unsafe { asm!("mov {}, cr2", out(reg) addr, options(nomem, nostack, preserves_flags)) };
    addr
}

/// Makes the page tables at `root_phys` current and forgets all user translations.
///
/// # Safety
/// `root_phys` is the guest-physical address of a root whose upper half is [`kernel_page_table_template`].
pub unsafe fn load_page_table(root_phys: u64) {
    // SAFETY: the caller vouches for the root; it maps the running kernel like the current one.
    unsafe { asm!("mov cr3, {}", in(reg) root_phys, options(nostack, preserves_flags)) };
}

/// Forgets this CPU's translation of the page at `addr`.
pub fn flush_page(addr: u64) {
    // SAFETY: dropping a translation is always correct.
    unsafe { asm!("invlpg [{}]", in(reg) addr, options(nostack, preserves_flags)) };
}

/// Forgets all of this CPU's user translations.
pub fn flush_all() {
    // SAFETY: reloading the current root changes nothing but the cached translations.
    unsafe { asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack, preserves_flags)) };
}

/// The time-stamp counter.
pub fn read_tsc() -> u64 {
    // SAFETY: RDTSC is permitted in every ring and has no side effect.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Asks the VMM. `call` lies in kernel memory; its `result` holds the answer on return.
pub fn hostcall(call: &mut HostCall) {
    let phys = (&raw mut *call as u64).wrapping_sub(LINEAR_BASE_KVM);
    // Kernel physical addresses fit in 32 bits; the VMM checks what it gets.
    let phys = low32(phys);
    // SAFETY: the VMM reads and writes only the call and the memory it names.
    unsafe { asm!("out dx, eax", in("dx") HOSTCALL_PORT, in("eax") phys, options(nostack, preserves_flags)) };
}

/// The upper half of the boot page tables' root: what every address space's root holds at entries 256 to 511.
pub fn kernel_page_table_template() -> [u64; 256] {
    let root = BOOT_ROOT.load(Ordering::Relaxed);
    let upper = (LINEAR_BASE_KVM + root + 256 * 8) as *const [u64; 256];
    // SAFETY: `init_cpu` stored the root the VMM made; it lies in kernel memory and is never freed or changed.
    unsafe { upper.read() }
}

/// Guest-physical address of the boot page tables' root, which maps the kernel and nothing else.
pub fn kernel_root_phys() -> u64 {
    BOOT_ROOT.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_cannot_be_loaded_is_a_fault_of_the_user() {
        let bad = [
            UserRegs { rip: 0x8000_0000_0000, ..Default::default() },
            UserRegs { rip: u64::MAX, ..Default::default() },
            UserRegs { fs_base: 1 << 63, ..Default::default() },
            UserRegs { gs_base: 0x8000_0000_0000, ..Default::default() },
        ];
        for mut regs in bad {
            let trap = run_user(&mut regs);
            assert_eq!((trap.kind, trap.vector), (TRAP_EXCEPTION, 13));
        }
    }

    #[test]
    fn user_flags_lose_privilege_bits() {
        let mut regs = UserRegs { rflags: u64::MAX, rip: u64::MAX, ..Default::default() };
        let _ = run_user(&mut regs);
        assert_eq!(regs.rflags, 0x25_4fd7);
        assert_eq!(regs.rflags & 0x3000, 0, "IOPL");
    }

    #[test]
    fn vectors_become_traps() {
        let kind = |code| trap_info(entry::RawTrap { code, error: 5 }).kind;
        assert_eq!(kind(entry::CODE_SYSCALL), TRAP_SYSCALL);
        assert_eq!(kind(6), TRAP_EXCEPTION);
        assert_eq!(kind(0x20), TRAP_INTERRUPT);
        assert_eq!(kind(0x21), TRAP_BUS);
        assert_eq!(kind(0xff), TRAP_INTERRUPT);
    }
}
