//! `/dev/sysgenid`: a number that is one more in a clone of a sandbox, so that programs find out that they go on somewhere else.

use alloc::sync::Arc;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fs::file::{At, File, FileOps};
use crate::fs::inode::{S_IFCHR, Stat};
use crate::fs::poll::PollTable;
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sched::wait::{PollEvents, WaitQueue};
use machine::sync::Once;

/// How often the sandbox has begun with a snapshot.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static WAITERS: Once<Arc<WaitQueue>> = Once::new();

fn waiters() -> &'static Arc<WaitQueue> {
    WAITERS.call_once(|| Arc::new(WaitQueue::new()))
}

/// The sandbox begins with a snapshot.
pub fn advance() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
    waiters().wake(PollEvents::READABLE);
}

/// The device, opened.
pub struct Generation {
    rdev: u64,
    /// The number that its reader knows, at first that of its opening.
    known: AtomicU32,
}

impl Generation {
    pub fn open(rdev: u64) -> Self {
        Self { rdev, known: AtomicU32::new(GENERATION.load(Ordering::SeqCst)) }
    }
}

impl FileOps for Generation {
    /// The number, of 4 bytes.
    fn read(&self, _file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        let now = GENERATION.load(Ordering::SeqCst);
        if buf.remaining() < size_of::<u32>() {
            return Err(Errno::EINVAL);
        }
        buf.fill(&now.to_ne_bytes())?;
        self.known.store(now, Ordering::SeqCst);
        Ok(size_of::<u32>())
    }

    /// Readable once the number is another than the reader knows.
    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if let Some(table) = table {
            table.add(waiters());
        }
        let is_known = self.known.load(Ordering::SeqCst) == GENERATION.load(Ordering::SeqCst);
        if is_known { PollEvents::empty() } else { PollEvents::READABLE }
    }

    fn stat(&self, file: &File) -> Result<Stat> {
        match &file.path {
            Some(path) => path.inode.stat(),
            None => Ok(Stat { mode: S_IFCHR | 0o444, nlink: 1, rdev: self.rdev, ..Default::default() }),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;
    use crate::fs::file::OpenFlags;

    #[test]
    fn a_reader_is_told_of_another_number() {
        let file = File::new(Box::new(Generation::open(0)), OpenFlags::empty(), None);
        let read = || {
            let mut bytes = [0; 4];
            let got = file.ops.read(&file, &mut IoBuf::kernel(&mut bytes), At::Position);
            got.map(|_| u32::from_ne_bytes(bytes))
        };
        let first = read().unwrap();
        assert_eq!(file.ops.poll(&file, None), PollEvents::empty());
        advance();
        assert_eq!(file.ops.poll(&file, None), PollEvents::READABLE);
        assert_eq!((read(), file.ops.poll(&file, None)), (Ok(first + 1), PollEvents::empty()));
        assert_eq!(file.ops.read(&file, &mut IoBuf::kernel(&mut [0; 3]), At::Position), Err(Errno::EINVAL));
    }
}
