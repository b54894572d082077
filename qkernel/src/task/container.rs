//! Containers: what a set of processes has in common and shares with no other set. A sandbox has one or more.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

pub use abi::report::ContainerId;
use machine::errno::{Errno, Result};
use machine::host;
use machine::mm::commit;
use machine::mm::owners::OwnerLease;
use machine::recording;
use machine::sched;
use machine::sched::ChargedTo;
use machine::sync::{Once, Rank, Shared, SpinLock};

use crate::fs::leases::BREAK_SECONDS;
use crate::fs::mount;
use crate::fs::notify::limits::Limits as InotifyLimits;
use crate::fs::path::Path;
use crate::ipc::IpcNamespace;
use crate::keys::space::KeySpace;
use crate::limits::container::ContainerLimits;
use crate::net::passing::{self, Passing};
use crate::spec::IdMaps;
use crate::task::core::{Task, current as current_task};
use crate::task::groups::Groups;
use crate::task::kernel_log::KernelLog;
use crate::task::pause_state::Pause;
use crate::task::pid_space::PidSpace;
use crate::task::process::Process;
use crate::task::terminal::Terminal;
use crate::task::used::Used;

/// Stands for the kernel's own tasks, which no program sees.
const OF_THE_KERNEL: ContainerId = ContainerId(u64::MAX);

/// The id of a pid space's first process.
pub const FIRST_PID: u32 = 1;

/// Is told the wait status of a container's first process once no task of the container is left.
pub type ContainerWatch = Box<dyn Fn(ContainerId, i32) + Send + Sync>;

/// The names of `uname(2)` that a container may set.
#[derive(Default)]
struct UtsNames {
    host: Vec<u8>,
    domain: Vec<u8>,
}

/// How often a limit was reached.
#[derive(Default)]
pub struct Events {
    /// There was no memory, and a process had to be killed.
    pub out_of_memory: AtomicU64,
    /// A process of this container was killed for its memory.
    pub oom_kills: AtomicU64,
    /// A task was refused, since there were as many as may be.
    pub forks_refused: AtomicU64,
}

/// A container.
pub struct Container {
    pub id: ContainerId,
    /// The ids that its processes see, its own or also those of other containers' processes.
    pub pids: Arc<PidSpace>,
    has_own_pids: bool,
    /// Its own control group, and those that its programs make below.
    pub groups: Arc<Groups>,
    /// Its System V objects and message queues, alone or together with other containers.
    ipc: Shared<IpcNamespace>,
    /// Its keys.
    pub keys: Arc<KeySpace>,
    /// How much its users may watch.
    pub inotify: Arc<InotifyLimits>,
    /// How many files each of its users has in messages.
    pub passing: Arc<Passing>,
    /// `fs.lease-break-time`.
    pub lease_break_seconds: AtomicI32,
    first: Once<Weak<Process>>,
    /// Written under the tree's lock.
    pub(super) task_count: AtomicUsize,
    names: SpinLock<UtsNames>,
    /// The root of its mounts, whatever its first process has made its own root since.
    pub root: Once<Path>,
    /// `/dev/console`: the terminal that its first process's streams are on.
    pub console: Once<Arc<dyn Terminal>>,
    pub limits: ContainerLimits,
    /// Its ids on the host, if they are not all as they are there.
    pub id_maps: Once<IdMaps>,
    pub events: Events,
    /// The kernel's messages to its programs.
    pub log: KernelLog,
    /// The owner that its memory is charged to.
    memory: OwnerLease,
    /// Processor time of its ended tasks, in counter ticks (user, system).
    ended_used: SpinLock<Used>,
    pub(super) pause: Pause,
    /// The VMM lets the first process begin.
    is_started: AtomicBool,
    /// Wait status of its first process. Written under the tree's lock: afterwards no task is added.
    exit: Once<i32>,
    on_end: Once<ContainerWatch>,
}

/// All containers of the sandbox.
static ALL: SpinLock<BTreeMap<ContainerId, Arc<Container>>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

impl Container {
    /// A container without processes, with a pid space of its own. It is listed until it has ended. `EAGAIN`: there are as many
    /// as may be.
    pub fn new(id: ContainerId) -> Result<Arc<Self>> {
        Self::listed(id, None)
    }

    /// A container without processes in the pid space of another one. `ESRCH`: that has no process, or has ended. `EAGAIN`: there
    /// are as many as may be.
    pub fn joining(id: ContainerId, other: ContainerId) -> Result<Arc<Self>> {
        let other = find(other).filter(|other| other.first_process().is_some()).ok_or(Errno::ESRCH)?;
        Self::listed(id, Some(other.pids.clone()))
    }

    fn listed(id: ContainerId, pids: Option<Arc<PidSpace>>) -> Result<Arc<Self>> {
        let memory = match id {
            ContainerId::FIRST => OwnerLease::sandbox(),
            _ => OwnerLease::take().ok_or(Errno::EAGAIN)?,
        };
        commit::begin_owner(memory.owner());
        let container = Self::unlisted(id, pids, memory);
        ALL.lock().insert(id, container.clone());
        Ok(container)
    }

    /// The container of the kernel's own tasks.
    pub fn kernel() -> Arc<Self> {
        Self::unlisted(OF_THE_KERNEL, None, OwnerLease::sandbox())
    }

    fn unlisted(id: ContainerId, shared: Option<Arc<PidSpace>>, memory: OwnerLease) -> Arc<Self> {
        Arc::new(Self {
            id,
            has_own_pids: shared.is_none(),
            pids: shared.unwrap_or_else(PidSpace::new),
            groups: Groups::new(),
            ipc: Shared::new(IpcNamespace::new()),
            keys: KeySpace::new(),
            inotify: InotifyLimits::new(),
            passing: Passing::new(),
            lease_break_seconds: AtomicI32::new(BREAK_SECONDS),
            first: Once::new(),
            task_count: AtomicUsize::new(0),
            names: SpinLock::new(Rank::Leaf, UtsNames::default()),
            root: Once::new(),
            console: Once::new(),
            limits: ContainerLimits::new(),
            id_maps: Once::new(),
            events: Events::default(),
            log: KernelLog::new(),
            memory,
            ended_used: SpinLock::new(Rank::Leaf, Used::default()),
            pause: Pause::new(),
            is_started: AtomicBool::new(false),
            exit: Once::new(),
            on_end: Once::new(),
        })
    }

    /// Returns the owner that its memory is charged to, for as long as it lives.
    pub fn memory(&self) -> &OwnerLease {
        &self.memory
    }

    /// Until the result is dropped the current task, which may be any, takes memory for this container.
    pub fn charge(&self) -> ChargedTo {
        sched::charge_to(self.memory.owner())
    }

    /// Its System V objects and message queues.
    pub fn ipc(&self) -> Arc<IpcNamespace> {
        self.ipc.get()
    }

    /// Before it begins: its System V objects and message queues are those of another container.
    pub fn share_ipc(&self, other: &Self) {
        self.ipc.set(other.ipc());
    }

    /// Counts what a task that ends has used.
    pub fn count_ended(&self, used: Used) {
        *self.ended_used.lock() += used;
    }

    /// Returns the resources that all its tasks, ended ones included, have used so far.
    pub fn used(&self) -> Used {
        let mut used = *self.ended_used.lock();
        for task in self.tasks() {
            used += Used::by(&task.thread.sched);
        }
        used
    }

    /// User and system time of all its tasks so far, in counter ticks.
    pub fn cpu_ticks(&self) -> (u64, u64) {
        let used = self.used();
        (used.user, used.system)
    }

    /// Its host name.
    pub fn host_name(&self) -> Vec<u8> {
        self.names.lock().host.clone()
    }

    /// Sets its host name.
    pub fn set_host_name(&self, name: Vec<u8>) {
        self.names.lock().host = name;
    }

    /// Sets its NIS domain name; empty: none.
    pub fn set_domain_name(&self, name: Vec<u8>) {
        self.names.lock().domain = name;
    }

    /// Its NIS domain name as `uname(2)` tells it.
    pub fn domain_name(&self) -> Vec<u8> {
        let names = self.names.lock();
        if names.domain.is_empty() { b"(none)".to_vec() } else { names.domain.clone() }
    }

    /// Makes a process its first one. The first call counts.
    pub fn set_first(&self, process: &Arc<Process>) {
        self.first.call_once(|| Arc::downgrade(process));
    }

    /// Its first process, ended or not; `None` once it is forgotten.
    pub fn first_process(&self) -> Option<Arc<Process>> {
        self.first.get().and_then(Weak::upgrade)
    }

    /// Whether this is its first process.
    pub fn is_first(&self, process: &Process) -> bool {
        self.first.get().is_some_and(|first| core::ptr::eq(first.as_ptr(), process))
    }

    /// Whether nobody else has its process ids, so that its first process is process 1.
    pub fn has_own_pids(&self) -> bool {
        self.has_own_pids
    }

    /// All its processes, ended ones that nobody has waited for included.
    pub fn processes(&self) -> Vec<Arc<Process>> {
        let tree = self.pids.tree.lock();
        let all = tree.nodes.values().map(|node| &node.process);
        all.filter(|process| core::ptr::eq(&*process.container, self)).cloned().collect()
    }

    /// All its tasks, each after those of processes with smaller ids.
    pub fn tasks(&self) -> Vec<Arc<Task>> {
        self.processes().iter().flat_map(|process| process.tasks.lock().clone()).collect()
    }

    /// How many tasks it has.
    pub fn task_count(&self) -> usize {
        self.task_count.load(Ordering::Relaxed)
    }

    /// The first process waits until the VMM lets it begin, or until it is killed.
    pub fn wait_for_start(&self, first: &Process) {
        let is_over = || self.is_started.load(Ordering::SeqCst) || first.is_exiting();
        self.resting(|| first.stop_wait.wait_uninterruptible(is_over));
    }

    /// Lets the first process begin.
    pub fn start(&self) {
        self.is_started.store(true, Ordering::SeqCst);
        self.first_process().iter().for_each(|first| first.stop_wait.wake_all());
    }

    /// Names who is told of its end. The first call counts. The end of one that nobody watches ends the sandbox.
    pub fn watch_end(&self, watch: ContainerWatch) {
        self.on_end.call_once(|| watch);
    }

    /// It could not begin: it is listed no more.
    pub fn give_up(&self) {
        ALL.lock().remove(&self.id);
        self.leave_files();
        if self.has_own_pids {
            let left = core::mem::take(&mut *self.pids.tree.lock());
            drop(left);
        }
    }

    /// None of its mounts is seen any more, nor its console.
    fn leave_files(&self) {
        if let Some(console) = self.console.get() {
            console.container_ended();
        }
        if let Some(root) = self.root.get() {
            mount::remove_tree(&root.mount);
        }
    }

    /// Whether its first process has ended. No task is added any more then.
    pub fn has_ended(&self) -> bool {
        self.exit.get().is_some()
    }

    /// Its first process has ended. The caller kills the others, and calls [`Self::end_if_empty`].
    pub fn first_ended(&self, status: i32) {
        if self.on_end.get().is_none() {
            recording::finish();
            host::exit(status);
        }
        // Under the lock, so that whoever adds a task has seen it, or is seen.
        let _tree = self.pids.tree.lock();
        self.exit.call_once(|| status);
    }

    /// Ends the container if its first process and all its tasks have ended, and what is left of the pid space with the
    /// last container in it. Called by each task that ends.
    pub fn end_if_empty(&self) {
        let (Some(status), Some(tell)) = (self.exit.get(), self.on_end.get()) else { return };
        let (is_empty, left) = {
            let mut tree = self.pids.tree.lock();
            let is_empty = self.task_count() == 0 && tree.living(self).next().is_none();
            (is_empty, tree.take_if_over())
        };
        // Processes and containers hold each other until here.
        drop(left);
        if is_empty && ALL.lock().remove(&self.id).is_some() {
            self.leave_files();
            // No descriptor leads to what its programs left in messages.
            passing::collect_all();
            tell(self.id, *status);
        }
    }
}

/// The container of the task that runs on this CPU.
pub fn current() -> Arc<Container> {
    current_task().process.container.clone()
}

/// The container with this id.
pub fn find(id: ContainerId) -> Option<Arc<Container>> {
    ALL.lock().get(&id).cloned()
}

/// All containers of the sandbox.
pub fn all() -> Vec<Arc<Container>> {
    ALL.lock().values().cloned().collect()
}
