//! Tasks (threads), processes (thread groups), and the loop that runs user code.

pub mod clock;
pub mod clone;
pub mod creds;
pub mod elf;
pub mod exec;
pub mod exit;
pub mod futex;
pub mod itimer;
pub mod limits;
pub mod pause;
pub mod posix_timer;
pub mod process;
pub mod sched;
pub mod signal;
pub mod stack;
pub mod timer;
pub mod usage;
pub mod vdso;
pub mod wait;

use alloc::sync::{Arc, Weak};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::errno::Result;
use crate::fs::{FileTable, FsContext};
use crate::mm::AddressSpace;
use crate::platform::{self, Trap, UserContext};
use crate::sync::{Shared, SpinLock};
use crate::time;
use creds::Creds;
pub use process::Process;
use sched::SchedState;
use signal::TaskSignals;

/// A thread.
pub struct Task {
    tid: AtomicU32,
    pub process: Arc<Process>,
    pub sched: SchedState,
    context: UnsafeCell<UserContext>,
    /// The memory it sees. Replaced by `execve(2)`, dropped when it ends.
    aspace: SpinLock<Option<Arc<AddressSpace>>>,
    /// The same, for the task itself.
    own_aspace: AtomicPtr<AddressSpace>,
    files: SpinLock<Option<Arc<FileTable>>>,
    pub fs: Shared<FsContext>,
    pub creds: Shared<Creds>,
    pub signals: SpinLock<TaskSignals>,
    /// Set when this thread alone is to end (`exit(2)`, or another thread calls `execve(2)`).
    dying: AtomicBool,
    /// Wait status of `exit(2)`.
    exit_status: AtomicI32,
    /// The `vfork(2)` child this task waits for.
    pub vfork_wait: SpinLock<Option<Arc<exit::VforkDone>>>,
    /// What the task does in the kernel before it runs user code (the first process alone).
    start: SpinLock<Option<Start>>,
    /// Set when the task should look at its signals before it sleeps or runs user code.
    attention: AtomicBool,
    pub comm: SpinLock<[u8; 16]>,
    /// `set_tid_address(2)`: zeroed and woken when the task ends.
    pub clear_child_tid: AtomicU64,
    /// `set_robust_list(2)`.
    pub robust_list: AtomicU64,
    /// Told when this `vfork(2)` child executes or ends.
    pub vfork_parent: SpinLock<Option<Arc<exit::VforkDone>>>,
    /// `PR_SET_PDEATHSIG`.
    pub death_signal: AtomicU32,
    /// What goes on after a restartable sleep: see `restart_syscall(2)`.
    pub restart: SpinLock<Option<signal::Restart>>,
    pub start_ns: u64,
    idle: bool,
}

// SAFETY: `context` is touched only by the task itself while it runs, and by its creator before it starts.
unsafe impl Sync for Task {}
// SAFETY: as above.
unsafe impl Send for Task {}

/// What a task does in the kernel first.
pub type Start = fn(&Arc<Task>);

/// What a new task shares with, or copies from, its creator.
pub struct TaskParts {
    pub process: Arc<Process>,
    pub aspace: Option<Arc<AddressSpace>>,
    pub files: Option<Arc<FileTable>>,
    pub fs: Arc<FsContext>,
    pub creds: Arc<Creds>,
    pub signals: TaskSignals,
    pub context: UserContext,
    pub comm: [u8; 16],
}

impl Task {
    /// A task that will run user code from `parts.context` once it is started.
    pub fn new(tid: u32, parts: TaskParts) -> Result<Arc<Self>> {
        let stack = stack::KernelStack::new()?;
        Ok(Self::with(tid, parts, SchedState::new(stack, enter_task), false))
    }

    /// A task that first runs `start` in the kernel.
    pub fn new_in_kernel(tid: u32, parts: TaskParts, start: Start) -> Result<Arc<Self>> {
        let task = Self::new(tid, parts)?;
        *task.start.lock() = Some(start);
        Ok(task)
    }

    /// Its id. `execve(2)` in a thread gives it the process's.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// See [`Self::tid`].
    pub fn set_tid(&self, tid: u32) {
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// Whether this thread is to end at the user boundary.
    pub fn is_dying(&self) -> bool {
        self.dying.load(Ordering::SeqCst)
    }

    /// Makes this thread end at the user boundary.
    pub fn set_dying(&self) {
        self.dying.store(true, Ordering::SeqCst);
    }

    /// Wait status of this thread's end.
    pub fn exit_status(&self) -> i32 {
        self.exit_status.load(Ordering::Relaxed)
    }

    /// See [`Self::exit_status`].
    pub fn set_exit_status(&self, status: i32) {
        self.exit_status.store(status, Ordering::Relaxed);
    }

    /// The idle task of a CPU.
    pub fn idle(parts: TaskParts) -> Arc<Self> {
        Self::with(0, parts, SchedState::idle(), true)
    }

    fn with(tid: u32, parts: TaskParts, sched: SchedState, idle: bool) -> Arc<Self> {
        Arc::new(Self {
            tid: AtomicU32::new(tid),
            process: parts.process,
            sched,
            dying: AtomicBool::new(false),
            exit_status: AtomicI32::new(0),
            vfork_wait: SpinLock::new(None),
            start: SpinLock::new(None),
            context: UnsafeCell::new(parts.context),
            own_aspace: AtomicPtr::new(pointer_of(parts.aspace.as_ref())),
            aspace: SpinLock::new(parts.aspace),
            files: SpinLock::new(parts.files),
            fs: Shared::new(parts.fs),
            creds: Shared::new(parts.creds),
            signals: SpinLock::new(parts.signals),
            attention: AtomicBool::new(false),
            comm: SpinLock::new(parts.comm),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            vfork_parent: SpinLock::new(None),
            death_signal: AtomicU32::new(0),
            restart: SpinLock::new(None),
            start_ns: time::boottime_ns(),
            idle,
        })
    }

    /// Whether this is a CPU's idle task.
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// The memory this task sees; `None` once it has ended.
    pub fn aspace(&self) -> Option<Arc<AddressSpace>> {
        self.aspace.lock().clone()
    }

    /// The same without a lock or a count.
    ///
    /// # Safety
    /// Only for the task itself while it is current. The reference ends with the next [`Self::replace_aspace`].
    unsafe fn own_aspace(&self) -> Option<&AddressSpace> {
        // SAFETY: `aspace` holds what the pointer leads to, and only the caller itself changes both.
        unsafe { self.own_aspace.load(Ordering::Relaxed).as_ref() }
    }

    /// Replaces the memory the current task sees, returning the former, which no CPU's page table is any more.
    pub fn replace_aspace(&self, aspace: Option<Arc<AddressSpace>>) -> Option<Arc<AddressSpace>> {
        platform::enter_address_space(aspace.as_deref());
        self.own_aspace.store(pointer_of(aspace.as_ref()), Ordering::Relaxed);
        core::mem::replace(&mut *self.aspace.lock(), aspace)
    }

    /// The task's descriptors; `None` once it has ended.
    pub fn files(&self) -> Option<Arc<FileTable>> {
        self.files.lock().clone()
    }

    /// Replaces the task's descriptors, returning the former.
    pub fn set_files(&self, files: Option<Arc<FileTable>>) -> Option<Arc<FileTable>> {
        core::mem::replace(&mut *self.files.lock(), files)
    }

    /// The user registers and FPU state.
    ///
    /// # Safety
    /// Only for the task itself while it is current, or for its creator before it starts; one reference at a time.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn context(&self) -> &mut UserContext {
        // SAFETY: exclusive by the contract above.
        unsafe { &mut *self.context.get() }
    }

    /// Whether the task should look at its signals (a hint that may be stale in the true direction).
    pub fn wants_attention(&self) -> bool {
        self.attention.load(Ordering::SeqCst)
    }

    /// Makes the task look at its signals: wakes it from an interruptible sleep, interrupts its user code.
    pub fn call_attention(self: &Arc<Self>) {
        self.attention.store(true, Ordering::SeqCst);
        if !sched::wake_interruptible(self) {
            let cpu = self.sched.last_cpu.load(Ordering::SeqCst) as usize;
            if cpu < platform::cpus() && cpu != crate::arch::cpu_index() {
                platform::kick(cpu);
            }
        }
    }

    /// The hint was looked at.
    pub fn clear_attention(&self) {
        self.attention.store(false, Ordering::SeqCst);
    }

    /// Called when the task leaves its CPU.
    fn switched_out(&self) {
        if self.idle {
            return;
        }
        if let Some(aspace) = self.aspace() {
            // SAFETY: the task is current on this CPU.
            unsafe { self.context() }.release_fpu(&aspace);
        }
    }
}

fn pointer_of(aspace: Option<&Arc<AddressSpace>>) -> *mut AddressSpace {
    aspace.map_or(core::ptr::null_mut(), |aspace| Arc::as_ptr(aspace).cast_mut())
}

/// The task this CPU runs.
pub fn current() -> Arc<Task> {
    sched::current()
}

/// A weak reference to a task.
pub type TaskRef = Weak<Task>;

/// Where new tasks start.
extern "sysv64" fn enter_task() -> ! {
    sched::finish_switch();
    run_task();
    sched::exit_current()
}

/// Runs the current task until it ends.
fn run_task() {
    let task = current();
    let start = task.start.lock().take();
    if let Some(start) = start {
        start(&task);
    }
    loop {
        sched::handle_pending();
        if pause::rest() {
            continue;
        }
        if task.wants_attention() && signal::deliver_pending(&task).is_break() {
            break;
        }
        sched::before_user(&task);
        // It may have waited for the CPU just now.
        if task.wants_attention() || pause::is_paused() {
            continue;
        }
        // SAFETY: the task is current, and only itself replaces its memory, which it does not do before the trap.
        let Some(aspace) = (unsafe { task.own_aspace() }) else { break };
        // SAFETY: the task is current; nothing else holds its context here.
        let context = unsafe { task.context() };
        let rip = context.run.regs.rip;
        if rip >= abi::layout::USER_MAX {
            // A jump there would fault at once; some addresses there the processor doesn't even let the kernel load.
            signal::raise_bad_instruction_pointer(&task, rip);
            continue;
        }
        task.sched.count_time(false);
        let trap = platform::run_user(context, aspace);
        task.sched.count_time(true);
        itimer::check(&task);
        handle_trap(&task, trap);
    }
}

fn handle_trap(task: &Arc<Task>, trap: Trap) {
    match trap {
        Trap::Syscall => crate::syscall::dispatch(task),
        Trap::Interrupt => {}
        Trap::PageFault { addr, error } => {
            let Some(aspace) = task.aspace() else { return };
            // An access of the processor's own on behalf of user code (a descriptor table, say) no mapping can help.
            let result = match error & abi::run::PF_USER {
                0 => Err(crate::mm::Fault::Forbidden { addr }),
                _ => aspace.handle_fault(addr, error),
            };
            if let Err(fault) = result {
                signal::raise_fault(task, fault, error);
            }
        }
        Trap::Bus { addr } => signal::raise_fault(task, crate::mm::Fault::Bus { addr }, abi::run::PF_USER),
        Trap::Exception { vector, error } => signal::raise_exception(task, vector, error),
        Trap::Lost => {
            crate::info!("task {}: its address space is lost", task.tid());
            signal::kill_process(&task.process, signal::SIGKILL);
        }
    }
}
