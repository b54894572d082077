//! Into ring 3 and back.
//!
//! [`enter_user`] leaves the kernel's callee-saved registers on the stack and that stack's pointer in
//! `CpuHeader::trap_sp`, then enters ring 3. Whatever brings the processor back saves the user's registers through the
//! pointer on top of that stack and returns from `enter_user` to its caller.
//!
//! Exceptions and interrupts push their frame on a small entry stack (`TSS.rsp0`, or an interrupt stack for the four
//! that may strike anywhere); `syscall` pushes nothing.

use abi::run::{CpuHeader, UserRegs};
use core::arch::{global_asm, naked_asm};
use core::mem::offset_of;

use super::fault::kernel_exception;
use super::tables::{KERNEL_CODE, USER_CODE, USER_DATA};

/// [`RawTrap::code`] of a system call; smaller codes are interrupt vectors.
pub const CODE_SYSCALL: u64 = 0x100;
/// [`RawTrap::code`] when `CpuHeader::pending` was set: the vector of the VMM's interrupt.
const CODE_PENDING: u64 = abi::kvm::VECTOR_KICK as u64;

/// Why user code stopped: a vector or [`CODE_SYSCALL`], and the processor's error code (0 if it gives none).
#[repr(C)]
pub struct RawTrap {
    pub code: u64,
    pub error: u64,
}

const RFLAGS_AC: u64 = 1 << 18;
const SCRATCH: usize = offset_of!(CpuHeader, scratch);
const PENDING: usize = offset_of!(CpuHeader, pending);

/// Saves all general registers but `rax` in the [`UserRegs`] at `rax`.
macro_rules! save_registers {
    () => {
        "
        mov [rax + {R15}], r15
        mov [rax + {R14}], r14
        mov [rax + {R13}], r13
        mov [rax + {R12}], r12
        mov [rax + {RBP}], rbp
        mov [rax + {RBX}], rbx
        mov [rax + {R11}], r11
        mov [rax + {R10}], r10
        mov [rax + {R9}], r9
        mov [rax + {R8}], r8
        mov [rax + {RCX}], rcx
        mov [rax + {RDX}], rdx
        mov [rax + {RSI}], rsi
        mov [rax + {RDI}], rdi
        "
    };
}

/// Loads all general registers but `rsi`, `rdi` and `rsp` from the [`UserRegs`] at `rdi`.
macro_rules! load_registers {
    () => {
        "
        mov r15, [rdi + {R15}]
        mov r14, [rdi + {R14}]
        mov r13, [rdi + {R13}]
        mov r12, [rdi + {R12}]
        mov rbp, [rdi + {RBP}]
        mov rbx, [rdi + {RBX}]
        mov r11, [rdi + {R11}]
        mov r10, [rdi + {R10}]
        mov r9, [rdi + {R9}]
        mov r8, [rdi + {R8}]
        mov rax, [rdi + {RAX}]
        mov rcx, [rdi + {RCX}]
        mov rdx, [rdi + {RDX}]
        "
    };
}

/// Returns from [`enter_user`] to its caller; `rsp` is at the pushed `rdi`.
macro_rules! return_from_enter {
    () => {
        "
        pop rdi
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbx
        pop rbp
        ret
        "
    };
}

/// An `asm!`-like macro with the offsets of [`UserRegs`] as operands.
macro_rules! with_offsets {
    ($asm:ident: $($part:tt)*) => {
        $asm! {
            $($part)*
            TRAP_SP = const offset_of!(CpuHeader, trap_sp),
            FS = const offset_of!(UserRegs, fs_base),
            GS = const offset_of!(UserRegs, gs_base),
            R15 = const offset_of!(UserRegs, r15),
            R14 = const offset_of!(UserRegs, r14),
            R13 = const offset_of!(UserRegs, r13),
            R12 = const offset_of!(UserRegs, r12),
            RBP = const offset_of!(UserRegs, rbp),
            RBX = const offset_of!(UserRegs, rbx),
            R11 = const offset_of!(UserRegs, r11),
            R10 = const offset_of!(UserRegs, r10),
            R9 = const offset_of!(UserRegs, r9),
            R8 = const offset_of!(UserRegs, r8),
            RAX = const offset_of!(UserRegs, rax),
            RCX = const offset_of!(UserRegs, rcx),
            RDX = const offset_of!(UserRegs, rdx),
            RSI = const offset_of!(UserRegs, rsi),
            RDI = const offset_of!(UserRegs, rdi),
            RIP = const offset_of!(UserRegs, rip),
            RFLAGS = const offset_of!(UserRegs, rflags),
            RSP = const offset_of!(UserRegs, rsp),
        }
    };
}

/// Loads `regs`, enters ring 3 (by `sysretq` if `fast`), and returns when user code traps.
///
/// # Safety
/// `regs.rip` is in the lower half, `regs.rflags` has IF and no privileged bit, the bases are canonical; with `fast`,
/// `rcx` equals `rip`, `r11` equals `rflags`, TF and RF are clear. [`super::init_cpu`] ran on this CPU.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn enter_user(regs: *mut UserRegs, fast: u64) -> RawTrap {
    with_offsets!(naked_asm:
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdi",
        "mov gs:[{TRAP_SP}], rsp",
        // Interrupts are off: a kick after this look finds user mode, or waits until it begins.
        "cmp dword ptr gs:[{PENDING}], 0",
        "jne 3f",
        "mov rax, [rdi + {FS}]",
        "mov rdx, [rdi + {GS}]",
        "wrfsbase rax",
        "swapgs",
        "wrgsbase rdx",
        load_registers!(),
        "test rsi, rsi",
        "jz 2f",
        "mov rsp, [rdi + {RSP}]",
        "mov rsi, [rdi + {RSI}]",
        "mov rdi, [rdi + {RDI}]",
        "sysretq",
        "2:",
        "push {USER_DATA}",
        "push qword ptr [rdi + {RSP}]",
        "push qword ptr [rdi + {RFLAGS}]",
        "push {USER_CODE}",
        "push qword ptr [rdi + {RIP}]",
        "mov rsi, [rdi + {RSI}]",
        "mov rdi, [rdi + {RDI}]",
        "iretq",
        "3:",
        "mov eax, {CODE_PENDING}",
        "xor edx, edx",
        return_from_enter!(),
        PENDING = const PENDING,
        CODE_PENDING = const CODE_PENDING,
        USER_DATA = const USER_DATA,
        USER_CODE = const USER_CODE,
    )
}

/// The entry of `syscall`: user registers, the user's stack pointer and GS base, flags cleared by `SFMASK`.
/// Single-stepping user code raises no debug exception here, since TF is among the cleared flags.
///
/// # Safety
/// Entered by the processor only.
#[unsafe(naked)]
pub unsafe extern "sysv64" fn syscall_entry() {
    with_offsets!(naked_asm:
        "swapgs",
        "mov gs:[{SCRATCH}], rsp",
        "mov rsp, gs:[{TRAP_SP}]",
        "push rax",
        "mov rax, [rsp + 8]",
        save_registers!(),
        "mov [rax + {RIP}], rcx",
        "mov [rax + {RFLAGS}], r11",
        "pop rcx",
        "mov [rax + {RAX}], rcx",
        "mov rcx, gs:[{SCRATCH}]",
        "mov [rax + {RSP}], rcx",
        "rdfsbase rcx",
        "mov [rax + {FS}], rcx",
        "swapgs",
        "rdgsbase rcx",
        "swapgs",
        "mov [rax + {GS}], rcx",
        "mov eax, {CODE_SYSCALL}",
        "xor edx, edx",
        return_from_enter!(),
        SCRATCH = const SCRATCH,
        CODE_SYSCALL = const CODE_SYSCALL,
    )
}

// One stub of 16 bytes for each vector: pushes 0 where the processor gives no error code, then the vector (sign-extended;
// only its low byte counts). Behind the stubs: the common part.
//
// Stack there: vector, error, rip, cs, rflags, rsp, ss.
with_offsets!(global_asm:
    ".pushsection .text.ring0_vectors, \"ax\", @progbits",
    ".balign 16",
    ".hidden ring0_vector_stubs",
    ".globl ring0_vector_stubs",
    "ring0_vector_stubs:",
    ".set ring0_vector, 0",
    ".rept 256",
    ".balign 16, 0x90",
    ".if !((ring0_vector == 8) || (ring0_vector >= 10 && ring0_vector <= 14) || (ring0_vector == 17) || \
        (ring0_vector == 21) || (ring0_vector == 29) || (ring0_vector == 30))",
    ".byte 0x6a, 0",
    ".endif",
    ".byte 0x6a, ring0_vector",
    "jmp 10f",
    ".set ring0_vector, ring0_vector + 1",
    ".endr",
    ".balign 16, 0x90",
    "10:",
    "test byte ptr [rsp + 24], 3",
    "jz 20f",
    "push rax",
    "rdgsbase rax",
    "push rax",
    "swapgs",
    "lfence",
    "cld",
    "mov rax, gs:[{TRAP_SP}]",
    "mov rax, [rax]",
    save_registers!(),
    "pop qword ptr [rax + {GS}]",
    "pop qword ptr [rax + {RAX}]",
    "pop rcx",
    "pop rdx",
    "pop qword ptr [rax + {RIP}]",
    "pop rsi",
    "pop rsi",
    "mov [rax + {RFLAGS}], rsi",
    "pop qword ptr [rax + {RSP}]",
    "rdfsbase rdi",
    "mov [rax + {FS}], rdi",
    // Unlike `syscall`, an exception leaves AC as the user had it, which would lift SMAP.
    "test esi, {RFLAGS_AC}",
    "jz 11f",
    "pushfq",
    "and dword ptr [rsp], {NOT_AC}",
    "popfq",
    "11:",
    "movzx eax, cl",
    "mov rsp, gs:[{TRAP_SP}]",
    return_from_enter!(),
    // From ring 0. GS may still, or already, be the user's: it is not used.
    "20:",
    "cmp byte ptr [rsp], 2",
    "je 22f",
    "cmp byte ptr [rsp], 1",
    "je 21f",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push rax",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov rdi, rsp",
    "cld",
    "and rsp, -16",
    "call {kernel_exception}",
    "ud2",
    // A debug exception here can only be one the user provoked and the processor held back: drop it.
    "21:",
    "and qword ptr [rsp + 32], -0x101",
    "22:",
    "add rsp, 16",
    "iretq",
    ".popsection",
    kernel_exception = sym kernel_exception,
    RFLAGS_AC = const RFLAGS_AC,
    NOT_AC = const !0x4_0000i32,
);

// The kernel's selectors are what `SYSRET` and `iretq` above rely on.
const _: () = assert!(KERNEL_CODE == 0x10 && USER_CODE == USER_DATA + 8);

unsafe extern "C" {
    fn ring0_vector_stubs();
}

/// Address of the entry stub of `vector`.
pub fn vector_stub(vector: usize) -> u64 {
    ring0_vector_stubs as *const () as u64 + vector as u64 * 16
}
