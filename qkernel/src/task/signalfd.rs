//! `signalfd(2)`: takes signals by reading.

use crate::task::signal::send::pending_set;
use crate::task::signal::take::take_pending;
use abi::word::low32;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::fs::anon;
use crate::fs::file::{At, File, FileOps, OpenFlags, Whence};
use crate::fs::inode::Stat;
use crate::fs::poll::PollTable;
use crate::signals::{SIGKILL, SIGSTOP, Source};
use crate::task;
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sched::wait::PollEvents;
use machine::sync::{Rank, SpinLock};
use machine::time;

/// Bytes of a `struct signalfd_siginfo`.
const INFO_BYTES: usize = 128;
/// Nanoseconds of a tick of `ssi_utime`.
const CLOCK_TICK_NS: u64 = 10_000_000;

/// The descriptor: which signals it takes. Whose is decided by who reads.
pub struct SignalFile {
    mask: SpinLock<u64>,
    ino: u64,
}

/// The signals of a user's set that can be received.
fn allowed(mask: u64) -> u64 {
    mask & !(1 << (SIGKILL - 1) | 1 << (SIGSTOP - 1))
}

impl SignalFile {
    /// A descriptor for the signals of `mask` (bit 0 is signal 1).
    pub fn open(mask: u64, flags: OpenFlags) -> Result<Arc<File>> {
        anon::check_room()?;
        let ops = Self { mask: SpinLock::new(Rank::Leaf, allowed(mask)), ino: anon::next_ino() };
        Ok(File::new(Box::new(ops), flags | OpenFlags::RDWR, None))
    }

    /// Replaces the set.
    pub fn set_mask(&self, mask: u64) {
        *self.mask.lock() = allowed(mask);
    }
}

/// `struct signalfd_siginfo`.
fn encode(signal: u32, source: Source) -> [u8; INFO_BYTES] {
    let mut info = [0u8; INFO_BYTES];
    let mut put = |at: usize, bytes: &[u8]| info[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &signal.to_ne_bytes());
    let code: i32 = match source {
        Source::Kernel => 0x80,
        Source::User { .. } => 0,
        Source::Thread { .. } => -6,
        Source::Timer { .. } => -2,
        Source::Syscall { .. } => 1,
        Source::Queue { code, .. }
        | Source::Child { code, .. }
        | Source::Fault { code, .. }
        | Source::Poll { code, .. } => code,
    };
    put(8, &code.to_ne_bytes());
    match source {
        Source::Kernel => {}
        Source::User { pid, uid } | Source::Thread { pid, uid } => {
            put(12, &pid.to_ne_bytes());
            put(16, &uid.to_ne_bytes());
        }
        Source::Queue { errno, pid, uid, value, .. } => {
            put(4, &errno.to_ne_bytes());
            put(12, &pid.to_ne_bytes());
            put(16, &uid.to_ne_bytes());
            put(44, &low32(value).to_ne_bytes());
            put(48, &value.to_ne_bytes());
        }
        Source::Timer { id, overrun, value } => {
            put(24, &id.to_ne_bytes());
            put(32, &overrun.to_ne_bytes());
            put(44, &low32(value).to_ne_bytes());
            put(48, &value.to_ne_bytes());
        }
        Source::Child { pid, uid, status, user_ticks, system_ticks, .. } => {
            put(12, &pid.to_ne_bytes());
            put(16, &uid.to_ne_bytes());
            put(40, &status.to_ne_bytes());
            put(56, &(time::ticks_to_ns(user_ticks) / CLOCK_TICK_NS).to_ne_bytes());
            put(64, &(time::ticks_to_ns(system_ticks) / CLOCK_TICK_NS).to_ne_bytes());
        }
        Source::Fault { addr, .. } => put(72, &addr.to_ne_bytes()),
        Source::Poll { band, fd, .. } => {
            put(20, &fd.to_ne_bytes());
            put(28, &low32(band.cast_unsigned()).to_ne_bytes());
        }
        Source::Syscall { addr, number, errno } => {
            put(4, &errno.to_ne_bytes());
            put(84, &number.to_ne_bytes());
            put(88, &addr.to_ne_bytes());
        }
    }
    info
}

impl FileOps for SignalFile {
    fn can_be_spliced(&self) -> bool {
        false
    }

    fn read(&self, _file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        if buf.remaining() < INFO_BYTES {
            return Err(Errno::EINVAL);
        }
        let task = task::current();
        let mask = *self.mask.lock();
        let mut done = 0;
        while buf.remaining() >= INFO_BYTES {
            let Some(info) = take_pending(&task, mask) else { break };
            match buf.fill(&encode(info.signal, info.source)) {
                Ok(()) => done += INFO_BYTES,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if done == 0 { Err(Errno::EAGAIN) } else { Ok(done) }
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        let task = task::current();
        if let Some(table) = table {
            table.add(&task.process.signal_watch);
        }
        if pending_set(&task) & *self.mask.lock() != 0 { PollEvents::IN } else { PollEvents::empty() }
    }

    fn seek(&self, _file: &File, _offset: i64, _whence: Whence) -> Result<u64> {
        anon::seek()
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        Ok(anon::stat(0o600, self.ino, (0, 0)))
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[signalfd]".to_vec()
    }

    fn fdinfo(&self) -> Vec<u8> {
        format!("sigmask:\t{:016x}\n", *self.mask.lock()).into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_value_is_where_programs_look() {
        let info = encode(10, Source::Queue { code: -1, errno: 0, pid: 7, uid: 8, value: 12 });
        assert_eq!((info[0], info[8], info[12], info[16], info[44], info[48]), (10, 0xff, 7, 8, 12, 12));
    }
}
