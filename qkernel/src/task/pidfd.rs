//! `pidfd_open(2)`: a descriptor of a process, readable once it has ended.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::anon;
use crate::fs::file::{File, FileOps, OpenFlags};
use crate::fs::inode::Stat;
use crate::fs::poll::PollTable;
use crate::task::container;
use crate::task::process::Process;
use machine::errno::Result;
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;

/// The descriptor.
pub struct PidFile {
    pub process: Arc<Process>,
    ino: u64,
}

impl PidFile {
    /// A descriptor of `process`.
    pub fn open(process: &Arc<Process>, flags: OpenFlags) -> Result<Arc<File>> {
        anon::check_room()?;
        let ops = Self { process: process.clone(), ino: anon::next_ino() };
        Ok(File::new(Box::new(ops), flags | OpenFlags::RDWR, None))
    }

    /// Whether the process has ended, waited for or not.
    pub fn has_ended(&self) -> bool {
        let tree = self.process.container.pids.tree.lock();
        tree.nodes
            .get(&self.process.pid)
            .is_none_or(|node| node.exit_status.is_some() || !Arc::ptr_eq(&node.process, &self.process))
    }
}

/// A process has ended; called once its exit status can be waited for.
pub fn process_ended(process: &Process) {
    if let Some(queue) = process.end_watch.get() {
        queue.wake(PollEvents::READABLE);
    }
}

impl FileOps for PidFile {
    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if let Some(table) = table {
            table.add(self.process.end_watch.call_once(|| Arc::new(WaitQueue::new())));
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
        let is_known = Arc::ptr_eq(&container::current().pids, &self.process.container.pids);
        let shown = match (self.has_ended(), is_known) {
            (true, _) => -1,
            (false, true) => i64::from(self.process.pid),
            (false, false) => 0,
        };
        format!("Pid:\t{shown}\nNSpid:\t{shown}\n").into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
