//! Pid spaces: a process tree with ids of its own, as a pid namespace of Linux. A container has one alone, or together
//! with others. It ends with its process 1.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use machine::sync::{Rank, SpinLock};

use crate::task::core::Task;
use crate::task::process::Process;
use crate::task::tree::Tree;

/// A pid space.
pub struct PidSpace {
    /// Unique among all spaces ever.
    pub number: u64,
    /// Its processes, by the ids they see.
    pub tree: SpinLock<Tree>,
}

impl PidSpace {
    /// A space without processes.
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { number, tree: SpinLock::new(Rank::ProcessTree, Tree::new()) })
    }

    /// The task with this id.
    pub fn find_task(&self, tid: u32) -> Option<Arc<Task>> {
        self.tree.lock().tasks.get(&tid).and_then(Weak::upgrade)
    }

    /// The process with this id, ended or not.
    pub fn find_process(&self, pid: u32) -> Option<Arc<Process>> {
        self.tree.lock().nodes.get(&pid).map(|node| node.process.clone())
    }

    /// All its processes, ended ones that nobody has waited for included.
    pub fn processes(&self) -> Vec<Arc<Process>> {
        self.tree.lock().nodes.values().map(|node| node.process.clone()).collect()
    }

    /// Its process 1 has ended: no task is added any more. The caller kills the others.
    pub fn close(&self) {
        self.tree.lock().is_closed = true;
    }
}
