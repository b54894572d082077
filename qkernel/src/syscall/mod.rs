//! System calls: one table, one file a family.

mod attr;
mod creds;
mod descriptor;
mod dir;
mod event;
mod futex;
mod jobs;
mod limits;
mod lock;
mod memory;
mod message;
mod mount;
mod names;
mod open;
pub mod poll;
mod prctl;
mod process;
mod rw;
mod sched;
mod signal;
mod socket;
mod splice;
mod stat;
mod system;
pub mod table;
mod time;
mod timer;
mod transfer;
mod watch;
mod xattr;

use abi::run::UserRegs;
use alloc::sync::Arc;
use core::cell::OnceCell;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fs::{File, FileTable};
use crate::task::oom;
use crate::task::{Process, Task};
use machine::errno::{Errno, Result};
use machine::mm::account::SANDBOX;
use machine::mm::{AddressSpace, UserMemory};

/// What a system call returns in `rax`.
pub type SyscallResult = Result<u64>;

/// A system call's view of its caller.
pub struct Ctx<'a> {
    pub task: &'a Arc<Task>,
    // Looked up when first asked for: many calls need neither.
    user: OnceCell<UserMemory>,
    files: OnceCell<Arc<FileTable>>,
}

impl<'a> Ctx<'a> {
    /// The context of the current task, which still has its memory and its descriptors.
    pub fn new(task: &'a Arc<Task>) -> Self {
        Self { task, user: OnceCell::new(), files: OnceCell::new() }
    }
    /// The caller's memory.
    pub fn user(&self) -> &UserMemory {
        self.user.get_or_init(|| match self.task.aspace() {
            Some(aspace) => UserMemory::new(aspace),
            None => machine::host::die("a system call without memory"),
        })
    }
    /// The caller's address space.
    pub fn aspace(&self) -> &Arc<AddressSpace> {
        self.user().aspace()
    }
    /// The caller's descriptors.
    pub fn files(&self) -> &Arc<FileTable> {
        self.files.get_or_init(|| match self.task.files() {
            Some(files) => files,
            None => machine::host::die("a system call without descriptors"),
        })
    }
    /// The open file of a descriptor.
    pub fn file(&self, fd: i32) -> Result<Arc<File>> {
        self.files().get(fd)
    }
    /// Gives a file the lowest free descriptor.
    pub fn install(&self, file: Arc<File>, close_on_exec: bool) -> SyscallResult {
        let limit = self.limit(crate::task::limits::RLIMIT_NOFILE);
        self.files().insert(file, close_on_exec, 0, limit).map(|fd| fd as u64)
    }
    /// The caller's process.
    pub fn process(&self) -> &Arc<Process> {
        &self.task.process
    }
    /// A soft resource limit of the caller.
    pub fn limit(&self, resource: usize) -> u64 {
        self.task.process.limits.lock().soft(resource)
    }
}

/// A raw argument as a type.
pub trait FromArg {
    fn from_arg(arg: u64) -> Self;
}
impl FromArg for u64 {
    fn from_arg(arg: u64) -> Self {
        arg
    }
}
impl FromArg for i64 {
    fn from_arg(arg: u64) -> Self {
        arg.cast_signed()
    }
}
impl FromArg for u32 {
    /// The low half, as the ABI says for 32-bit arguments.
    fn from_arg(arg: u64) -> Self {
        arg as u32
    }
}
impl FromArg for i32 {
    fn from_arg(arg: u64) -> Self {
        arg as u32 as i32
    }
}
impl FromArg for usize {
    fn from_arg(arg: u64) -> Self {
        arg as usize
    }
}

/// Calls that a program makes and the kernel doesn't have: how often, and whether it was said.
static UNKNOWN: [AtomicU32; 512] = [const { AtomicU32::new(0) }; 512];

fn unknown(number: u64) -> SyscallResult {
    if let Some(count) = UNKNOWN.get(number as usize)
        && count.fetch_add(1, Ordering::Relaxed) == 0
    {
        machine::warn!("system call {number} is not implemented (ENOSYS)");
    }
    Err(Errno::ENOSYS)
}

/// How often each call number without an implementation was asked for.
pub fn unknown_counts() -> impl Iterator<Item = (usize, u32)> {
    UNKNOWN.iter().map(|count| count.load(Ordering::Relaxed)).enumerate().filter(|(_, count)| *count != 0)
}

/// Calls that go on when the kernel's memory is down to its reserve: those that give memory back, end things, or wait.
const GIVING_BACK: &[u64] = &[
    0,   // read
    1,   // write
    3,   // close
    7,   // poll
    11,  // munmap
    13,  // rt_sigaction
    14,  // rt_sigprocmask
    15,  // rt_sigreturn
    24,  // sched_yield
    28,  // madvise
    34,  // pause
    35,  // nanosleep
    39,  // getpid
    60,  // exit
    61,  // wait4
    62,  // kill
    77,  // ftruncate
    84,  // rmdir
    87,  // unlink
    186, // gettid
    200, // tkill
    202, // futex
    230, // clock_nanosleep
    231, // exit_group
    232, // epoll_wait
    234, // tgkill
    247, // waitid
    263, // unlinkat
    436, // close_range
];

/// Performs the system call the current task's registers ask for.
pub fn dispatch(task: &Arc<Task>) {
    let cx = Ctx::new(task);
    let (number, args) = enter_call(&mut task.context().run.regs);
    SANDBOX.relieve();
    let result = if SANDBOX.is_overdrawn() && !GIVING_BACK.contains(&number) {
        oom::relieve(task);
        Err(Errno::ENOMEM)
    } else {
        table::call(&cx, number, args)
    };
    drop(cx);
    if table::strace() {
        table::trace(task, number, &args, &result);
    }
    match result {
        Ok(value) => set_result(task, value),
        Err(Errno::RESTART | Errno::RESTART_ALWAYS | Errno::RESTART_NOHAND | Errno::RESTART_BLOCK) => {
            let error = result.err().unwrap_or(Errno::EINTR);
            crate::task::signal::call_interrupted(task, error, number);
        }
        Err(Errno(KEEP_REGISTERS)) => {}
        Err(error) => set_result(task, (-i64::from(error.0)).cast_unsigned()),
    }
}

/// The call's number and arguments.
fn enter_call(regs: &mut UserRegs) -> (u64, [u64; 6]) {
    // The entry leaves rcx and r11 as the instruction does: return address and flags.
    regs.rcx = regs.rip;
    regs.r11 = regs.rflags;
    // As on Linux, only the low half of the number counts.
    (regs.rax & 0xffff_ffff, [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9])
}

/// Kernel-internal: the call has set all registers itself (`rt_sigreturn`, `execve`).
pub const KEEP_REGISTERS: i32 = 4096;

fn set_result(task: &Arc<Task>, value: u64) {
    task.context().run.regs.rax = value;
}
