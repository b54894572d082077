//! The standard streams: pipes, terminals, sockets and files that the host handed over.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use abi::boot::{STREAM_READABLE, STREAM_WRITABLE};

use crate::fs::file::position::seek_in_file;
use crate::fs::file::{At, File, FileOps, OpenFlags, Whence};
use crate::fs::host_poll;
use crate::fs::hostfs;
use crate::fs::inode::Stat;
use crate::fs::inode::{S_IFIFO, S_IFREG, S_IFSOCK};
use crate::fs::poll::PollTable;
use machine::errno::{Errno, Result};
use machine::file;
use machine::host;
use machine::host::Handle;
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};

/// The offset that means "at the stream's own position" in `READ` and `WRITE`.
const STREAM: u64 = u64::MAX;

/// A stream of the host.
pub struct HostStream {
    handle: Arc<Handle>,
    kind: u32,
    ino: u64,
    queue: Arc<WaitQueue>,
    token: u64,
    /// The position in a regular file, once the program has chosen one; before, the host's.
    position: SpinLock<Option<u64>>,
}

impl HostStream {
    /// The stream behind a handle.
    pub fn new(handle: Arc<Handle>) -> Result<Self> {
        let stat = host::stat_handle(&handle)?;
        let queue = Arc::new(WaitQueue::new());
        let token = host_poll::register(&queue);
        let kind = stat.mode & crate::fs::inode::S_IFMT;
        Ok(Self { handle, kind, ino: stat.ino, queue, token, position: SpinLock::new(Rank::Leaf, None) })
    }

    fn is_file(&self) -> bool {
        self.kind == S_IFREG
    }

    /// The events that hold now, of those the file is open for. If a task waits, has the host tell of the rest.
    fn ready(&self, file: &File) -> PollEvents {
        self.ready_besides(file, PollEvents::empty())
    }

    /// Returns the events that hold now, as [`Self::ready`] does. If a task waits, the host is also asked for the events
    /// `tried` in vain before, even if they hold by now, so that the task that tried hears of them.
    fn ready_besides(&self, file: &File, tried: PollEvents) -> PollEvents {
        let mut wanted = PollEvents::empty();
        if file.flags().readable() {
            wanted |= PollEvents::READABLE | PollEvents::RDHUP;
        }
        if file.flags().writable() {
            wanted |= PollEvents::WRITABLE;
        }
        let now = match host::poll_now(&self.handle, wanted.bits()) {
            Ok(now) => PollEvents::from_bits_truncate(now),
            Err(_) => wanted,
        };
        let missing = (wanted - now) | tried;
        if !missing.is_empty() && !self.queue.is_empty() {
            // Files that are always ready refuse; there is nothing to wait for then.
            let _ = host::poll_arm(&self.handle, missing.bits(), self.token);
        }
        now
    }

    /// One attempt; an event that made it fail is asked for again, since the host tells only once.
    fn attempt(
        &self,
        file: &File,
        events: PollEvents,
        call: impl FnOnce(u64) -> Result<usize>,
    ) -> Result<usize> {
        let chosen = *self.position.lock();
        let result = call(chosen.unwrap_or(STREAM));
        match (&result, chosen) {
            (Ok(moved), Some(from)) => *self.position.lock() = Some(from + *moved as u64),
            (Ok(moved), None) if self.is_file() => *file.pos.lock() += *moved as u64,
            (Err(Errno::EAGAIN), _) if !self.queue.is_empty() => {
                let _ = self.ready_besides(file, events);
            }
            _ => {}
        }
        result
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        host_poll::unregister(self.token);
    }
}

impl FileOps for HostStream {
    fn is_from_outside(&self) -> bool {
        true
    }

    fn read(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        match at {
            At::Offset(offset) => file::read(&self.handle, offset, buf),
            _ => self.attempt(file, PollEvents::READABLE, |offset| file::read(&self.handle, offset, buf)),
        }
    }

    fn write(&self, file: &File, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        match at {
            At::Offset(offset) => file::write(&self.handle, offset, buf),
            _ => self.attempt(file, PollEvents::WRITABLE, |offset| file::write(&self.handle, offset, buf)),
        }
    }

    fn poll(&self, file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if self.is_file() {
            return PollEvents::READABLE | PollEvents::WRITABLE;
        }
        if let Some(table) = table {
            table.add(&self.queue);
        }
        self.ready(file)
    }

    fn seek(&self, file: &File, offset: i64, whence: Whence) -> Result<u64> {
        if !self.is_file() {
            return Err(Errno::ESPIPE);
        }
        if let Some(position) = *self.position.lock() {
            *file.pos.lock() = position;
        }
        let to = seek_in_file(file, offset, whence, || self.stat(file).map(|stat| stat.size))?;
        // A seek by 0 from the current position only asks for the position.
        if whence != Whence::Current || offset != 0 {
            *self.position.lock() = Some(to);
        }
        Ok(to)
    }

    fn is_seekable(&self) -> bool {
        self.is_file()
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        host::stat_handle(&self.handle).map(|stat| hostfs::to_stat(&stat))
    }

    fn truncate(&self, _file: &File, size: u64) -> Result<()> {
        if !self.is_file() {
            return Err(Errno::EINVAL);
        }
        let set = abi::hostcall::SetAttr { valid: abi::hostcall::SET_SIZE, size, ..Default::default() };
        host::set_attr(&self.handle, b"", &set)
    }

    fn sync(&self, _file: &File, data_only: bool) -> Result<()> {
        if self.is_file() { file::sync(&self.handle, data_only) } else { Err(Errno::EINVAL) }
    }

    fn describe(&self) -> Vec<u8> {
        let kind = match self.kind {
            S_IFIFO => "pipe",
            S_IFSOCK => "socket",
            S_IFREG => "file",
            _ => "stream",
        };
        alloc::format!("{kind}:[{}]", self.ino).into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The open file of a stream given as descriptor `fd`; `known` has the ways that it is open, if the VMM says them.
pub fn open(handle: Arc<Handle>, fd: u32, known: u32) -> Result<Arc<File>> {
    let stream = HostStream::new(handle)?;
    let flags = match (known & STREAM_READABLE != 0, known & STREAM_WRITABLE != 0) {
        (true, true) => OpenFlags::RDWR,
        (false, true) => OpenFlags::WRONLY,
        (true, false) => OpenFlags::empty(),
        // Terminals and devices are open both ways wherever they come from.
        _ if stream.kind == crate::fs::inode::S_IFCHR => OpenFlags::RDWR,
        // The host refuses the other way itself; the stream's purpose is a good guess.
        _ => match fd {
            0 => OpenFlags::empty(),
            1 | 2 => OpenFlags::WRONLY,
            _ => OpenFlags::RDWR,
        },
    };
    Ok(File::new(alloc::boxed::Box::new(stream), flags, None))
}
