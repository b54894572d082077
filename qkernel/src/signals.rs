//! Signals: their numbers, sets of them, and where they come from (`signal(7)`).

pub const SIGHUP: u32 = 1;
pub const SIGINT: u32 = 2;
pub const SIGQUIT: u32 = 3;
pub const SIGILL: u32 = 4;
pub const SIGTRAP: u32 = 5;
pub const SIGABRT: u32 = 6;
pub const SIGBUS: u32 = 7;
pub const SIGFPE: u32 = 8;
pub const SIGKILL: u32 = 9;
pub const SIGUSR1: u32 = 10;
pub const SIGSEGV: u32 = 11;
pub const SIGUSR2: u32 = 12;
pub const SIGPIPE: u32 = 13;
pub const SIGALRM: u32 = 14;
pub const SIGTERM: u32 = 15;
pub const SIGCHLD: u32 = 17;
pub const SIGCONT: u32 = 18;
pub const SIGSTOP: u32 = 19;
pub const SIGTSTP: u32 = 20;
pub const SIGTTIN: u32 = 21;
pub const SIGTTOU: u32 = 22;
pub const SIGURG: u32 = 23;
pub const SIGXCPU: u32 = 24;
pub const SIGXFSZ: u32 = 25;
pub const SIGVTALRM: u32 = 26;
pub const SIGPROF: u32 = 27;
pub const SIGWINCH: u32 = 28;
pub const SIGIO: u32 = 29;
pub const SIGPWR: u32 = 30;
pub const SIGSYS: u32 = 31;
/// First real-time signal: these queue.
pub const SIGRTMIN: u32 = 32;
/// Largest signal number.
pub const SIGRTMAX: u32 = 64;

/// The bit of a signal in a set.
pub const fn bit(signal: u32) -> u64 {
    // A number that is no signal's has a bit of some sort, as on the processor.
    1u64.wrapping_shl(signal.wrapping_sub(1))
}

/// Whether this is a signal's number (0 is none).
pub const fn is_valid(signal: u32) -> bool {
    signal >= 1 && signal <= SIGRTMAX
}

/// Signals that cannot be blocked, ignored or caught.
pub const UNBLOCKABLE: u64 = bit(SIGKILL) | bit(SIGSTOP);
/// Signals that stop a process by default.
pub const STOPPING: u64 = bit(SIGSTOP) | bit(SIGTSTP) | bit(SIGTTIN) | bit(SIGTTOU);
/// Signals an instruction causes; they are taken before all others.
pub const SYNCHRONOUS: u64 =
    bit(SIGSEGV) | bit(SIGBUS) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGFPE) | bit(SIGSYS);

/// The source of a signal; becomes `siginfo_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel, without further facts (`SI_KERNEL`).
    Kernel,
    /// `kill(2)` by this process and user (`SI_USER`).
    User { pid: u32, uid: u32 },
    /// `tgkill(2)` (`SI_TKILL`).
    Thread { pid: u32, uid: u32 },
    /// `sigqueue(3)` and other user-made codes.
    Queue { code: i32, errno: u32, pid: u32, uid: u32, value: u64 },
    /// A POSIX timer (`SI_TIMER`).
    Timer { id: u32, overrun: u32, value: u64 },
    /// A child changed state (`CLD_*`).
    Child { code: i32, pid: u32, uid: u32, status: i32, user_ticks: u64, system_ticks: u64 },
    /// A fault at an address (`SEGV_*`, `BUS_*`, `FPE_*`, `ILL_*`, `TRAP_*`).
    Fault { code: i32, addr: u64 },
    /// I/O is possible (`POLL_*`).
    Poll { code: i32, band: i64, fd: i32 },
    /// A system call the kernel refuses (`SYS_SECCOMP`).
    Syscall { addr: u64, number: i32, errno: u32 },
}
