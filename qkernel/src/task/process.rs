//! Processes: thread groups, and the tree of parents, process groups and sessions.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::creds::Creds;
use crate::fs::file::File;
use crate::keys::Key;
use crate::limits::{Limits, RLIM_INFINITY, RLIMIT_CPU};
use crate::task::container::Container;
use crate::task::core::Task;
use crate::task::groups::{Member, Ticks};
use crate::task::kept::Kept;
use crate::task::policy::SchedPolicy;
use crate::task::signal::action::SigHand;
use crate::task::signal::queue::PendingSignals;
use crate::task::signal::stop_state::StopState;
use crate::task::timers::Timers;
use crate::task::used::Used;
use machine::sched::wait::WaitQueue;
use machine::sync::{Once, Rank, Shared, SpinLock};

/// Is told the wait status of a process that has ended.
pub type EndWatch = Box<dyn Fn(i32) + Send + Sync>;

/// `personality(2)`: each program is where it is at every start.
pub const ADDR_NO_RANDOMIZE: u32 = 0x4_0000;
/// `uname(2)` tells of a release 2.6.
pub const UNAME26: u32 = 0x2_0000;
/// `uname(2)` tells of a machine of 32 bits (`setarch(8)`).
pub const PER_LINUX32: u32 = 8;

/// A thread group.
pub struct Process {
    /// The id of the group and of its first thread.
    pub pid: u32,
    /// Unique among all processes ever; 0 is none's.
    pub serial: u64,
    pub container: Arc<Container>,
    /// Its place among the container's groups.
    pub member: Member,
    /// Its parent's id; 0 for the first process of a container, and for one that came from outside. Written under the tree's lock.
    pub parent: AtomicU32,
    /// Its threads that have not ended.
    pub tasks: SpinLock<Vec<Arc<Task>>>,
    pub sighand: Shared<SigHand>,
    /// Signals for whichever thread takes them. Its lock is the process's signal lock.
    pub pending: SpinLock<PendingSignals>,
    /// Woken when a signal becomes pending (signal descriptors).
    pub signal_watch: Arc<WaitQueue>,
    pub limits: SpinLock<Limits>,
    /// Woken when a child changes state.
    pub child_wait: WaitQueue,
    /// Set once the whole group is to end with this wait status (`exit_group`, a fatal signal).
    pub group_exit: SpinLock<Option<i32>>,
    /// How the first thread ended, if it ended alone.
    pub leader_status: AtomicI32,
    /// Stopped by job control: its tasks sleep at the user boundary.
    pub stopped: AtomicBool,
    /// The pass by which it runs although its container is paused ([`crate::task::pause`]); 0: it has none.
    pub pass: AtomicU64,
    /// Process 1 of a container that was held: signals that it does not handle do nothing to it, as in a pid namespace of
    /// Linux, but for those of its own faults.
    pub is_protected: AtomicBool,
    /// Set for one that came from outside, other than process 1: it has no parent that waits for it, and its end is told to this.
    pub on_end: Once<EndWatch>,
    /// Woken when one of its threads has ended, all have, or it was waited for, once somebody has polled a descriptor of it.
    pub end_watch: Once<Arc<WaitQueue>>,
    /// The inode number of its descriptors.
    pub pidfd_ino: Once<u64>,
    /// How far a stop has got.
    pub stop: SpinLock<StopState>,
    /// Woken when the group continues, or ends.
    pub stop_wait: WaitQueue,
    /// `setitimer`, POSIX timers and alarms.
    pub timers: SpinLock<Timers>,
    /// Something depends on its processor time (a timer, `RLIMIT_CPU`).
    pub cpu_watch: AtomicBool,
    /// The program, for `/proc/PID/exe`.
    pub exe: SpinLock<Option<Arc<File>>>,
    /// `PR_SET_CHILD_SUBREAPER`.
    pub is_subreaper: AtomicBool,
    /// The keyring that its threads have in common.
    pub keyring: SpinLock<Option<Arc<Key>>>,
    /// `personality(2)`.
    pub personality: AtomicU32,
    /// `PR_SET_THP_DISABLE`: kept, and nothing else: huge pages are the host's affair.
    pub refuses_huge_pages: AtomicBool,
    pub kept: Kept,
    /// `PR_SET_DUMPABLE`.
    pub dumpable: AtomicU32,
    /// How often it has called `execve(2)` since it was forked.
    pub programs: AtomicU32,
    /// That of its parent when it was forked.
    pub parents_programs: AtomicU32,
    /// `/proc/PID/coredump_filter`: no core dumps are written.
    pub coredump_filter: AtomicU32,
    /// That of its session.
    pub autogroup: Shared<Autogroup>,
    /// `oom_score_adj`.
    pub oom_score_adj: AtomicI32,
    /// Signal sent to the parent at the end (`SIGCHLD` unless `clone(2)` said otherwise).
    pub exit_signal: AtomicU32,
    /// Resources that its ended threads have used. `max_rss` is the largest peak of the address spaces that the process has
    /// left, those of former programs included.
    pub ended_used: SpinLock<Used>,
    /// Resources that children that were waited for, and theirs, have used.
    pub children_used: SpinLock<Used>,
    pub start_ns: u64,
    /// Name of the thread that ended last, for the zombie.
    pub ended_comm: SpinLock<[u8; 16]>,
    /// The policy and credentials of the first thread once it has ended.
    pub ended: SpinLock<Option<Ended>>,
}

/// How an ended thread was scheduled, and who it was: it may be asked until its process is waited for.
#[derive(Clone)]
pub struct Ended {
    pub policy: Arc<SchedPolicy>,
    pub creds: Arc<Creds>,
}

/// `/proc/PID/autogroup`, which all processes of a session have in common.
pub struct Autogroup {
    pub id: u64,
    pub nice: AtomicI32,
}

impl Autogroup {
    /// Of a new session.
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(2);
        Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), nice: AtomicI32::new(0) })
    }
}

impl Process {
    /// A process without threads yet.
    pub fn new(container: Arc<Container>, pid: u32, sighand: Arc<SigHand>, limits: Limits) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let member = Member::new(container.groups.root());
        let process = Arc::new(Self {
            pid,
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            container,
            member,
            parent: AtomicU32::new(0),
            tasks: SpinLock::new(Rank::Tasks, Vec::new()),
            sighand: Shared::new(sighand),
            pending: SpinLock::new(Rank::Signals, PendingSignals::default()),
            signal_watch: Arc::new(WaitQueue::new()),
            limits: SpinLock::new(Rank::Limits, limits),
            child_wait: WaitQueue::new(),
            group_exit: SpinLock::new(Rank::Leaf, None),
            leader_status: AtomicI32::new(0),
            stopped: AtomicBool::new(false),
            pass: AtomicU64::new(0),
            is_protected: AtomicBool::new(false),
            on_end: Once::new(),
            end_watch: Once::new(),
            pidfd_ino: Once::new(),
            stop: SpinLock::new(Rank::Stop, StopState::default()),
            stop_wait: WaitQueue::new(),
            timers: SpinLock::new(Rank::ProcessTimers, Timers::default()),
            cpu_watch: AtomicBool::new(false),
            exe: SpinLock::new(Rank::Leaf, None),
            is_subreaper: AtomicBool::new(false),
            keyring: SpinLock::new(Rank::Leaf, None),
            personality: AtomicU32::new(0),
            refuses_huge_pages: AtomicBool::new(false),
            kept: Kept::default(),
            dumpable: AtomicU32::new(1),
            programs: AtomicU32::new(0),
            parents_programs: AtomicU32::new(0),
            coredump_filter: AtomicU32::new(0x33),
            autogroup: Shared::new(Arc::new(Autogroup { id: 1, nice: AtomicI32::new(0) })),
            oom_score_adj: AtomicI32::new(0),
            exit_signal: AtomicU32::new(crate::signals::SIGCHLD),
            ended_used: SpinLock::new(Rank::Leaf, Used::default()),
            children_used: SpinLock::new(Rank::Leaf, Used::default()),
            start_ns: machine::time::boottime_ns(),
            ended_comm: SpinLock::new(Rank::Leaf, [0; 16]),
            ended: SpinLock::new(Rank::Leaf, None),
        });
        process.update_watch();
        process
    }

    /// Who it is: as its first thread, another, or the one that ended.
    pub fn creds(&self) -> Option<Arc<Creds>> {
        let living = self.any_task().map(|task| task.creds.get());
        living.or_else(|| self.ended.lock().as_ref().map(|ended| ended.creds.clone()))
    }

    /// The first thread, or another while the first has ended.
    pub fn any_task(&self) -> Option<Arc<Task>> {
        let tasks = self.tasks.lock();
        tasks.iter().find(|task| task.tid() == self.pid).or_else(|| tasks.first()).cloned()
    }

    /// Whether the whole group is ending.
    pub fn is_exiting(&self) -> bool {
        self.group_exit.lock().is_some()
    }

    /// Returns the resources that all its threads, ended ones included, have used so far.
    pub fn used(&self) -> Used {
        let tasks = self.tasks.lock();
        let mut used = *self.ended_used.lock();
        for task in tasks.iter() {
            used += Used::by(&task.thread.sched);
        }
        used
    }

    /// Returns the resources that all its threads, and the children that it has waited for, have used.
    pub fn used_with_children(&self) -> Used {
        let mut used = self.used();
        used += *self.children_used.lock();
        used
    }

    /// User and system time of all its threads so far, in counter ticks.
    pub fn cpu_ticks(&self) -> (u64, u64) {
        let used = self.used();
        (used.user, used.system)
    }

    /// User and total processor time of all its threads so far, in nanoseconds.
    pub fn cpu_times(&self) -> (u64, u64) {
        self.used().cpu_times()
    }

    /// Says anew whether anything depends on its processor time. Called when timers or limits change.
    pub fn update_watch(&self) {
        // Under the lock, so that what is said last is what the timers are.
        let timers = self.timers.lock();
        let limited = self.limits.lock().soft(RLIMIT_CPU) != RLIM_INFINITY;
        self.cpu_watch.store(timers.watch_cpu() || limited, Ordering::Relaxed);
    }

    /// User and system time of all its threads so far, in counter ticks, in the form that its groups count.
    pub fn group_ticks(&self) -> Ticks {
        let (user, system) = self.cpu_ticks();
        Ticks { user, system }
    }

    /// An address space that it leaves has held so many bytes.
    pub fn has_held(&self, bytes: u64) {
        let mut used = self.ended_used.lock();
        used.max_rss = used.max_rss.max(bytes);
    }
}

/// Wakes every task of the process that sleeps interruptibly and makes it look at its state.
pub fn call_attention(process: &Process) {
    let tasks: Vec<Arc<Task>> = process.tasks.lock().clone();
    for task in tasks {
        task.call_attention();
    }
    process.stop_wait.wake_all();
}
