//! Signals (skeleton: terminates on fatal signals; delivery to handlers comes next).

use alloc::sync::Arc;
use core::ops::ControlFlow;

use super::{Process, Task, exit};
use crate::errno::Errno;
use crate::mm::Fault;
use crate::sync::SpinLock;

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
/// Largest signal number.
pub const SIGRTMAX: u32 = 64;

/// Where a signal comes from; becomes `siginfo_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel, without further facts (`SI_KERNEL`).
    Kernel,
    /// `kill(2)` by this process and user (`SI_USER`).
    User { pid: u32, uid: u32 },
    /// `tgkill(2)` (`SI_TKILL`).
    Thread { pid: u32, uid: u32 },
    /// `sigqueue(3)` and other user-made codes.
    Queue { code: i32, pid: u32, uid: u32, value: u64 },
    /// A POSIX timer (`SI_TIMER`).
    Timer { id: u32, overrun: u32, value: u64 },
    /// A child changed state (`CLD_*`).
    Child { code: i32, pid: u32, uid: u32, status: i32, user_ticks: u64, system_ticks: u64 },
    /// A fault at an address (`SEGV_*`, `BUS_*`, `FPE_*`, `ILL_*`, `TRAP_*`).
    Fault { code: i32, addr: u64 },
    /// I/O is possible (`POLL_*`).
    Poll { code: i32, band: i64, fd: i32 },
    /// A system call the kernel refuses (`SYS_SECCOMP`).
    Syscall { addr: u64, number: i32 },
}

/// What goes on after an interrupted sleep (`restart_syscall(2)`).
#[derive(Clone, Debug)]
pub enum Restart {
    /// `nanosleep`, `clock_nanosleep`: until this monotonic time; the remainder goes to this address.
    Sleep { clock: i32, deadline_ns: u64, remainder: u64 },
    /// `poll(2)` until this monotonic time.
    Poll { fds: u64, count: u32, deadline_ns: Option<u64> },
    /// `FUTEX_WAIT` until this monotonic time.
    Futex { addr: u64, value: u32, deadline_ns: u64, bitset: u32, private: bool },
}

/// A task's own part of signal state.
#[derive(Default)]
pub struct TaskSignals {
    pub blocked: u64,
    pub pending: PendingSignals,
}

/// Signals sent and not yet taken.
#[derive(Default)]
pub struct PendingSignals {
    pub set: u64,
}

/// Dispositions, shared by threads.
pub struct SigHand {
    pub actions: SpinLock<()>,
}

impl SigHand {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { actions: SpinLock::new(()) })
    }
    /// A copy for a new process.
    pub fn fork(&self) -> Arc<Self> {
        Self::new()
    }
    /// Handlers become defaults (`execve(2)`).
    pub fn reset_for_exec(&self) -> Arc<Self> {
        Self::new()
    }
}

/// A process's timers.
#[derive(Default)]
pub struct Timers {}

impl Timers {
    /// Disarms everything (the process ends).
    pub fn disarm_all(&mut self) {}
    /// Deletes POSIX timers (`execve(2)`).
    pub fn delete_posix(&mut self) {}
}

impl TaskSignals {
    /// What a clone of a task starts with: the same mask, nothing pending.
    pub fn fork(&self, _keep_alt_stack: bool) -> Self {
        Self { blocked: self.blocked, pending: PendingSignals::default() }
    }
}

/// Sends a signal to a process.
pub fn send_to_process(process: &Arc<Process>, signal: u32, _source: Source) {
    kill_process(process, signal);
}

/// Sends a signal to one task.
pub fn send_to_task(task: &Arc<Task>, signal: u32, _source: Source) {
    kill_process(&task.process, signal);
}

/// Sends a signal to all processes of a group.
pub fn send_to_group(group: u32, signal: u32, source: Source) {
    let members = super::process::TREE.lock().group_members(group);
    for process in members {
        send_to_process(&process, signal, source);
    }
}

/// Ends a process as by an uncatchable signal.
pub fn kill_process(process: &Arc<Process>, signal: u32) {
    exit::begin_group_exit(process, signal as i32);
}

/// A fault of the current task.
pub fn raise_fault(task: &Arc<Task>, fault: Fault) {
    let signal = match fault {
        Fault::NoMemory => SIGKILL,
        Fault::Bus { .. } => SIGBUS,
        _ => SIGSEGV,
    };
    kill_process(&task.process, signal);
}

/// A processor exception of the current task.
pub fn raise_exception(task: &Arc<Task>, vector: u32, _error: u64) {
    let signal = match vector {
        0 | 16 | 19 => SIGFPE,
        1 | 3 => SIGTRAP,
        6 => SIGILL,
        17 => SIGBUS,
        _ => SIGSEGV,
    };
    kill_process(&task.process, signal);
}

/// Handles what is pending before user code runs. `Break`: the task ends.
pub fn deliver_pending(task: &Arc<Task>) -> ControlFlow<()> {
    task.clear_attention();
    if task.process.is_exiting() || task.is_dying() {
        exit::exit_task(task, task.exit_status());
        return ControlFlow::Break(());
    }
    ControlFlow::Continue(())
}

/// A system call of the current task was interrupted (`Errno::RESTART` and its kin): arranges for `EINTR`, or for the
/// call to be made again, depending on whether and how a handler runs.
pub fn call_interrupted(task: &Arc<Task>, _error: Errno, _number: u64) {
    // SAFETY: the task is current and its context isn't borrowed elsewhere.
    let regs = unsafe { &mut task.context().run.regs };
    regs.rax = (-i64::from(Errno::EINTR.0)).cast_unsigned();
}

/// A new program starts: alternate stack and restarts are forgotten.
pub fn after_exec(_task: &Arc<Task>) {}

/// A process has ended: if it led a session, the terminal and its foreground group hear of it.
pub fn leave_session(_process: &Arc<Process>) {}

/// A process's parent has ended: `PR_SET_PDEATHSIG`, and orphaned stopped groups.
pub fn parent_died(_child: &Arc<Process>) {}

/// Whether a process wants no zombies (`SIGCHLD` ignored, or `SA_NOCLDWAIT`).
pub fn discards_children(_process: &Arc<Process>) -> bool {
    false
}

/// Sends a signal to the console's foreground group.
pub fn send_to_foreground(signal: u32) {
    if let Some(process) = super::process::find_process(1) {
        send_to_process(&process, signal, Source::Kernel);
    }
}

/// Whether a signal that is not blocked waits for the task.
pub fn has_pending(task: &Task) -> bool {
    task.wants_attention()
}
