//! The hand-over area of one stub thread, which the VMM and the stub share. Compiled into both.
//!
//! An area is a header page (this module's [`Area`]) and the thread's signal stack. The host kernel writes the
//! signal frame at the stack's end, so the user registers and the XSAVE image lie in shared memory. The VMM treats
//! all of it as hostile input.

#![allow(dead_code, reason = "each side uses its half")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64};

use abi::layout::{STUB_AREA, STUB_AREA_SIZE, STUB_TEXT};

/// Code that only the zygote runs; a stub process unmaps it, with the zygote's data behind it.
pub const ZYGOTE_TEXT: u64 = STUB_TEXT + 0x2000;
/// End of the zygote's code.
pub const ZYGOTE_TEXT_END: u64 = STUB_TEXT + 0x3000;
/// End of the zygote's data: nothing of the ELF lies above.
pub const ZYGOTE_END: u64 = STUB_TEXT + 0x6000;

/// Descriptors of a mapper thread: the user memory file …
pub const FD_USER: i32 = 0;
/// … a received file, while it is mapped (the zygote: the areas' file) …
pub const FD_FILE: i32 = 1;
/// … a file whose position is the id of the thread that was started last …
pub const FD_IDS: i32 = 2;
/// … the file of the template, if there is one, open for reading only …
pub const FD_TEMPLATE: i32 = 3;
/// … the first vCPU's socket, the others behind it, then as many pipes for answers. Behind those the zygote has the file
/// of orders. Threads that run application code have no descriptor at all.
pub const FD_SOCKETS: i32 = 4;

/// `Area::turn`: set while the stub thread may run, clear while the VMM may use the area.
pub const TURN_STUB: u32 = 1;
/// `Area::turn`: the side that waits for its turn sleeps on the word.
pub const TURN_SLEEPS: u32 = 2;
/// `Area::turn`: the process is dead (set by the VMM for itself).
pub const TURN_DEAD: u32 = 4;
/// `Area::turn`: the stub should stop spinning and sleep; its turn is not near.
pub const TURN_PARK: u32 = 8;

/// `Area::command`: run user code.
pub const COMMAND_RUN: u32 = 1;
/// `Area::command`: go on from the registers in `Area::call` (a thread that has handed over by `call.rs` only).
pub const COMMAND_RUN_CALL: u32 = 2;
/// `Area::command`: such a thread leaves a whole signal frame behind, and hands over by `on_signal` once more.
pub const COMMAND_LEAVE_CALL: u32 = 3;
/// `Area::command`: fork a stub process whose areas begin at `argument` in the control file (the zygote only).
pub const COMMAND_FORK: u32 = 4;

/// `Area::signal` of a hand-over by `call.rs`: no signal.
pub const SIGNAL_CALL: u32 = 0;

/// `Area::bases` bit: load `fs_base`.
pub const SET_FS: u32 = 1;
/// `Area::bases` bit: load `gs_base`.
pub const SET_GS: u32 = 2;

/// The signal that means "come back to the kernel" (`SIGUSR1`).
pub const INTERRUPT_SIGNAL: u32 = 10;
/// The signals a stub handles: SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGUSR1, SIGSEGV, SIGSYS.
pub const SIGNALS: [u32; 7] = [4, 5, 7, 8, INTERRUPT_SIGNAL, 11, 31];

/// `close_range` flag: with a descriptor table of the thread's own.
pub const CLOSE_RANGE_UNSHARE: u32 = 2;
/// `clone` flags of a further stub thread: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM.
pub const THREAD_FLAGS: u64 = 0x0005_0f00;
/// Of a stub process, a sibling of the zygote's: PARENT, and SIGCHLD at its end.
pub const FORK_FLAGS: u64 = 0x8000 | 17;
/// Flags of the mapper thread, which has descriptors of its own, and whose id is written to the parent (PARENT_SETTID).
pub const MAPPER_FLAGS: u64 = THREAD_FLAGS & !0x400 | 0x10_0000;

/// The header page of an area. Each group begins a cache line of its own.
#[repr(C, align(4096))]
pub struct Area {
    /// Whose turn it is: `TURN_*`.
    pub turn: AtomicU32,
    _turn: [u32; 15],

    // The VMM to the stub.
    pub command: AtomicU32,
    /// `SET_*`.
    pub bases: AtomicU32,
    /// The stub's own: it has handed over by `call.rs`, with all registers in `call`.
    pub is_calling: AtomicU32,
    /// It was called back when it could not know whether that was before its turn or in it. The VMM clears it before the turn.
    pub was_called_back: AtomicU32,
    pub fs_base: AtomicU64,
    pub gs_base: AtomicU64,
    pub argument: AtomicU64,
    /// Where the orders of a process begin in their file, to be forked (the zygote only).
    pub orders_at: AtomicU64,
    /// How long the stub spins for its turn before it sleeps, in TSC cycles.
    pub spin_cycles: AtomicU64,
    /// The mapper thread's id.
    pub mapper_tid: AtomicU32,
    _command: u32,

    // The stub to the VMM.
    /// The signal that stopped user code.
    pub signal: AtomicU32,
    /// Positive errno of the command, or 0.
    pub errno: AtomicU32,
    /// Where the signal frame lies.
    pub frame: AtomicU64,
    pub trap_fs_base: AtomicU64,
    pub trap_gs_base: AtomicU64,
    pub value: AtomicU64,
    /// The core that it runs on.
    pub core: AtomicU32,
    /// Non-zero: the registers are in `call`, not in the signal frame.
    pub has_call: AtomicU32,
    _report: [u64; 2],

    // Written before the thread starts.
    /// Where its signal frame must lie (in the stub's addresses).
    pub frame_at: AtomicU64,
    /// Non-zero: `rdfsbase` and its kin may be used.
    pub has_fsgsbase: AtomicU32,
    /// Process id of the VMM.
    pub vmm_pid: AtomicU32,
    /// Bytes of a process's areas.
    pub areas_len: AtomicU64,
    /// `struct sock_fprog` of the zygote's filter: length, address (the zygote only).
    pub filter: [AtomicU64; 2],
    _gone: [u64; 2],
    /// The descriptor of the file of orders (for the zygote and the processes it forks).
    pub orders_fd: AtomicU32,
    /// Set once the mapper thread takes orders.
    pub mapper_ready: AtomicU32,

    /// The registers of user code whose call came without a signal: `CALL_*`.
    pub call: [AtomicU64; CALL_WORDS],

    /// The zygote's filter; later the buffer for bytes that mapper threads receive and do not use.
    pub scratch: UnsafeCell<[u64; SCRATCH_WORDS]>,
}
/// Places in `Area::call`: r15 … r8 but r11, rax, rdx, rsi, rdi, rbp, rbx, the address to go on at, rflags, rsp.
pub const CALL_WORDS: usize = 24;
pub const CALL_RIP: usize = 13;
pub const CALL_RFLAGS: usize = 14;
pub const CALL_RSP: usize = 15;
/// Where `Area::call` and `Area::is_calling` lie, for assembly.
pub const CALL_AT: usize = 256;
pub const IS_CALLING_AT: usize = 72;
const _: () = assert!(core::mem::offset_of!(Area, call) == CALL_AT);
const _: () = assert!(core::mem::offset_of!(Area, is_calling) == IS_CALLING_AT);
/// How far below a thread's area GS leads while call sites are patched: there is nothing, so who goes by GS although its base
/// is 0 finds no memory there, as natively.
pub const GS_BELOW: u64 = 0xc00_0000;
const _: () = assert!(ZYGOTE_END < STUB_AREA - GS_BELOW && STUB_AREA - GS_BELOW < STUB_ORDERS - 0x100_0000);
/// End of the stack of a thread that hands over without a signal: the low end of its signal stack.
pub const CALL_STACK_END: u64 = 4096 + 1024;
pub const SCRATCH_WORDS: usize = 456;
const _: () = assert!(size_of::<Area>() == 4096);
const _: () = assert!(core::mem::offset_of!(Area, command) == 64);
const _: () = assert!(core::mem::offset_of!(Area, signal) == 128);
const _: () = assert!(core::mem::offset_of!(Area, frame_at) == 192);
const _: () = assert!(core::mem::offset_of!(Area, scratch) == 448);
const _: () = assert!(STUB_AREA_SIZE > 4096 && STUB_AREA_SIZE.is_power_of_two());

// SAFETY: the words are atomics; `scratch` is written before the process exists, and later by the host's kernel only.
unsafe impl Sync for Area {}

/// Where a process sees its orders: read-only for good, in every thread.
pub const STUB_ORDERS: u64 = STUB_TEXT + 0x800_0000;
/// Bytes of one process's orders.
pub const ORDERS_SIZE: u64 = 0x2000;
const _: () = assert!(STUB_ORDERS + ORDERS_SIZE <= STUB_AREA);
/// Most calls of one order.
pub const CALLS_MAX: usize = 101;
/// Most instructions of the application threads' filter, and of the mapper's.
pub const FILTER_MAX: [usize; 2] = [50, 96];

/// The orders of the VMM to a process's mapper thread, and the filters of its threads. Only the VMM can write it.
#[repr(C, align(4096))]
pub struct Orders {
    /// Goes up with each order; the mapper waits for it to change.
    pub sequence: AtomicU32,
    pub calls_len: AtomicU32,
    /// Descriptor number of the pipe for the answer.
    pub answer_fd: AtomicU32,
    _pad: u32,
    /// The answers to give: all calls succeeded, one failed.
    pub answers: [AtomicU64; 2],
    _group: [u64; 4],
    /// `struct msghdr`, for calls that receive a file.
    pub message: UnsafeCell<[u64; 8]>,
    /// Its `struct iovec`.
    pub iovec: UnsafeCell<[u64; 16]>,
    pub calls: UnsafeCell<[Call; CALLS_MAX]>,
    /// `struct sock_fprog` of the application threads' filter: length, address …
    pub application_filter: [AtomicU64; 2],
    /// … and of the mapper thread's.
    pub mapper_filter: [AtomicU64; 2],
    /// The two programs.
    pub programs: UnsafeCell<[u64; FILTER_MAX[0] + FILTER_MAX[1]]>,
}
const _: () = assert!(size_of::<Orders>() as u64 == ORDERS_SIZE);
const _: () = assert!(core::mem::offset_of!(Orders, answers) == 16);
const _: () = assert!(core::mem::offset_of!(Orders, message) == 64);
const _: () = assert!(core::mem::offset_of!(Orders, iovec) == 128);
const _: () = assert!(core::mem::offset_of!(Orders, calls) == 256);

// SAFETY: the words are atomics; the rest is written while the mapper waits, as raw copies.
unsafe impl Sync for Orders {}

/// One system call of a mapper thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    pub number: u32,
    /// Non-zero: whether it fails does not matter.
    pub may_fail: u32,
    pub args: [u64; 6],
    pub _pad: u64,
}
const _: () = assert!(size_of::<Call>() == 64);
