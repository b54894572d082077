//! Containers: what a set of processes has in common and shares with no other set. A sandbox has one or more.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use machine::host;
use machine::sched::wait::WaitQueue;
use machine::sync::{Once, Rank, SpinLock};

use crate::fs::path::Path;
use crate::limits::container::ContainerLimits;
use crate::spec::IdMaps;
use crate::task::core::{Task, current as current_task};
use crate::task::process::Process;
use crate::task::terminal::Terminal;
use crate::task::tree::Tree;

/// The number by which the VMM and the kernel know a container. That of the sandbox's first is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ContainerId(pub u64);

impl ContainerId {
    /// The sandbox's first container: the sandbox ends with it.
    pub const FIRST: Self = Self(0);
    /// Stands for the kernel's own tasks, which no program sees.
    const KERNEL: Self = Self(u64::MAX);
}

/// The id of a container's first process.
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
    /// Its processes, by the ids they see.
    pub tree: SpinLock<Tree>,
    names: SpinLock<UtsNames>,
    /// The root of its mounts, whatever its first process has made its own root since.
    pub root: Once<Path>,
    /// `/dev/console`: the terminal that its first process's streams are on.
    pub console: Once<Arc<dyn Terminal>>,
    pub limits: ContainerLimits,
    /// Its ids on the host, if they are not all as they are there.
    pub id_maps: Once<IdMaps>,
    pub events: Events,
    /// The VMM lets the first process begin.
    is_started: AtomicBool,
    start: WaitQueue,
    /// Wait status of its first process. Written under the tree's lock: afterwards no task is added.
    exit: Once<i32>,
    on_end: Once<ContainerWatch>,
}

/// All containers of the sandbox.
static ALL: SpinLock<BTreeMap<ContainerId, Arc<Container>>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

impl Container {
    /// A container without processes. It is listed until it has ended.
    pub fn new(id: ContainerId) -> Arc<Self> {
        let container = Self::unlisted(id);
        ALL.lock().insert(id, container.clone());
        container
    }

    /// The container of the kernel's own tasks.
    pub fn kernel() -> Arc<Self> {
        Self::unlisted(ContainerId::KERNEL)
    }

    fn unlisted(id: ContainerId) -> Arc<Self> {
        Arc::new(Self {
            id,
            tree: SpinLock::new(Rank::ProcessTree, Tree::new()),
            names: SpinLock::new(Rank::Leaf, UtsNames::default()),
            root: Once::new(),
            console: Once::new(),
            limits: ContainerLimits::new(),
            id_maps: Once::new(),
            events: Events::default(),
            is_started: AtomicBool::new(false),
            start: WaitQueue::new(),
            exit: Once::new(),
            on_end: Once::new(),
        })
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

    /// The task with this id.
    pub fn find_task(&self, tid: u32) -> Option<Arc<Task>> {
        self.tree.lock().tasks.get(&tid).and_then(Weak::upgrade)
    }

    /// The process with this id, ended or not.
    pub fn find_process(&self, pid: u32) -> Option<Arc<Process>> {
        self.tree.lock().nodes.get(&pid).map(|node| node.process.clone())
    }

    /// Its first process, ended or not.
    pub fn first_process(&self) -> Option<Arc<Process>> {
        self.find_process(FIRST_PID)
    }

    /// All its processes, ended ones that nobody has waited for included.
    pub fn processes(&self) -> Vec<Arc<Process>> {
        self.tree.lock().nodes.values().map(|node| node.process.clone()).collect()
    }

    /// All its tasks.
    pub fn tasks(&self) -> Vec<Arc<Task>> {
        self.tree.lock().tasks.values().filter_map(Weak::upgrade).collect()
    }

    /// Waits until the VMM lets the first process begin.
    pub fn wait_for_start(&self) {
        self.start.wait_uninterruptible(|| self.is_started.load(Ordering::SeqCst));
    }

    /// Lets the first process begin.
    pub fn start(&self) {
        self.is_started.store(true, Ordering::SeqCst);
        self.start.wake_all();
    }

    /// Names who is told of its end. The first call counts. The end of one that nobody watches ends the sandbox.
    pub fn watch_end(&self, watch: ContainerWatch) {
        self.on_end.call_once(|| watch);
    }

    /// It could not begin: it is listed no more.
    pub fn give_up(&self) {
        ALL.lock().remove(&self.id);
        let left = core::mem::take(&mut *self.tree.lock());
        drop(left);
    }

    /// Whether its first process has ended. No task is added any more then.
    pub fn has_ended(&self) -> bool {
        self.exit.get().is_some()
    }

    /// Its first process has ended. The caller kills the others, and calls [`Self::end_if_empty`].
    pub fn first_ended(&self, status: i32) {
        if self.on_end.get().is_none() {
            host::exit(status);
        }
        // Under the lock, so that whoever adds a task has seen it, or is seen.
        let _tree = self.tree.lock();
        self.exit.call_once(|| status);
    }

    /// Ends the container if its first process and all its tasks have ended. Called by each task that ends.
    pub fn end_if_empty(&self) {
        let (Some(status), Some(tell)) = (self.exit.get(), self.on_end.get()) else { return };
        let left = {
            let mut tree = self.tree.lock();
            // Whose last task has left the tree may still have to tell others of its end, for which it needs the tree.
            if !tree.tasks.is_empty() || tree.nodes.values().any(|node| node.exit_status.is_none()) {
                return;
            }
            core::mem::take(&mut *tree)
        };
        // Processes and container hold each other until here.
        drop(left);
        if ALL.lock().remove(&self.id).is_some() {
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
