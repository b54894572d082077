//! `pidfd_open(2)`: a descriptor of a process or a thread, readable once that has ended.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::anon;
use crate::fs::file::{File, FileOps, OpenFlags};
use crate::fs::inode::{AttrChange, Stat};
use crate::fs::poll::PollTable;
use crate::task::container;
use crate::task::core::Task;
use crate::task::process::Process;
use machine::errno::{Errno, Result};
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;

/// The descriptor.
pub struct PidFile {
    pub process: Arc<Process>,
    /// The thread that it is of, if not of the process as a whole (`PIDFD_THREAD`), and its id.
    thread: Option<(Weak<Task>, u32)>,
    ino: u64,
}

/// `st_dev` of descriptors of processes.
const DEV: u64 = 0xf;
/// `f_type` of their file system (`PID_FS_MAGIC`).
pub const MAGIC: u64 = 0x5049_4446;

/// `PIDFD_THREAD`.
pub const THREAD: OpenFlags = OpenFlags::EXCL;

impl PidFile {
    /// A descriptor of `process`.
    pub fn open(process: &Arc<Process>, flags: OpenFlags) -> Result<Arc<File>> {
        anon::check_room()?;
        let ino = *process.pidfd_ino.call_once(anon::next_ino);
        let ops = Self { process: process.clone(), thread: None, ino };
        Ok(File::new(Box::new(ops), flags | OpenFlags::RDWR, None))
    }

    /// A descriptor of a thread; `task` is nobody's once the first thread of a process has ended.
    pub fn open_thread(
        process: &Arc<Process>,
        task: Option<&Arc<Task>>,
        flags: OpenFlags,
    ) -> Result<Arc<File>> {
        anon::check_room()?;
        let tid = task.map_or(process.pid, |task| task.tid());
        let ino =
            if tid == process.pid { *process.pidfd_ino.call_once(anon::next_ino) } else { anon::next_ino() };
        let thread = Some((task.map_or_else(Weak::new, Arc::downgrade), tid));
        let ops = Self { process: process.clone(), thread, ino };
        Ok(File::new(Box::new(ops), flags | OpenFlags::RDWR, None))
    }

    /// Whether it was opened as one of a thread, which may be the first one of the process.
    pub fn is_of_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// The thread that it is of, while that lives; none if it is of the process.
    pub fn thread(&self) -> Option<Result<Arc<Task>>> {
        let (task, tid) = self.thread.as_ref()?;
        let found = self.process.container.pids.find_task(*tid);
        Some(found.filter(|found| Weak::ptr_eq(&Arc::downgrade(found), task)).ok_or(Errno::ESRCH))
    }

    /// Whether the process has ended, and whether it was waited for.
    fn end(&self) -> (bool, bool) {
        let tree = self.process.container.pids.tree.lock();
        let node = tree.nodes.get(&self.process.pid);
        match node.filter(|node| Arc::ptr_eq(&node.process, &self.process)) {
            Some(node) => (node.exit_status.is_some(), false),
            None => (true, true),
        }
    }

    /// Whether the process or thread has ended, waited for or not.
    pub fn has_ended(&self) -> bool {
        matches!(self.thread(), Some(Err(_))) || self.end().0
    }

    /// Returns the events that hold: `READABLE` after the end, and `HUP` once nothing is left to wait for.
    fn state(&self) -> PollEvents {
        let (ended, reaped) = self.end();
        let is_gone = reaped
            || match &self.thread {
                // Nobody waits for a thread that is not the first one.
                Some((_, tid)) => *tid != self.process.pid && self.has_ended(),
                None => false,
            };
        if is_gone {
            PollEvents::READABLE | PollEvents::HUP
        } else if ended || self.has_ended() {
            PollEvents::READABLE
        } else {
            PollEvents::empty()
        }
    }
}

/// A process has ended, one of its threads has, or it was waited for: descriptors tell.
pub fn ended(process: &Process) {
    if let Some(queue) = process.end_watch.get() {
        queue.wake(PollEvents::READABLE | PollEvents::HUP);
    }
}

impl FileOps for PidFile {
    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if let Some(table) = table {
            table.add(self.process.end_watch.call_once(|| Arc::new(WaitQueue::new())));
        }
        self.state()
    }

    fn can_be_spliced(&self) -> bool {
        false
    }

    /// One inode for each process, in a file system of their own.
    fn stat(&self, _file: &File) -> Result<Stat> {
        Ok(Stat { dev: DEV, ..anon::stat(0o700, self.ino, (0, 0)) })
    }

    fn set_attr(&self, _change: &AttrChange) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[pidfd]".to_vec()
    }

    fn fdinfo(&self) -> Vec<u8> {
        let is_known = Arc::ptr_eq(&container::current().pids, &self.process.container.pids);
        let shown = match (self.has_ended(), is_known) {
            (true, _) => -1,
            (false, true) => i64::from(self.thread.as_ref().map_or(self.process.pid, |(_, tid)| *tid)),
            (false, false) => 0,
        };
        format!("Pid:\t{shown}\nNSpid:\t{shown}\n").into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
