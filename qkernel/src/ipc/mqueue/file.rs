//! Open queues: what `read(2)` shows, and `poll(2)`.

use alloc::format;
use alloc::sync::Arc;
use core::any::Any;

use crate::fs::caller;
use crate::fs::caller::PidOf;
use crate::fs::file::{At, File, FileOps, FileTable, OpenFlags, Whence};
use crate::fs::inode::Stat;
use crate::fs::poll::PollTable;
use crate::ipc::mqueue::Queue;
use crate::pseudo::seek_plain;
use alloc::boxed::Box;
use machine::errno::Result;
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;

/// An open queue.
pub struct QueueFile {
    pub queue: Arc<Queue>,
}

impl QueueFile {
    /// A description of a queue that `mq_open(2)` has found.
    pub fn open(queue: Arc<Queue>, flags: OpenFlags) -> Arc<File> {
        File::new(Box::new(Self { queue }), flags, None)
    }
}

impl FileOps for QueueFile {
    fn is_polled(&self) -> bool {
        true
    }

    fn takes_splices(&self) -> bool {
        false
    }

    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        let text = {
            let state = self.queue.state.lock();
            let (kind, signal, who) = match &state.registration {
                Some(now) => (now.kind, now.signal, now.who),
                None => (0, 0, PidOf::default()),
            };
            let pid = who.seen_by(&*caller::current());
            format!("QSIZE:{:<10} NOTIFY:{kind:<5} SIGNO:{signal:<5} NOTIFY_PID:{pid:<6}\n", state.bytes)
        };
        let mut pos = file.pos.lock();
        let offset = at.from(*pos);
        let from = usize::try_from(offset).map_or(text.len(), |from| from.min(text.len()));
        let rest = &text.as_bytes()[from..];
        let len = rest.len().min(buf.remaining());
        buf.fill(&rest[..len])?;
        if at.moves() {
            *pos = offset + len as u64;
        }
        Ok(len)
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if let Some(table) = table {
            table.add(&self.queue.filled);
            table.add(&self.queue.emptied);
        }
        let count = self.queue.count();
        let mut events = PollEvents::empty();
        events.set(PollEvents::READABLE, count > 0);
        events.set(PollEvents::WRITABLE, count < self.queue.capacity.messages as usize);
        events
    }

    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        seek_plain(file, offset, whence)
    }

    fn is_seekable(&self) -> bool {
        true
    }

    fn flush(&self, _file: &File, _owner: &FileTable) {
        self.queue.closed_by(PidOf::of(&*caller::current()));
    }

    fn held_bytes(&self) -> u64 {
        self.queue.state.lock().bytes
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        Ok(self.queue.stat())
    }

    fn describe(&self) -> alloc::vec::Vec<u8> {
        b"/mqueue".to_vec()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
