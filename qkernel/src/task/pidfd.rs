//! `pidfd_open(2)`: a descriptor of a process, readable once it has ended.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::anon;
use crate::fs::file::{File, FileOps, OpenFlags};
use crate::fs::inode::Stat;
use crate::fs::poll::PollTable;
use crate::task::process::Process;
use machine::errno::Result;
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};

/// The queue of those that wait for the end of processes that have such descriptors.
static WATCHED: SpinLock<BTreeMap<u32, Weak<WaitQueue>>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

/// The descriptor.
pub struct PidFile {
    pub process: Arc<Process>,
    queue: Arc<WaitQueue>,
    ino: u64,
}

impl PidFile {
    /// A descriptor of `process`.
    pub fn open(process: &Arc<Process>, flags: OpenFlags) -> Result<Arc<File>> {
        anon::check_room()?;
        let queue = {
            let mut watched = WATCHED.lock();
            let present = watched.get(&process.pid).and_then(Weak::upgrade);
            present.unwrap_or_else(|| {
                let queue = Arc::new(WaitQueue::new());
                watched.insert(process.pid, Arc::downgrade(&queue));
                queue
            })
        };
        let ops = Self { process: process.clone(), queue, ino: anon::next_ino() };
        Ok(File::new(Box::new(ops), flags | OpenFlags::RDWR, None))
    }

    /// Whether the process has ended, waited for or not.
    pub fn has_ended(&self) -> bool {
        let tree = self.process.container.tree.lock();
        tree.nodes
            .get(&self.process.pid)
            .is_none_or(|node| node.exit_status.is_some() || !Arc::ptr_eq(&node.process, &self.process))
    }
}

/// A process has ended; called once its exit status can be waited for.
pub fn process_ended(pid: u32) {
    let queue = WATCHED.lock().get(&pid).and_then(Weak::upgrade);
    if let Some(queue) = queue {
        queue.wake(PollEvents::READABLE);
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let mut watched = WATCHED.lock();
        // This one, and perhaps the new process of the same id.
        if Arc::strong_count(&self.queue) == 1
            && watched.get(&self.process.pid).is_some_and(|queue| queue.as_ptr() == Arc::as_ptr(&self.queue))
        {
            watched.remove(&self.process.pid);
        }
    }
}

impl FileOps for PidFile {
    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if let Some(table) = table {
            table.add(&self.queue);
        }
        if self.has_ended() { PollEvents::READABLE } else { PollEvents::empty() }
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        Ok(anon::stat(0o600, self.ino, (0, 0)))
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[pidfd]".to_vec()
    }

    fn fdinfo(&self) -> Vec<u8> {
        let pid = self.process.pid;
        let shown = if self.has_ended() { -1 } else { i64::from(pid) };
        format!("Pid:\t{shown}\nNSpid:\t{shown}\n").into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
