//! The hand-over area of one stub thread: what the VMM and a stub share. Compiled into both.
//!
//! An area is a header page (this module's [`Area`]) and the thread's signal stack. The host kernel writes the
//! signal frame at the stack's end, so the user registers and the XSAVE image lie in shared memory. The VMM treats
//! all of it as hostile input.

#![allow(dead_code, reason = "each side uses its half")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64};

use abi::layout::{STUB_AREA_SIZE, STUB_TEXT};
use abi::run::MapOp;

/// Code that only the zygote runs; a stub process unmaps it, with the zygote's data behind it.
pub const ZYGOTE_TEXT: u64 = STUB_TEXT + 0x2000;
/// End of the zygote's code.
pub const ZYGOTE_TEXT_END: u64 = STUB_TEXT + 0x3000;
/// End of the zygote's data: nothing of the ELF lies above.
pub const ZYGOTE_END: u64 = STUB_TEXT + 0x6000;

/// Descriptors of every stub process: the user memory file …
pub const FD_USER: i32 = 0;
/// … the areas' file (the zygote only) …
pub const FD_CONTROL: i32 = 1;
/// … and the first vCPU's socket, the others behind it.
pub const FD_SOCKETS: i32 = 2;

/// `Area::turn`: set while the stub thread may run, clear while the VMM may use the area.
pub const TURN_STUB: u32 = 1;
/// `Area::turn`: the side that waits for its turn sleeps on the word.
pub const TURN_SLEEPS: u32 = 2;
/// `Area::turn`: the process is dead (set by the VMM for itself).
pub const TURN_DEAD: u32 = 4;
/// `Area::turn`: the stub should stop spinning and sleep; its turn is not near.
pub const TURN_PARK: u32 = 8;

/// `Area::command`: carry out the operations, then run user code.
pub const COMMAND_RUN: u32 = 1;
/// `Area::command`: carry out the operations only.
pub const COMMAND_OPS: u32 = 2;
/// `Area::command`: start the thread of area `argument`; `value` becomes its id.
pub const COMMAND_SPAWN: u32 = 3;
/// `Area::command`: fork a stub process whose areas begin at `argument` in the control file (the zygote only).
pub const COMMAND_FORK: u32 = 4;

/// Operation besides those of `abi::run`: map a file whose descriptor comes by the vCPU's socket. The bits from
/// [`OP_TAG_SHIFT`] on repeat the tag of the message that carries it.
pub const OP_MAP_RECEIVED: u32 = 16;
/// Where an operation's message tag begins.
pub const OP_TAG_SHIFT: u32 = 8;
/// Most operations in an area.
pub const OPS_MAX: usize = 120;

/// `Area::bases` bit: load `fs_base`.
pub const SET_FS: u32 = 1;
/// `Area::bases` bit: load `gs_base`.
pub const SET_GS: u32 = 2;

/// The signal that means "come back to the kernel" (`SIGUSR1`).
pub const INTERRUPT_SIGNAL: u32 = 10;
/// The signals a stub handles: SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGUSR1, SIGSEGV, SIGSYS.
pub const SIGNALS: [u32; 7] = [4, 5, 7, 8, INTERRUPT_SIGNAL, 11, 31];

/// `clone` flags of a further stub thread: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM.
pub const THREAD_FLAGS: u64 = 0x0005_0f00;

/// The header page of an area. Each group begins a cache line of its own.
#[repr(C, align(4096))]
pub struct Area {
    /// Whose turn it is: `TURN_*`.
    pub turn: AtomicU32,
    _turn: [u32; 15],

    // The VMM to the stub.
    pub command: AtomicU32,
    pub ops_len: AtomicU32,
    /// `SET_*`.
    pub bases: AtomicU32,
    /// Descriptor number of the vCPU's socket.
    pub socket: AtomicU32,
    pub fs_base: AtomicU64,
    pub gs_base: AtomicU64,
    pub argument: AtomicU64,
    /// How long the stub spins for its turn before it sleeps, in TSC cycles.
    pub spin_cycles: AtomicU64,
    _command: [u64; 2],

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
    _report: [u64; 3],

    // Written before the thread starts.
    /// Where its signal frame must lie (in the stub's addresses).
    pub frame_at: AtomicU64,
    /// Non-zero: `rdfsbase` and its kin may be used.
    pub has_fsgsbase: AtomicU32,
    /// Process id of the VMM.
    pub vmm_pid: AtomicU32,
    /// Bytes of a process's areas.
    pub areas_len: AtomicU64,
    /// Instructions of the seccomp filter, which lies where the operations do later (the zygote only).
    pub filter_len: AtomicU64,
    _setup: [u64; 4],

    /// The operations.
    pub ops: UnsafeCell<[MapOp; OPS_MAX]>,
}
const _: () = assert!(size_of::<Area>() == 4096);
const _: () = assert!(core::mem::offset_of!(Area, command) == 64);
const _: () = assert!(core::mem::offset_of!(Area, signal) == 128);
const _: () = assert!(core::mem::offset_of!(Area, frame_at) == 192);
const _: () = assert!(core::mem::offset_of!(Area, ops) == 256);
const _: () = assert!(STUB_AREA_SIZE > 4096 && STUB_AREA_SIZE.is_power_of_two());

// SAFETY: the words are atomics; `ops` is written by the side whose turn it is and read by the other one only after
// the turn changed, as raw copies.
unsafe impl Sync for Area {}
