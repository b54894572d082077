//! The process or thread that a `/proc/PID` directory is about, and the check whether the reader may look.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::creds::Inspection;
use crate::proc::identity::PROC;
use crate::pseudo::{Context, FileSystem};
use crate::task;
use crate::task::core::Task;
use crate::task::inspect;
use crate::task::process::Process;
use crate::task::used::Used;
use machine::errno::{Errno, Result};
use machine::mm::HeldSpace;
use machine::time;

/// A process, or one of its threads.
#[derive(Clone)]
pub struct Subject {
    pub process: Arc<Process>,
    tid: u32,
    /// Below `task/`: about this thread alone.
    is_thread: bool,
}

/// A process's place in the tree, copied out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Family {
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    /// Wait status, once it has ended.
    pub ended: Option<i32>,
    /// Device number of the controlling terminal (0: none), and its foreground group (-1: none).
    pub terminal: u64,
    pub foreground: i32,
}

impl Subject {
    /// A process; `tid` names the thread whose own facts count.
    pub fn process(process: Arc<Process>, tid: u32) -> Self {
        Self { process, tid, is_thread: false }
    }

    /// One thread.
    pub fn thread(process: Arc<Process>, tid: u32) -> Self {
        Self { process, tid, is_thread: true }
    }

    /// The id the directory is called by.
    pub fn id(&self) -> u32 {
        self.tid
    }

    /// Whether it is about one thread.
    pub fn is_thread(&self) -> bool {
        self.is_thread
    }

    /// Returns the resources that the thread, whose task it is, or all of the process has used.
    pub fn used(&self, task: Option<&Arc<Task>>) -> Used {
        match task {
            Some(task) if self.is_thread => Used::by(&task.thread.sched),
            _ => self.process.used(),
        }
    }

    /// Whether the first thread has ended before others, so that the process shows as a zombie meanwhile.
    pub fn leader_has_ended(&self) -> bool {
        self.tid == self.process.pid
            && !self.process.tasks.lock().iter().any(|task| task.tid() == self.process.pid)
    }

    /// The thread, or one that stands for the process; `ESRCH` when there is none left.
    pub fn task(&self) -> Result<Arc<Task>> {
        let found = self.process.tasks.lock().iter().find(|task| task.tid() == self.tid).cloned();
        let stand_in = || if self.is_thread { None } else { self.process.any_task() };
        found.or_else(stand_in).ok_or(Errno::ESRCH)
    }

    /// Its memory; `ESRCH` once it is given up.
    pub fn aspace(&self) -> Result<HeldSpace> {
        self.task()?.held_aspace().ok_or(Errno::ESRCH)
    }

    /// Its place in the tree; `ESRCH` once its parent has waited for it.
    pub fn family(&self) -> Result<Family> {
        let (mut family, terminal) = {
            let tree = self.process.container.pids.tree.lock();
            let node = tree.nodes.get(&self.process.pid).ok_or(Errno::ESRCH)?;
            let terminal = tree.terminals.get(&node.session).map(|session| session.terminal.clone());
            let family = Family {
                parent: node.parent(),
                group: node.group,
                session: node.session,
                ended: node.exit_status,
                terminal: 0,
                foreground: -1,
            };
            (family, terminal)
        };
        if let Some(terminal) = terminal {
            family.terminal = terminal.device();
            family.foreground = i32::try_from(terminal.foreground()).unwrap_or(-1);
        }
        Ok(family)
    }

    /// Whether this is the current task's own process.
    pub fn is_own(&self) -> bool {
        Arc::ptr_eq(&task::current().process, &self.process)
    }
}

impl Context for Subject {
    fn file_system(&self) -> &'static FileSystem {
        &PROC
    }

    fn owner(&self) -> (u32, u32) {
        let dumpable = self.process.dumpable.load(Ordering::Relaxed) == 1;
        match self.task() {
            Ok(task) if dumpable => {
                let creds = task.creds.get();
                (creds.euid, creds.egid)
            }
            Ok(_) => (0, 0),
            Err(_) => (
                self.process
                    .container
                    .pids
                    .tree
                    .lock()
                    .nodes
                    .get(&self.process.pid)
                    .map_or(0, |node| node.uid),
                0,
            ),
        }
    }

    fn owner_of_public(&self) -> (u32, u32) {
        self.task().map_or_else(
            |_| self.owner(),
            |task| {
                let creds = task.creds.get();
                (creds.euid, creds.egid)
            },
        )
    }

    fn is_callers(&self) -> bool {
        self.is_own()
    }

    fn check(&self) -> Result<()> {
        if self.is_thread {
            return self.task().map(drop);
        }
        let tree = self.process.container.pids.tree.lock();
        let node = tree.nodes.get(&self.process.pid).ok_or(Errno::ESRCH)?;
        if Arc::ptr_eq(&node.process, &self.process) { Ok(()) } else { Err(Errno::ESRCH) }
    }

    fn guard(&self) -> Result<()> {
        let me = task::current();
        if Arc::ptr_eq(&me.process, &self.process) {
            return Ok(());
        }
        if let Ok(task) = self.task() {
            return inspect::check(&me, &task, Inspection::Files).map_err(|_| Errno::EACCES);
        }
        let other = self.process.creds().ok_or(Errno::ESRCH)?;
        let dumpable = self.process.dumpable.load(Ordering::Relaxed) == 1;
        let covers = me.creds.get().covers(&other, dumpable, Inspection::Files);
        if covers { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn generation(&self) -> u32 {
        self.process.programs.load(Ordering::Relaxed)
    }

    fn time_ns(&self) -> i64 {
        let age = time::boottime_ns().saturating_sub(self.process.start_ns);
        time::realtime_ns().saturating_sub(age).cast_signed()
    }

    fn refusal(&self) -> Errno {
        Errno::EINVAL
    }

    fn is_fleeting(&self) -> bool {
        true
    }
}

/// One of several things of a process, such as its descriptors, that a node of `/proc` is about.
pub trait Which: Clone + Send + Sync + 'static {
    /// `ENOENT`: the process has it no more.
    fn check(&self, subject: &Subject) -> Result<()>;
}

/// One of them.
#[derive(Clone)]
pub struct Part<T> {
    pub subject: Subject,
    pub which: T,
}

impl<T: Which> Context for Part<T> {
    fn file_system(&self) -> &'static FileSystem {
        &PROC
    }

    fn owner(&self) -> (u32, u32) {
        self.subject.owner()
    }

    fn check(&self) -> Result<()> {
        self.which.check(&self.subject)
    }

    fn guard(&self) -> Result<()> {
        self.subject.guard()
    }

    fn generation(&self) -> u32 {
        self.subject.generation()
    }

    fn time_ns(&self) -> i64 {
        self.subject.time_ns()
    }

    fn is_fleeting(&self) -> bool {
        true
    }

    fn link_size(&self) -> u64 {
        64
    }
}
