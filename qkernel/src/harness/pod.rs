//! A pod: three containers that share their process ids.

use alloc::sync::Arc;

use crate::fs::path::Path;
use crate::harness::containers::{make, make_joined, take_ended};
use crate::harness::host::feed_process;
use crate::harness::rounds::run_all;
use crate::harness::script::*;
use crate::harness::world::{make_leader, make_root};
use crate::task::container::{Container, ContainerId};
use crate::task::process::Process;

pub const POD: ContainerId = ContainerId(2);
pub const APP: ContainerId = ContainerId(3);
pub const OTHER: ContainerId = ContainerId(4);
pub const STRANGER: ContainerId = ContainerId(5);

/// A container with its first process, which sleeps.
pub struct Member {
    pub container: Arc<Container>,
    pub process: Arc<Process>,
    pub root: Path,
}

impl Member {
    pub fn new(container: Arc<Container>) -> Self {
        let root = make_root();
        let task = make_leader(&container, &root, 0);
        let process = task.process.clone();
        feed_process(container.id, process.pid, sleep());
        task.start();
        drop(task);
        run_all();
        Self { container, process, root }
    }

    /// Its first process forks; the child sleeps.
    pub fn fork(&self) -> Arc<Process> {
        let next = self.container.pids.tree.lock().new_id() + 1;
        feed_process(self.container.id, next, sleep());
        assert_eq!(turn(&self.process, [call(FORK, &[])]), [next.into()]);
        self.container.pids.find_process(next).expect("the child")
    }
}

/// A pod's first container, which holds the ids, and two that share them.
pub fn pod() -> [Member; 3] {
    take_ended();
    let pause = Member::new(make(POD));
    let app = Member::new(make_joined(APP, POD));
    // Whoever joins a container that has joined is in the same space.
    let other = Member::new(make_joined(OTHER, APP));
    [pause, app, other]
}
