//! `futex(2)`.

use abi::word::low32;

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::futex;
use crate::task::futex::{MATCH_ANY, Wait, WakeOp};
use crate::task::signal::state::Restart;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::time;

const FUTEX_WAIT: u32 = 0;
const FUTEX_WAKE: u32 = 1;
const FUTEX_REQUEUE: u32 = 3;
const FUTEX_CMP_REQUEUE: u32 = 4;
const FUTEX_WAKE_OP: u32 = 5;
const FUTEX_LOCK_PI: u32 = 6;
const FUTEX_UNLOCK_PI: u32 = 7;
const FUTEX_TRYLOCK_PI: u32 = 8;
const FUTEX_WAIT_BITSET: u32 = 9;
const FUTEX_WAKE_BITSET: u32 = 10;
const FUTEX_WAIT_REQUEUE_PI: u32 = 11;
const FUTEX_CMP_REQUEUE_PI: u32 = 12;
const FUTEX_LOCK_PI2: u32 = 13;
const FUTEX_PRIVATE_FLAG: u32 = 128;
const FUTEX_CLOCK_REALTIME: u32 = 256;

/// `futex(2)`.
pub(super) fn futex(
    cx: &Ctx<'_>,
    addr: UserAddr,
    op: u32,
    value: u32,
    timeout: u64,
    second: UserAddr,
    third: u32,
) -> SyscallResult {
    let private = op & FUTEX_PRIVATE_FLAG != 0;
    let realtime = op & FUTEX_CLOCK_REALTIME != 0;
    let command = op & !(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
    if realtime && !matches!(command, FUTEX_WAIT_BITSET | FUTEX_WAIT_REQUEUE_PI | FUTEX_LOCK_PI2) {
        return Err(Errno::ENOSYS);
    }
    let user = cx.user();
    let words = (addr, second);
    // The fourth argument is a number for some commands; for the others it is where their timeout lies.
    let limit = UserAddr::new(timeout);
    let counts = || -> Result<(usize, usize)> { Ok((count(value)?, count(low32(timeout))?)) };
    let done = match command {
        FUTEX_WAIT => {
            let deadline = deadline(cx, limit, false, realtime)?;
            return wait(cx, Wait { addr, private, value, bitset: MATCH_ANY, deadline_ns: deadline });
        }
        FUTEX_WAIT_BITSET => {
            let deadline = deadline(cx, limit, true, realtime)?;
            return wait(cx, Wait { addr, private, value, bitset: third, deadline_ns: deadline });
        }
        FUTEX_WAKE => futex::wake(user, addr, private, wake_count(value), MATCH_ANY)?,
        FUTEX_WAKE_BITSET => futex::wake(user, addr, private, wake_count(value), third)?,
        FUTEX_REQUEUE => futex::requeue(user, words, private, counts()?, None)?,
        FUTEX_CMP_REQUEUE => futex::requeue(user, words, private, counts()?, Some(third))?,
        FUTEX_CMP_REQUEUE_PI => {
            let (wake_count, move_count) = counts()?;
            if addr == second || wake_count != 1 {
                return Err(Errno::EINVAL);
            }
            futex::cmp_requeue_pi(user, words, private, move_count, third)?
        }
        FUTEX_WAIT_REQUEUE_PI => {
            let deadline_ns = deadline(cx, limit, true, realtime)?;
            if addr == second {
                return Err(Errno::EINVAL);
            }
            let wait = Wait { addr, private, value, bitset: MATCH_ANY, deadline_ns };
            futex::wait_requeue_pi(cx.task, user, &wait, second)?;
            0
        }
        FUTEX_WAKE_OP => {
            let counts = (wake_count(value), wake_count(low32(timeout)));
            futex::wake_op(user, words, private, counts, WakeOp::decode(third)?)?
        }
        _ => {
            inherit_priority(cx, addr, private, command, |is_realtime| {
                deadline(cx, limit, true, realtime || is_realtime)
            })?;
            0
        }
    };
    Ok(done as u64)
}

/// The commands on a lock whose holder has the priority of those that wait; `deadline` reads their timeout, which for the older
/// command is by the real-time clock in any case.
fn inherit_priority(
    cx: &Ctx<'_>,
    addr: UserAddr,
    private: bool,
    command: u32,
    deadline: impl FnOnce(bool) -> Result<Option<u64>>,
) -> Result<()> {
    let user = cx.user();
    match command {
        FUTEX_LOCK_PI | FUTEX_LOCK_PI2 => {
            let deadline = deadline(command == FUTEX_LOCK_PI)?;
            futex::lock_pi(cx.task, user, addr, private, false, deadline)
        }
        FUTEX_TRYLOCK_PI => futex::lock_pi(cx.task, user, addr, private, true, None),
        FUTEX_UNLOCK_PI => futex::unlock_pi(cx.task, user, addr, private),
        _ => Err(Errno::ENOSYS),
    }
}

/// How many waiters to wake: as on Linux at least one, whatever the number says.
pub(super) fn wake_count(value: u32) -> usize {
    value.cast_signed().max(1).unsigned_abs() as usize
}

pub(super) fn count(value: u32) -> Result<usize> {
    usize::try_from(value.cast_signed()).map_err(|_| Errno::EINVAL)
}

/// A timeout argument as monotonic time.
pub(super) fn deadline(cx: &Ctx<'_>, addr: UserAddr, absolute: bool, realtime: bool) -> Result<Option<u64>> {
    let Some(ns) = crate::syscall::timespec::read_timespec_opt(cx, addr)? else { return Ok(None) };
    Ok(Some(match (absolute, realtime) {
        (false, _) => time::monotonic_ns().saturating_add(ns),
        (true, false) => ns,
        (true, true) => crate::task::clock::monotonic_of_realtime(ns),
    }))
}

fn wait(cx: &Ctx<'_>, wait: Wait) -> SyscallResult {
    match (futex::wait(cx.task, cx.user(), &wait), wait.deadline_ns) {
        (Err(Errno::RESTART), Some(deadline_ns)) => {
            let Wait { addr, private, value, bitset, .. } = wait;
            *cx.task.restart.lock() = Some(Restart::Futex { addr, value, deadline_ns, bitset, private });
            Err(Errno::RESTART_BLOCK)
        }
        (result, _) => result.map(|()| 0),
    }
}

/// Goes on with an interrupted wait.
pub(super) fn wait_again(
    cx: &Ctx<'_>,
    addr: UserAddr,
    value: u32,
    deadline_ns: u64,
    bitset: u32,
    private: bool,
) -> SyscallResult {
    wait(cx, Wait { addr, private, value, bitset, deadline_ns: Some(deadline_ns) })
}
