//! The operations of one call on a set of semaphores: all of them are done, or none (`semop(2)`).

use alloc::vec::Vec;

use crate::fs::caller::PidOf;
use crate::ipc::perm::IPC_NOWAIT;
use machine::errno::{Errno, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `SEM_UNDO`.
const SEM_UNDO: u16 = 0x1000;
/// Largest value of a semaphore, and of an adjustment.
pub const SEMVMX: i32 = 32_767;
const SEMAEM: i32 = SEMVMX;

/// `struct sembuf`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
pub struct SemOp {
    pub number: u16,
    pub change: i16,
    pub flags: u16,
}

impl SemOp {
    /// Whether it is undone when the process ends.
    pub fn is_undone(&self) -> bool {
        self.flags & SEM_UNDO != 0
    }
}

/// One semaphore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Semaphore {
    pub value: u16,
    /// Who changed it last.
    pub pid: PidOf,
}

/// The outcome of an attempt to do a call's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    Done,
    /// It has to wait, because of the operation at this position.
    Blocked(usize),
}

/// The value that a semaphore must have before an operation on it can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    number: u16,
    value: Wanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Exactly(i32),
    AtLeast(i32),
}

impl Need {
    /// Returns the need of the operation at `at`, counting in what those before it do to the same semaphore.
    pub fn of(ops: &[SemOp], at: usize) -> Self {
        let (number, change) = ops.get(at).map_or((0, 0), |op| (op.number, i32::from(op.change)));
        let earlier: i32 =
            ops.iter().take(at).filter(|op| op.number == number).map(|op| i32::from(op.change)).sum();
        let value = match change {
            0 => Wanted::Exactly(-earlier),
            _ => Wanted::AtLeast(-earlier - change),
        };
        Self { number, value }
    }

    /// Whether it is that now.
    pub fn is_met(self, semaphores: &[Semaphore]) -> bool {
        let value =
            semaphores.get(usize::from(self.number)).map_or(0, |semaphore| i32::from(semaphore.value));
        match self.value {
            Wanted::Exactly(wanted) => value == wanted,
            Wanted::AtLeast(least) => value >= least,
        }
    }
}

/// Tries the operations in their order, for `pid`. `undo`: the process's adjustments, one a semaphore, if any operation is
/// undone. Each number is one of the set. `ERANGE`: a value or an adjustment would be too large. `EAGAIN`: it would have
/// to wait, and is not to.
pub fn attempt(
    semaphores: &mut [Semaphore],
    mut undo: Option<&mut [i16]>,
    ops: &[SemOp],
    pid: PidOf,
) -> Result<Attempt> {
    for (at, op) in ops.iter().enumerate() {
        let result = step(semaphores, undo.as_deref_mut(), op);
        if result == Ok(true) {
            continue;
        }
        for op in ops[..at].iter().rev() {
            take_back(semaphores, undo.as_deref_mut(), op);
        }
        result?;
        let gives_up = u32::from(op.flags) & IPC_NOWAIT != 0;
        return if gives_up { Err(Errno::EAGAIN) } else { Ok(Attempt::Blocked(at)) };
    }
    for op in ops {
        if let Some(semaphore) = semaphores.get_mut(usize::from(op.number)) {
            semaphore.pid = pid;
        }
    }
    Ok(Attempt::Done)
}

/// One operation; false: it has to wait.
fn step(semaphores: &mut [Semaphore], undo: Option<&mut [i16]>, op: &SemOp) -> Result<bool> {
    let number = usize::from(op.number);
    let semaphore = semaphores.get_mut(number).ok_or(Errno::EFBIG)?;
    let value = i32::from(semaphore.value);
    if op.change == 0 {
        return Ok(value == 0);
    }
    let new = value + i32::from(op.change);
    if new < 0 {
        return Ok(false);
    }
    let new = u16::try_from(new).ok().filter(|_| new <= SEMVMX).ok_or(Errno::ERANGE)?;
    if let Some(adjustment) = undo.and_then(|undo| undo.get_mut(number)).filter(|_| op.is_undone()) {
        let adjusted = i32::from(*adjustment) - i32::from(op.change);
        if !(-SEMAEM - 1..=SEMAEM).contains(&adjusted) {
            return Err(Errno::ERANGE);
        }
        *adjustment = i16::try_from(adjusted).map_err(|_| Errno::ERANGE)?;
    }
    semaphore.value = new;
    Ok(true)
}

fn take_back(semaphores: &mut [Semaphore], undo: Option<&mut [i16]>, op: &SemOp) {
    let number = usize::from(op.number);
    if let Some(semaphore) = semaphores.get_mut(number) {
        semaphore.value = semaphore.value.wrapping_sub(op.change.cast_unsigned());
    }
    if let Some(adjustment) = undo.and_then(|undo| undo.get_mut(number)).filter(|_| op.is_undone()) {
        *adjustment = adjustment.wrapping_add(op.change);
    }
}

/// Applies a process's adjustments when it ends; values stay in their range.
pub fn adjust(semaphores: &mut [Semaphore], undo: &[i16], pid: PidOf) {
    for (semaphore, adjustment) in semaphores.iter_mut().zip(undo).filter(|(_, undo)| **undo != 0) {
        let value = (i32::from(semaphore.value) + i32::from(*adjustment)).clamp(0, SEMVMX);
        semaphore.value = u16::try_from(value).unwrap_or(0);
        semaphore.pid = pid;
    }
}

/// The values, as `GETALL` hands them out.
pub fn values(semaphores: &[Semaphore]) -> Vec<u16> {
    semaphores.iter().map(|semaphore| semaphore.value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const NO_WAIT: u16 = 0o4000;

    fn op(number: u16, change: i16, flags: u16) -> SemOp {
        SemOp { number, change, flags }
    }

    fn set(values: &[u16]) -> Vec<Semaphore> {
        values.iter().map(|value| Semaphore { value: *value, ..Semaphore::default() }).collect()
    }

    fn tried(set: &mut [Semaphore], undo: Option<&mut [i16]>, ops: &[SemOp]) -> (Result<Attempt>, Vec<u16>) {
        let result = attempt(set, undo, ops, PidOf::default());
        (result, values(set))
    }

    #[test]
    fn all_operations_or_none() {
        let mut one = set(&[1, 0, 5]);
        let ops = [op(0, -1, 0), op(2, 3, 0), op(1, -1, 0)];
        assert_eq!(tried(&mut one, None, &ops), (Ok(Attempt::Blocked(2)), vec![1, 0, 5]));
        assert_eq!(tried(&mut one, None, &[op(1, 1, 0)]), (Ok(Attempt::Done), vec![1, 1, 5]));
        assert_eq!(tried(&mut one, None, &ops), (Ok(Attempt::Done), vec![0, 0, 8]));
        // An operation sees what those before it did.
        assert_eq!(tried(&mut one, None, &[op(2, -8, 0), op(2, 0, 0)]), (Ok(Attempt::Done), vec![0, 0, 0]));
        let ops = [op(0, 1, 0), op(0, 0, NO_WAIT)];
        assert_eq!(tried(&mut one, None, &ops), (Err(Errno::EAGAIN), vec![0, 0, 0]));
        assert_eq!(tried(&mut one, None, &[op(3, 1, 0)]).0, Err(Errno::EFBIG));
    }

    #[test]
    fn a_need_counts_what_the_call_does_before() {
        let ops = [op(1, 2, 0), op(0, -1, 0), op(1, -5, 0), op(1, -1, 0), op(1, 0, 0)];
        let need = Need::of(&ops, 2);
        assert!(!need.is_met(&set(&[9, 2])) && need.is_met(&set(&[0, 3])));
        let zero = Need::of(&ops, 4);
        assert!(zero.is_met(&set(&[0, 4])) && !zero.is_met(&set(&[0, 5])));
        for value in 0..9 {
            let mut one = set(&[1, value]);
            let blocked = attempt(&mut one, None, &ops[..3], PidOf::default()) == Ok(Attempt::Blocked(2));
            assert_eq!(need.is_met(&set(&[1, value])), !blocked, "{value}");
        }
    }

    #[test]
    fn values_and_adjustments_have_a_range() {
        let mut one = set(&[32_767, 0]);
        assert_eq!(tried(&mut one, None, &[op(1, 1, 0), op(0, 1, 0)]), (Err(Errno::ERANGE), vec![32_767, 0]));
        let mut undo = [0i16, -32_768];
        let ops = [op(0, -7, SEM_UNDO), op(1, 1, SEM_UNDO)];
        assert_eq!(tried(&mut one, Some(&mut undo), &ops), (Err(Errno::ERANGE), vec![32_767, 0]));
        assert_eq!(undo, [0, -32_768]);
        assert_eq!(tried(&mut one, Some(&mut undo), &ops[..1]).0, Ok(Attempt::Done));
        assert_eq!(undo, [7, -32_768]);
    }

    #[test]
    fn the_end_of_a_process_takes_back_what_it_did() {
        let mut one = set(&[3, 1, 32_000]);
        adjust(&mut one, &[-5, 0, 2000], PidOf::default());
        assert_eq!(values(&one), [0, 1, 32_767]);
    }
}
