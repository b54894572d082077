//! Processes: thread groups, and the tree of parents, process groups and sessions.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::Task;
use super::itimer::{self, Timers};
use super::limits::Limits;
use super::signal::{PendingSignals, SigHand, StopState};
use crate::fs::{File, Terminal};
use machine::sched::wait::WaitQueue;
use machine::sync::{Shared, SpinLock};

/// A thread group.
pub struct Process {
    /// The id of the group and of its first thread.
    pub pid: u32,
    /// Its parent's id; 0 for the first process. Written under the tree's lock.
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
    /// The first process of a container: signals that it does not handle do nothing to it, as in a pid namespace of
    /// Linux, but for those of its own faults.
    pub is_protected: AtomicBool,
    /// The id by which it came in from outside; 0: it was born here.
    pub entrant: AtomicU64,
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
    /// `PR_SET_DUMPABLE`.
    pub dumpable: AtomicU32,
    /// How often it has called `execve(2)` since it was forked.
    pub programs: AtomicU32,
    /// That of its parent when it was forked.
    pub parents_programs: AtomicU32,
    /// `oom_score_adj`.
    pub oom_score_adj: AtomicI32,
    /// Signal sent to the parent at the end (`SIGCHLD` unless `clone(2)` said otherwise).
    pub exit_signal: AtomicU32,
    /// Counter ticks (user, system) of ended threads, and of waited-for children.
    pub ended_user: AtomicU64,
    pub ended_system: AtomicU64,
    pub children_user: AtomicU64,
    pub children_system: AtomicU64,
    pub start_ns: u64,
    /// Name of the thread that ended last, for the zombie.
    pub ended_comm: SpinLock<[u8; 16]>,
}

/// What state change a process has to tell its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// Stopped by this signal.
    Stopped(u32),
    Continued,
}

/// A process's place in the tree.
pub struct Node {
    pub process: Arc<Process>,
    pub children: Vec<u32>,
    pub group: u32,
    pub session: u32,
    /// Wait status once all threads have ended; the node goes when it is waited for.
    pub exit_status: Option<i32>,
    /// A stop or continue nobody has waited for yet.
    pub report: Option<Report>,
    /// Ids of the real user, as `waitid(2)` reports them.
    pub uid: u32,
}

impl Node {
    /// The parent's id.
    pub fn parent(&self) -> u32 {
        self.process.parent.load(Ordering::Relaxed)
    }
}

/// The session's terminal and its foreground group.
#[derive(Clone)]
pub struct SessionTerminal {
    pub terminal: Arc<dyn Terminal>,
}

/// All processes and threads. One lock: the tree is small and changes rarely.
pub struct Tree {
    pub nodes: BTreeMap<u32, Node>,
    pub tasks: BTreeMap<u32, Weak<Task>>,
    pub terminals: BTreeMap<u32, SessionTerminal>,
    next_id: u32,
}

/// The process tree.
pub static TREE: SpinLock<Tree> = SpinLock::new(Tree {
    nodes: BTreeMap::new(),
    tasks: BTreeMap::new(),
    terminals: BTreeMap::new(),
    next_id: 1,
});

/// Largest id (`kernel.pid_max`).
pub const PID_MAX: u32 = 4_194_304;

impl Tree {
    /// An id that no task, process, group or session uses.
    pub fn new_id(&mut self) -> u32 {
        loop {
            let id = self.next_id;
            self.next_id = if id >= PID_MAX { 300 } else { id + 1 };
            let used = self.tasks.contains_key(&id)
                || self.nodes.contains_key(&id)
                || self.terminals.contains_key(&id)
                || (id < self.next_id
                    && self.nodes.values().any(|node| node.group == id || node.session == id));
            if !used {
                return id;
            }
        }
    }

    /// The processes of a group.
    pub fn group_members(&self, group: u32) -> Vec<Arc<Process>> {
        self.nodes.values().filter(|node| node.group == group).map(|node| node.process.clone()).collect()
    }

    /// Whether no member of the group has a parent in another group of the same session.
    pub fn is_orphaned(&self, group: u32, except: u32) -> bool {
        !self.nodes.iter().any(|(pid, node)| {
            node.group == group
                && *pid != except
                && node.exit_status.is_none()
                && self.nodes.get(&node.parent()).is_some_and(|parent| {
                    parent.session == node.session && parent.group != group && parent.exit_status.is_none()
                })
        })
    }
}

impl Process {
    /// A process without threads yet.
    pub fn new(pid: u32, sighand: Arc<SigHand>, limits: Limits) -> Arc<Self> {
        let process = Arc::new(Self {
            pid,
            parent: AtomicU32::new(0),
            tasks: SpinLock::new(Vec::new()),
            sighand: Shared::new(sighand),
            pending: SpinLock::new(PendingSignals::default()),
            signal_watch: Arc::new(WaitQueue::new()),
            limits: SpinLock::new(limits),
            child_wait: WaitQueue::new(),
            group_exit: SpinLock::new(None),
            leader_status: AtomicI32::new(0),
            stopped: AtomicBool::new(false),
            is_protected: AtomicBool::new(false),
            entrant: AtomicU64::new(0),
            stop: SpinLock::new(StopState::default()),
            stop_wait: WaitQueue::new(),
            timers: SpinLock::new(Timers::default()),
            cpu_watch: AtomicBool::new(false),
            exe: SpinLock::new(None),
            is_subreaper: AtomicBool::new(false),
            dumpable: AtomicU32::new(1),
            programs: AtomicU32::new(0),
            parents_programs: AtomicU32::new(0),
            oom_score_adj: AtomicI32::new(0),
            exit_signal: AtomicU32::new(super::signal::SIGCHLD),
            ended_user: AtomicU64::new(0),
            ended_system: AtomicU64::new(0),
            children_user: AtomicU64::new(0),
            children_system: AtomicU64::new(0),
            start_ns: machine::time::boottime_ns(),
            ended_comm: SpinLock::new([0; 16]),
        });
        itimer::update_watch(&process);
        process
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

    /// User and system time of all its threads so far, in counter ticks.
    pub fn cpu_ticks(&self) -> (u64, u64) {
        let mut user = self.ended_user.load(Ordering::Relaxed);
        let mut system = self.ended_system.load(Ordering::Relaxed);
        for task in self.tasks.lock().iter() {
            user += task.thread.sched.user_ticks.load(Ordering::Relaxed);
            system += task.thread.sched.system_ticks.load(Ordering::Relaxed);
        }
        (user, system)
    }
}

/// The task with this id.
pub fn find_task(tid: u32) -> Option<Arc<Task>> {
    TREE.lock().tasks.get(&tid).and_then(Weak::upgrade)
}

/// The process with this id, ended or not.
pub fn find_process(pid: u32) -> Option<Arc<Process>> {
    TREE.lock().nodes.get(&pid).map(|node| node.process.clone())
}

/// Wakes every task of the process that sleeps interruptibly and makes it look at its state.
pub fn call_attention(process: &Process) {
    let tasks: Vec<Arc<Task>> = process.tasks.lock().clone();
    for task in tasks {
        task.call_attention();
    }
    process.stop_wait.wake_all();
}
