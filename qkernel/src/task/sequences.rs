//! The kernel's work for restartable sequences before user code runs (`rseq(2)`; [`super::rseq`]).

use alloc::sync::Arc;

use crate::signals::{SIGSEGV, Source};
use crate::task::core::Task;
use crate::task::oom;
use crate::task::rseq::NO_CPU;
use crate::task::signal::fault::force;
use crate::task::signal::info::SigInfo;
use abi::layout::USER_MAX;
use machine::errno::{Errno, Result};
use machine::mm::{UserAddr, UserMemory};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Flags that were to keep a sequence from being restarted, and are refused.
const NO_RESTART: u32 = 7;
/// Offsets in `struct rseq`.
const CPU_OFFSET: u64 = 0;
const SEQUENCE_OFFSET: u64 = 8;
const FLAGS_OFFSET: u64 = 16;
const NODE_OFFSET: u64 = 20;

/// `struct rseq_cs`: a stretch of code.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
struct Sequence {
    version: u32,
    flags: u32,
    start: u64,
    len: u64,
    abort: u64,
}
const _: () = assert!(size_of::<Sequence>() == 32);

impl Sequence {
    /// `EINVAL`: no sequence that may be.
    fn check(&self) -> Result<()> {
        let end = self.start.checked_add(self.len).ok_or(Errno::EINVAL)?;
        let is_inside = [self.start, end, self.abort].iter().all(|addr| *addr < USER_MAX);
        if !is_inside || self.version != 0 || self.abort < 4 || self.covers(self.abort) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    fn covers(&self, rip: u64) -> bool {
        rip.wrapping_sub(self.start) < self.len
    }
}

/// Whether [`refresh`] is to be called before the current thread runs user code. `is_fresh`: that was done since it last did. Who has
/// only lost the CPU once more, perhaps while it was refreshed, and is back on the one that it was told of, goes on: else threads that
/// contend for the lock of their memory could keep each other from user code.
pub fn are_stale(task: &Task, is_fresh: bool) -> bool {
    if !task.rseq.is_stale() {
        return false;
    }
    let is_done = is_fresh && task.rseq.told() == this_cpu();
    if is_done {
        task.rseq.set_stale(false);
    }
    !is_done
}

fn this_cpu() -> u32 {
    u32::try_from(machine::arch::cpu_index()).unwrap_or(0)
}

/// Brings the current thread's word up to date, and ends the sequence that it was in, unless it is `in_call`: sequences make
/// no system calls. Memory that cannot be used is a `SIGSEGV`. It may sleep, and lose the CPU: whoever goes to user code asks
/// again. False: nothing came of it.
pub fn refresh(task: &Arc<Task>, in_call: bool) -> bool {
    task.rseq.set_stale(false);
    let ended = if in_call { Ok(()) } else { end_sequence(task) };
    if let Err(error) = ended.and_then(|()| tell(task)) {
        if error == Errno::ENOMEM {
            // Its memory is there, and only cannot be had now: the fault of a touch deals with that.
            task.rseq.set_stale(true);
            oom::relieve(task);
        } else {
            force(task, SigInfo { signal: SIGSEGV, source: Source::Kernel });
        }
        return false;
    }
    true
}

/// A signal's handler is about to run: a sequence that the thread is in ends first. An error if its memory cannot be used.
pub fn before_handler(task: &Arc<Task>) -> Result<()> {
    if task.rseq.registered().is_some() { end_sequence(task) } else { Ok(()) }
}

/// Tells the thread its CPU, which is also its number among the threads that run (`mm_cid`): no two threads have one CPU.
fn tell(task: &Task) -> Result<()> {
    let Some((addr, ..)) = task.rseq.registered() else { return Ok(()) };
    let user = UserMemory::new(task.aspace().ok_or(Errno::EFAULT)?);
    // If the copies make it lose the CPU it is told once more.
    let cpu = this_cpu();
    if task.rseq.told() == cpu {
        return Ok(());
    }
    write_cpu(&user, addr, [cpu, cpu], cpu)?;
    task.rseq.set_told(cpu);
    Ok(())
}

fn write_cpu(user: &UserMemory, addr: u64, ids: [u32; 2], mm_cid: u32) -> Result<()> {
    user.write(UserAddr::new(addr + CPU_OFFSET), &ids)?;
    user.write(UserAddr::new(addr + NODE_OFFSET), &[0, mm_cid])
}

/// The word of a thread that has none any more. `EFAULT`.
pub fn reset(user: &UserMemory, addr: u64) -> Result<()> {
    write_cpu(user, addr, [0, NO_CPU], 0)
}

/// If the thread is in a sequence it goes on at the abort handler; the word names no sequence any more.
fn end_sequence(task: &Task) -> Result<()> {
    let Some((addr, _, signature)) = task.rseq.registered() else { return Ok(()) };
    let user = UserMemory::new(task.aspace().ok_or(Errno::EFAULT)?);
    let pointer: u64 = user.read(UserAddr::new(addr + SEQUENCE_OFFSET))?;
    if pointer == 0 {
        return Ok(());
    }
    if pointer >= USER_MAX {
        return Err(Errno::EINVAL);
    }
    let sequence: Sequence = user.read(UserAddr::new(pointer))?;
    sequence.check()?;
    let before_abort: u32 = user.read(UserAddr::new(sequence.abort - 4))?;
    if before_abort != signature {
        return Err(Errno::EINVAL);
    }
    let is_inside = sequence.covers(task.context().run.regs.rip);
    if is_inside {
        let flags: u32 = user.read(UserAddr::new(addr + FLAGS_OFFSET))?;
        if (flags | sequence.flags) & NO_RESTART != 0 {
            return Err(Errno::EINVAL);
        }
    }
    user.write(UserAddr::new(addr + SEQUENCE_OFFSET), &0u64)?;
    if is_inside {
        task.context().run.regs.rip = sequence.abort;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_lie_in_user_memory_and_end_elsewhere() {
        let good = Sequence { version: 0, flags: 0, start: 0x1000, len: 0x10, abort: 0x2000 };
        assert_eq!(good.check(), Ok(()));
        assert!(good.covers(0x1000) && good.covers(0x100f) && !good.covers(0x1010) && !good.covers(0xfff));
        for bad in [
            Sequence { version: 1, ..good },
            Sequence { start: USER_MAX, ..good },
            Sequence { len: u64::MAX, ..good },
            Sequence { len: USER_MAX, ..good },
            Sequence { abort: USER_MAX, ..good },
            Sequence { abort: 0x1000, ..good },
            Sequence { abort: 3, ..good },
        ] {
            assert_eq!(bad.check(), Err(Errno::EINVAL), "{bad:?}");
        }
    }
}
