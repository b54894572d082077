//! The process tree: parents, process groups and sessions.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::task::container::Container;
use crate::task::core::Task;
use crate::task::groups::Ticks;
use crate::task::process::Process;
use crate::task::terminal::Terminal;

/// A change of state that a process reports to its parent.
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
    /// Process 1 has ended: no task is added any more.
    pub is_closed: bool,
}

/// Largest id (`kernel.pid_max`).
pub const PID_MAX: u32 = 4_194_304;

/// Processes that are looked at under one hold of the lock, where a search goes on later.
const LOOKS_AT_ONCE: usize = 1024;

/// A task of the process does not count any more for its container and its control group; `used`: see [`Groups::remove_task`].
///
/// [`Groups::remove_task`]: crate::task::groups::Groups::remove_task
fn uncount(process: &Process, used: Option<Ticks>) {
    process.container.task_count.fetch_sub(1, Ordering::Relaxed);
    process.container.groups.remove_task(&process.member, used);
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// No process.
    pub const fn new() -> Self {
        Self {
            nodes: BTreeMap::new(),
            tasks: BTreeMap::new(),
            terminals: BTreeMap::new(),
            next_id: 1,
            is_closed: false,
        }
    }

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

    /// The id that was given last, or 0.
    pub fn last_id(&self) -> u32 {
        self.next_id - 1
    }

    /// Whether the container may have another task.
    pub fn admits(&self, container: &Container) -> bool {
        !self.is_closed && !container.has_ended()
    }

    /// Adds a task, which its container and its control group count.
    pub fn add_task(&mut self, task: &Arc<Task>) {
        if self.tasks.insert(task.tid(), Arc::downgrade(task)).is_none() {
            let Process { container, member, .. } = &*task.process;
            container.task_count.fetch_add(1, Ordering::Relaxed);
            container.groups.add_task(member);
        }
    }

    /// A thread takes the id of its process's first one (`execve(2)`), which may just be ending and does not count any more then.
    pub fn rename_task(&mut self, task: &Arc<Task>, tid: u32) {
        self.tasks.remove(&task.tid());
        task.set_tid(tid);
        if self.tasks.insert(tid, Arc::downgrade(task)).is_some() {
            uncount(&task.process, None);
        }
    }

    /// Removes a task that ends.
    pub fn remove_task(&mut self, task: &Task) {
        if self.tasks.get(&task.tid()).is_some_and(|known| core::ptr::eq(known.as_ptr(), task)) {
            self.tasks.remove(&task.tid());
            let process = &task.process;
            uncount(process, (process.member.tasks() == 1).then(|| process.group_ticks()));
        }
    }

    /// The processes of a container that have not ended.
    pub fn living(&self, container: &Container) -> impl Iterator<Item = &Arc<Process>> {
        let living = self.nodes.values().filter(|node| node.exit_status.is_none());
        living.map(|node| &node.process).filter(|process| core::ptr::eq(&*process.container, container))
    }

    /// Takes what is left once process 1 and all others have ended. The caller drops it without the lock.
    pub fn take_if_over(&mut self) -> Option<Self> {
        // Whose last task has left the tree may still have to tell others of its end, for which it needs the tree.
        let lives = |node: &Node| node.exit_status.is_none();
        let is_over = self.is_closed && self.tasks.is_empty() && !self.nodes.values().any(lives);
        is_over.then(|| core::mem::replace(self, Self { is_closed: true, ..Self::new() }))
    }

    /// Whether a group has any process.
    pub fn has_group(&self, group: u32) -> bool {
        self.nodes.values().any(|node| node.group == group)
    }

    /// The processes of a group.
    pub fn group_members(&self, group: u32) -> Vec<Arc<Process>> {
        self.nodes.values().filter(|node| node.group == group).map(|node| node.process.clone()).collect()
    }

    /// At most `most` processes of a group, with ids from `from` on, found in a bounded time; and the id to go on from if there may be
    /// more.
    pub fn some_of_group(&self, group: u32, from: u32, most: usize) -> (Vec<Arc<Process>>, Option<u32>) {
        let mut members = Vec::new();
        for (step, (pid, node)) in self.nodes.range(from..).enumerate() {
            if members.len() >= most || step >= LOOKS_AT_ONCE {
                return (members, Some(*pid));
            }
            if node.group == group {
                members.push(node.process.clone());
            }
        }
        (members, None)
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
