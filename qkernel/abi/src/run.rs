//! Running user code: registers, traps, per-CPU headers and the mapping operations systrap mirrors into its stubs.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// General registers of user code, in the order both platforms save them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "registers go by the names that the processor's manual gives them")]
pub struct UserRegs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rip: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub fs_base: u64,
    pub gs_base: u64,
}
pin_layout!(
    UserRegs, 160,
    r15: 0, r14: 8, r13: 16, r12: 24, rbp: 32, rbx: 40, r11: 48, r10: 56, r9: 64, r8: 72, rax: 80, rcx:
    88, rdx: 96, rsi: 104, rdi: 112, rip: 120, rflags: 128, rsp: 136, fs_base: 144, gs_base: 152,
);

/// `TrapInfo::kind`: user code executed a system call instruction; `rax` holds the number, `rip` is behind it.
pub const TRAP_SYSCALL: u32 = 0;
/// `TrapInfo::vector` of a system call: it came from a patched call site, without a signal (systrap).
pub const SYSCALL_PATCHED: u32 = 1;
/// `TrapInfo::kind`: page fault; `addr` is CR2 and `error` the processor's error code ([`PF_WRITE`] …).
pub const TRAP_PAGE_FAULT: u32 = 1;
/// `TrapInfo::kind`: another processor exception; `vector` and `error` tell which.
pub const TRAP_EXCEPTION: u32 = 2;
/// `TrapInfo::kind`: the kernel is wanted (time slice, timer, kick, event); registers are unchanged user state.
pub const TRAP_INTERRUPT: u32 = 3;
/// `TrapInfo::kind`: a mapped host file has no byte at `addr` (it was truncated); `error` is as for a page fault, or 0 where
/// the platform is not told of it.
pub const TRAP_BUS: u32 = 4;
/// `TrapInfo::kind`: the stub process is gone (systrap); the address space cannot run any more.
pub const TRAP_LOST: u32 = 5;

/// Page-fault error code: the page was present (a protection violation).
pub const PF_PRESENT: u64 = 1;
/// Page-fault error code: the access was a write.
pub const PF_WRITE: u64 = 2;
/// Page-fault error code: the access came from user mode.
pub const PF_USER: u64 = 4;
/// Page-fault error code: the access was an instruction fetch.
pub const PF_FETCH: u64 = 16;

/// Why user code stopped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrapInfo {
    /// The kind of trap: `TRAP_*`.
    pub kind: u32,
    /// The exception's number.
    pub vector: u32,
    /// The exception's error code.
    pub error: u64,
    /// The address that a page fault met.
    pub addr: u64,
}
pin_layout!(TrapInfo, 24, kind: 0, vector: 4, error: 8, addr: 16);

/// The argument of [`crate::hostcall::AS_RUN`] (systrap). Lies in kernel memory; addresses in it are linear-map
/// addresses, since on systrap the kernel is inside the VMM.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RunState {
    /// In: the registers to start with. Out: the registers at the trap.
    pub regs: UserRegs,
    /// Out: why the user code stopped.
    pub trap: TrapInfo,
    /// In: address of the XSAVE image to load before running, or 0: the stub thread still holds the right one.
    pub fpu_load: u64,
    /// In: non-zero: call sites of the address space are patched, so GS leads to the thread's area while its base is 0.
    pub has_patches: u64,
}
pin_layout!(RunState, 200, regs: 0, trap: 160, fpu_load: 184, has_patches: 192);

/// `MapOp::kind`: map `len` bytes at `addr` to guest-physical `phys` (user memory or one file-window chunk).
pub const MAP_OP_MAP: u32 = 1;
/// `MapOp::kind`: remove the mappings of `len` bytes at `addr`.
pub const MAP_OP_UNMAP: u32 = 2;
/// `MapOp::kind`: change the protection of `len` bytes at `addr`, all of which are mapped.
pub const MAP_OP_PROTECT: u32 = 3;
/// `MapOp::kind`: remove every mapping of the user half (`addr`, `len` ignored).
pub const MAP_OP_UNMAP_ALL: u32 = 4;

/// `MapOp::prot` bit: reading, as `PROT_READ`.
pub const PROT_READ: u32 = 1;
/// `MapOp::prot` bit: writing, as `PROT_WRITE`.
pub const PROT_WRITE: u32 = 2;
/// `MapOp::prot` bit: execution, as `PROT_EXEC`.
pub const PROT_EXEC: u32 = 4;

/// One change to a stub's mappings (systrap). All addresses and lengths are page multiples below
/// [`crate::layout::USER_MAX`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapOp {
    /// The change: [`MAP_OP_MAP`] ….
    pub kind: u32,
    /// The new protection: [`PROT_READ`] ….
    pub prot: u32,
    /// The first address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The guest-physical address to show there.
    pub phys: u64,
}
pin_layout!(MapOp, 32, kind: 0, prot: 4, addr: 8, len: 16, phys: 24);

/// Opens each CPU's area; the kernel's GS base points at it while kernel code runs, on both platforms.
///
/// The offsets are used by assembly on both sides.
#[repr(C)]
#[derive(Debug)]
pub struct CpuHeader {
    /// 0: linear-map address of this header.
    pub this: u64,
    /// 8: address of the running task's control block (`qkernel`'s own).
    pub current: AtomicU64,
    /// 16: stack pointer to load when user mode traps (kvm).
    pub trap_sp: u64,
    /// 24: scratch for the trap entry (kvm).
    pub scratch: u64,
    /// 32: the host stack of this vCPU thread (systrap); a hostcall switches to it.
    pub host_sp: u64,
    /// 40: set (non-zero) by the VMM when the kernel should look at timers, the run queue and host events
    /// before it runs user code; cleared by the kernel.
    pub pending: AtomicU32,
    /// 44: this CPU's index.
    pub cpu: u32,
    /// 48: monotonic time in nanoseconds at which the kernel wants to be called (`u64::MAX`: never). Written by
    /// the kernel before it runs user code or goes idle. On kvm one earlier than `alarm_ns` is announced by
    /// [`crate::hostcall::SET_DEADLINE`]; on systrap the VMM reads it when it waits.
    pub deadline_ns: AtomicU64,
    /// 56: address space id whose user code this CPU runs now, 0 when in the kernel.
    pub in_user: AtomicU64,
    /// 64: when the VMM's timer for this CPU fires (`u64::MAX`: it is not set). Written by the VMM alone, on the CPU's own
    /// thread: when it fires, the VMM looks at `deadline_ns` and sets the timer, and this, anew (kvm).
    pub alarm_ns: AtomicU64,
    /// 72: how often it has begun to run user code (kvm, where the VMM does not see it). Written by the kernel.
    pub user_entries: AtomicU64,
}
pin_layout!(
    CpuHeader, 80,
    this: 0, current: 8, trap_sp: 16, scratch: 24, host_sp: 32, pending: 40, cpu: 44, deadline_ns: 48,
    in_user: 56, alarm_ns: 64, user_entries: 72,
);
