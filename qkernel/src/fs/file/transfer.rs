//! Reads and writes of an open file, which wait where the file would have to.

use crate::fs::block::block_on;
use crate::fs::notify::Mask;
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;

use super::{At, File, OpenFlags};

impl File {
    /// Tries `attempt` until it isn't `EAGAIN`, sleeping while `events` don't hold; at once when the file is
    /// non-blocking. Interrupted by signals with `Errno::RESTART`.
    pub fn blocking<R>(&self, events: PollEvents, attempt: impl FnMut() -> Result<R>) -> Result<R> {
        let deadline = self.ops.deadline_ns(events);
        let result = block_on(self, events, self.is_nonblocking(), deadline, attempt);
        if deadline.is_some() && matches!(result, Err(Errno::RESTART)) {
            // A call that is restarted would begin its time-out anew.
            return Err(Errno::EINTR);
        }
        result
    }

    /// Reads, waiting for data unless the file is non-blocking.
    pub fn read(&self, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        self.check_at(at)?;
        if !self.flags().readable() {
            return Err(Errno::EBADF);
        }
        let moved = self.blocking(PollEvents::READABLE, || self.ops.read(self, buf, at))?;
        if moved > 0 {
            self.accessed();
        }
        Ok(moved)
    }

    /// Writes everything, waiting for room unless the file is non-blocking; a partial count when it can't go on.
    pub fn write(&self, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        self.check_at(at)?;
        if !self.flags().writable() {
            return Err(Errno::EBADF);
        }
        let moved = self.write_all(buf, at)?;
        if moved > 0 {
            self.notify(Mask::MODIFY);
        }
        Ok(moved)
    }

    fn write_all(&self, buf: &mut IoBuf<'_>, at: At) -> Result<usize> {
        let mut done = 0usize;
        loop {
            let at = match at {
                At::Offset(offset) => At::Offset(offset + done as u64),
                at => at,
            };
            match self.blocking(PollEvents::WRITABLE, || self.ops.write(self, buf, at)) {
                Ok(moved) => done += moved,
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
            if buf.is_empty() || self.ops.is_seekable() || self.is_nonblocking() {
                return Ok(done);
            }
        }
    }

    /// Writes as much as there is room for, after waiting for some unless the file is non-blocking.
    pub fn write_some(&self, buf: &mut IoBuf<'_>) -> Result<usize> {
        if !self.flags().writable() {
            return Err(Errno::EBADF);
        }
        self.blocking(PollEvents::WRITABLE, || self.ops.write(self, buf, At::Position))
    }

    fn check_at(&self, at: At) -> Result<()> {
        if self.flags().contains(OpenFlags::PATH) {
            return Err(Errno::EBADF);
        }
        if !at.moves() && !self.ops.is_seekable() { Err(Errno::ESPIPE) } else { Ok(()) }
    }

    /// Reads at an offset into kernel memory, for the kernel's own use (`execve`).
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let moved = self.ops.read(self, &mut IoBuf::kernel(to), At::Offset(offset))?;
        if moved > 0 {
            self.accessed();
        }
        Ok(moved)
    }
}
