//! Tasks: threads, as programs know them.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use abi::word::low32;

use crate::creds::{CAP_IPC_LOCK, Creds};
use crate::fs::file::{FileTable, TableOfTask};
use crate::fs::path::FsContext;
use crate::ipc::sem::undo::UndoList;
use crate::keys::TaskKeyrings;
use crate::limits::RLIMIT_MEMLOCK;
use crate::net::talks;
use crate::task::confinement::Confinement;
use crate::task::policy::SchedPolicy;
use crate::task::process::Process;
use crate::task::rseq::Rseq;
use crate::task::signal::state::{Restart, TaskSignals};
use crate::task::vfork::VforkDone;
use crate::task::waits::Waits;
use machine::errno::Result;
use machine::host;
use machine::mm::{AddressSpace, HeldSpace};
use machine::platform::UserContext;
use machine::sched;
use machine::sched::{Run, Runnable, SchedState};
use machine::sync::{Rank, Shared, SpinLock};
use machine::thread::{ContextGuard, Thread};
use machine::time;

/// A thread.
pub struct Task {
    tid: AtomicU32,
    pub process: Arc<Process>,
    pub thread: Thread,
    pub policy: Arc<SchedPolicy>,
    files: SpinLock<Option<TableOfTask>>,
    pub fs: Shared<FsContext>,
    pub creds: Shared<Creds>,
    pub keyrings: TaskKeyrings,
    pub confinement: Confinement,
    pub signals: SpinLock<TaskSignals>,
    /// Set when this thread alone is to end (`exit(2)`, or another thread calls `execve(2)`).
    dying: AtomicBool,
    /// Wait status of `exit(2)`.
    exit_status: AtomicI32,
    /// The `vfork(2)` child this task waits for.
    pub vfork_wait: SpinLock<Option<Arc<VforkDone>>>,
    /// The task's work in the kernel before it runs user code (processes that nobody forked).
    pub start: SpinLock<Option<Start>>,
    pub comm: SpinLock<[u8; 16]>,
    /// `set_tid_address(2)`: zeroed and woken when the task ends.
    pub clear_child_tid: AtomicU64,
    /// `set_robust_list(2)`.
    pub robust_list: AtomicU64,
    /// `rseq(2)`.
    pub rseq: Rseq,
    /// The mode and flags of its memory policy (`set_mempolicy(2)`).
    pub mempolicy: AtomicU32,
    /// Told when this `vfork(2)` child executes or ends.
    pub vfork_parent: SpinLock<Option<Arc<VforkDone>>>,
    /// `PR_SET_TIMERSLACK`, in nanoseconds. Timers are exact all the same.
    pub timer_slack_ns: TimerSlack,
    /// `PR_SET_PDEATHSIG`.
    pub death_signal: AtomicU32,
    /// The changes to semaphores that are made once the task, and all others that share the list, have let go of it
    /// (`SEM_UNDO`).
    pub sem_undo: SpinLock<Option<Arc<UndoList>>>,
    /// The rest of a restartable sleep: see `restart_syscall(2)`.
    pub restart: SpinLock<Option<Restart>>,
    /// How it waits for a time, where somebody asks.
    pub waits: Waits,
    pub start_ns: u64,
}

/// How late a task's timers may be: now, and as it was when the task began.
pub struct TimerSlack {
    now: AtomicU64,
    default: AtomicU64,
}

impl Default for TimerSlack {
    fn default() -> Self {
        const NS: u64 = 50_000;
        Self { now: AtomicU64::new(NS), default: AtomicU64::new(NS) }
    }
}

impl TimerSlack {
    pub fn get(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// 0: as it began.
    pub fn set(&self, ns: u64) {
        let ns = if ns == 0 { self.default.load(Ordering::Relaxed) } else { ns };
        self.now.store(ns, Ordering::Relaxed);
    }

    /// Begins with its creator's.
    pub fn inherit(&self, creator: &Self) {
        self.now.store(creator.get(), Ordering::Relaxed);
        self.default.store(creator.get(), Ordering::Relaxed);
    }
}

/// A task's first work, in the kernel.
pub type Start = Box<dyn FnOnce(&Arc<Task>) + Send>;

/// The parts that a new task shares with its creator, or has copies of.
pub struct TaskParts {
    pub process: Arc<Process>,
    pub aspace: Option<Arc<AddressSpace>>,
    pub files: Option<Arc<FileTable>>,
    pub fs: Arc<FsContext>,
    pub creds: Arc<Creds>,
    pub signals: TaskSignals,
    pub context: UserContext,
    pub comm: [u8; 16],
    /// The task's work on its kernel stack: runs user code until it ends.
    pub main: fn(),
}

impl Task {
    /// A task that will run user code from `parts.context` once it is started.
    pub fn new(tid: u32, mut parts: TaskParts) -> Result<Arc<Self>> {
        let context = core::mem::take(&mut parts.context);
        let thread = Thread::new(context, parts.aspace.take(), parts.main)?;
        Ok(Self::with(tid, thread, parts))
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
        Self::with(0, Thread::idle(), parts)
    }

    fn with(tid: u32, thread: Thread, parts: TaskParts) -> Arc<Self> {
        Arc::new(Self {
            tid: AtomicU32::new(tid),
            process: parts.process,
            thread,
            policy: Arc::new(SchedPolicy::default()),
            dying: AtomicBool::new(false),
            exit_status: AtomicI32::new(0),
            vfork_wait: SpinLock::new(Rank::Leaf, None),
            start: SpinLock::new(Rank::Leaf, None),
            files: SpinLock::new(Rank::Leaf, parts.files.map(TableOfTask::new)),
            fs: Shared::new(parts.fs),
            creds: Shared::new(parts.creds),
            keyrings: TaskKeyrings::default(),
            confinement: Confinement::new(),
            signals: SpinLock::new(Rank::TaskSignals, parts.signals),
            comm: SpinLock::new(Rank::Leaf, parts.comm),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            rseq: Rseq::new(),
            mempolicy: AtomicU32::new(0),
            vfork_parent: SpinLock::new(Rank::Leaf, None),
            timer_slack_ns: TimerSlack::default(),
            death_signal: AtomicU32::new(0),
            sem_undo: SpinLock::new(Rank::Leaf, None),
            restart: SpinLock::new(Rank::Leaf, None),
            waits: Waits::default(),
            start_ns: time::boottime_ns(),
        })
    }

    /// The memory this task sees; `None` once it has ended.
    pub fn aspace(&self) -> Option<Arc<AddressSpace>> {
        self.thread.aspace()
    }

    /// The memory this task sees, for others, who may be the last to let go of it; `None` once it has ended.
    pub fn held_aspace(&self) -> Option<HeldSpace> {
        self.aspace().map(AddressSpace::hold)
    }

    /// The task's descriptors; `None` once it has ended.
    pub fn files(&self) -> Option<Arc<FileTable>> {
        self.files.lock().as_ref().map(TableOfTask::table)
    }

    /// Replaces the task's descriptors, returning the former.
    pub fn set_files(&self, files: Option<Arc<FileTable>>) -> Option<TableOfTask> {
        core::mem::replace(&mut *self.files.lock(), files.map(TableOfTask::new))
    }

    /// The list of what its end does to semaphores, made if there is none.
    pub fn undo_list(&self) -> Arc<UndoList> {
        self.sem_undo.lock().get_or_insert_with(UndoList::new).clone()
    }

    /// The user registers and FPU state, of the current task. The guard must be gone before the task sleeps.
    pub fn context(&self) -> ContextGuard<'_> {
        self.thread.context()
    }

    /// How many bytes of its memory it may lock: `RLIMIT_MEMLOCK`, which does not bind who may lock all.
    pub fn lock_limit(&self) -> u64 {
        if self.creds.get().has(CAP_IPC_LOCK) {
            return u64::MAX;
        }
        self.process.limits.lock().soft(RLIMIT_MEMLOCK)
    }

    /// Whether a signal that is not blocked waits for the task, or its end.
    pub fn has_pending(&self) -> bool {
        let shared = self.process.pending.lock();
        let own = self.signals.lock();
        (shared.set | own.pending.set) & !own.blocked != 0 || self.process.is_exiting() || self.is_dying()
    }

    /// Whether the task should look at its signals (a hint that may be stale in the true direction).
    pub fn wants_attention(&self) -> bool {
        self.thread.sched.wants_attention()
    }

    /// Makes the task look at its signals: wakes it from an interruptible sleep, interrupts its user code.
    pub fn call_attention(self: &Arc<Self>) {
        sched::call_attention(&(self.clone() as Runnable));
    }
}

impl Task {
    /// Makes a new task runnable for the first time.
    pub fn start(self: &Arc<Self>) {
        sched::start(&(self.clone() as Runnable));
    }

    /// Replaces the memory the current task sees, returning the former, which no CPU's page table is any more.
    pub fn replace_aspace(&self, aspace: Option<Arc<AddressSpace>>) -> Option<Arc<AddressSpace>> {
        self.thread.replace_aspace(aspace)
    }

    /// It has looked at its signals.
    pub fn clear_attention(&self) {
        self.thread.sched.clear_attention();
    }
}

impl Run for Task {
    fn sched(&self) -> &SchedState {
        &self.thread.sched
    }

    fn enter_cpu(&self) {
        self.rseq.came_on_cpu();
        self.thread.enter_cpu();
    }

    fn leave_cpu(&self) {
        self.thread.leave_cpu();
    }

    fn rest_on_cpu(&self) {
        self.thread.rest_on_cpu();
    }

    fn fetch_from(&self, cpu: usize) {
        self.thread.fetch_from(cpu);
    }

    fn has_cause(&self) -> bool {
        self.has_pending()
            || self.process.stopped.load(Ordering::SeqCst)
            || self.process.container.rests(&self.process)
    }

    fn is_to_end(&self) -> bool {
        self.process.is_exiting()
    }

    fn begin_timed_wait(&self, deadline_ns: u64) {
        if talks::are_watched() {
            let (site, call) = {
                let regs = &self.context().run.regs;
                // Where the program is, and how deep in its calls.
                (regs.rip ^ regs.rsp.rotate_left(32), low32(regs.rax))
            };
            self.waits.begin(site, call, time::monotonic_ns(), deadline_ns);
        }
    }

    fn end_timed_wait(&self) {
        if talks::are_watched() {
            self.waits.end();
        }
    }
}

/// The task this CPU runs.
pub fn current() -> Arc<Task> {
    let running: Arc<dyn Any + Send + Sync> = sched::current();
    match running.downcast() {
        Ok(task) => task,
        Err(_) => host::die("what runs is no task"),
    }
}

/// A weak reference to a task.
pub type TaskRef = Weak<Task>;
