//! `eventfd(2)`: a counter that can be polled.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::fs::anon;
use crate::fs::file::{At, File, FileOps, OpenFlags, Whence};
use crate::fs::inode::Stat;
use crate::fs::poll::PollTable;
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};

/// Largest value the counter takes.
const MAX: u64 = u64::MAX - 1;

/// The counter.
pub struct EventFile {
    count: SpinLock<u64>,
    semaphore: bool,
    /// Its number among all.
    id: u64,
    queue: Arc<WaitQueue>,
    ino: u64,
}

impl EventFile {
    /// A counter that starts at `initial`; with `semaphore` each read takes one.
    pub fn open(initial: u64, semaphore: bool, flags: OpenFlags) -> Result<Arc<File>> {
        anon::check_room()?;
        let ops = Self::new(initial, semaphore);
        Ok(File::new(Box::new(ops), flags | OpenFlags::RDWR, None))
    }

    fn new(initial: u64, semaphore: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let queue = Arc::new(WaitQueue::new());
        let ino = anon::next_ino();
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { count: SpinLock::new(Rank::Leaf, initial), semaphore, id, queue, ino }
    }

    /// Takes the counter's value (or one of it); `EAGAIN` at zero.
    fn take(&self) -> Result<u64> {
        let mut count = self.count.lock();
        if *count == 0 {
            return Err(Errno::EAGAIN);
        }
        let value = if self.semaphore { 1 } else { *count };
        *count -= value;
        drop(count);
        self.queue.wake(PollEvents::WRITABLE);
        Ok(value)
    }

    /// Adds to the counter; `EAGAIN` while it would pass its maximum.
    fn add(&self, value: u64) -> Result<()> {
        if value == u64::MAX {
            return Err(Errno::EINVAL);
        }
        let mut count = self.count.lock();
        if value > MAX - *count {
            return Err(Errno::EAGAIN);
        }
        *count += value;
        drop(count);
        self.queue.wake(PollEvents::READABLE);
        Ok(())
    }
}

impl FileOps for EventFile {
    fn can_be_spliced(&self) -> bool {
        false
    }

    fn read(&self, _file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        if buf.remaining() < 8 {
            return Err(Errno::EINVAL);
        }
        let value = self.take()?;
        buf.fill(&value.to_ne_bytes())?;
        Ok(8)
    }

    fn write(&self, _file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        if buf.remaining() < 8 {
            return Err(Errno::EINVAL);
        }
        let start = buf.mark();
        let mut bytes = [0u8; 8];
        buf.drain(&mut bytes)?;
        if let Err(error) = self.add(u64::from_ne_bytes(bytes)) {
            buf.rewind(start);
            return Err(error);
        }
        // Bytes of the buffer after the first eight are ignored.
        buf.truncate(0);
        Ok(8)
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if let Some(table) = table {
            table.add(&self.queue);
        }
        let count = *self.count.lock();
        let mut events = PollEvents::empty();
        // In one spelling alone, as on Linux.
        events.set(PollEvents::IN, count > 0);
        events.set(PollEvents::OUT, count < MAX);
        events
    }

    fn seek(&self, _file: &File, _offset: i64, _whence: Whence) -> Result<u64> {
        anon::seek()
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        Ok(anon::stat(0o600, self.ino, (0, 0)))
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[eventfd]".to_vec()
    }

    fn fdinfo(&self) -> Vec<u8> {
        let Self { id, semaphore, .. } = self;
        let (count, semaphore) = (*self.count.lock(), u32::from(*semaphore));
        format!("eventfd-count: {count:16x}\neventfd-id: {id}\neventfd-semaphore: {semaphore}\n").into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_refuses_to_overflow() {
        let event = EventFile::new(3, false);
        assert_eq!(event.take(), Ok(3));
        assert_eq!(event.take(), Err(Errno::EAGAIN));
        assert_eq!(event.add(u64::MAX), Err(Errno::EINVAL));
        assert_eq!(event.add(MAX), Ok(()));
        assert_eq!(event.add(1), Err(Errno::EAGAIN));
        assert_eq!(event.add(0), Ok(()));
        assert_eq!(event.take(), Ok(MAX));
    }

    #[test]
    fn a_semaphore_gives_one_at_a_time() {
        let event = EventFile::new(2, true);
        assert_eq!((event.take(), event.take(), event.take()), (Ok(1), Ok(1), Err(Errno::EAGAIN)));
    }
}
