//! The second interface to futexes: `futex_waitv`, `futex_wake`, `futex_wait`, `futex_requeue`.

use alloc::vec::Vec;

use crate::syscall::context::SyscallResult;
use crate::syscall::futex::{count, deadline, wake_count};
use crate::task::context::Ctx;
use crate::task::futex;
use crate::task::futex::{MATCH_ANY, Wait};
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most futexes of one call.
const FUTEX_WAITV_MAX: u32 = 128;

/// `struct futex_waitv`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct FutexWait {
    value: u64,
    addr: UserAddr,
    flags: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<FutexWait>() == 24);

/// Whether the futex is private. A word has 32 bits: other sizes are not there yet, on Linux neither.
fn is_private(flags: u32) -> Result<bool> {
    const SIZE: u32 = 3;
    const SIZE_U32: u32 = 2;
    const PRIVATE: u32 = 128;
    if flags & !(SIZE | PRIVATE) != 0 || flags & SIZE != SIZE_U32 {
        return Err(Errno::EINVAL);
    }
    Ok(flags & PRIVATE != 0)
}

/// A value of the size of a word.
fn word(value: u64) -> Result<u32> {
    u32::try_from(value).map_err(|_| Errno::EINVAL)
}

/// Reads what is waited for.
fn read_waits(cx: &Ctx<'_>, waits: UserAddr, count: u32) -> Result<Vec<Wait>> {
    let given: Vec<FutexWait> = cx.user().read_array(waits, count as usize)?;
    let wait = |given: &FutexWait| {
        let private = is_private(given.flags)?;
        if given.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let value = word(given.value)?;
        Ok(Wait { addr: given.addr, private, value, bitset: MATCH_ANY, deadline_ns: None })
    };
    given.iter().map(wait).collect()
}

/// The absolute time at `timeout` of a clock, as monotonic time.
fn deadline_of(cx: &Ctx<'_>, timeout: UserAddr, clock: i32) -> Result<Option<u64>> {
    const REALTIME: i32 = 0;
    const MONOTONIC: i32 = 1;
    if timeout.is_null() {
        return Ok(None);
    }
    match clock {
        REALTIME => deadline(cx, timeout, true, true),
        MONOTONIC => deadline(cx, timeout, true, false),
        _ => Err(Errno::EINVAL),
    }
}

/// `futex_waitv(2)`: waits until one of several futexes is woken; which one.
pub(super) fn futex_waitv(
    cx: &Ctx<'_>,
    waits: UserAddr,
    count: u32,
    flags: u32,
    timeout: UserAddr,
    clock: i32,
) -> SyscallResult {
    if flags != 0 || waits.is_null() || !(1..=FUTEX_WAITV_MAX).contains(&count) {
        return Err(Errno::EINVAL);
    }
    let deadline_ns = deadline_of(cx, timeout, clock)?;
    let waits = read_waits(cx, waits, count)?;
    futex::wait_any(cx.task, cx.user(), &waits, deadline_ns).map(|at| at as u64)
}

/// `futex_wake(2)`.
pub(super) fn futex_wake(cx: &Ctx<'_>, addr: UserAddr, mask: u64, count: u32, flags: u32) -> SyscallResult {
    let private = is_private(flags)?;
    let mask = word(mask)?;
    // Nobody is nobody here; the older call wakes one all the same.
    let count = if count == 0 { 0 } else { wake_count(count) };
    futex::wake(cx.user(), addr, private, count, mask).map(|woken| woken as u64)
}

/// `futex_wait(2)`.
pub(super) fn futex_wait(
    cx: &Ctx<'_>,
    addr: UserAddr,
    value: u64,
    mask: u64,
    flags: u32,
    timeout: UserAddr,
    clock: i32,
) -> SyscallResult {
    let private = is_private(flags)?;
    let (value, bitset) = (word(value)?, word(mask)?);
    let deadline_ns = deadline_of(cx, timeout, clock)?;
    futex::wait(cx.task, cx.user(), &Wait { addr, private, value, bitset, deadline_ns }).map(|()| 0)
}

/// `futex_requeue(2)`: the first of two futexes says what its word has to be.
pub(super) fn futex_requeue(
    cx: &Ctx<'_>,
    waits: UserAddr,
    flags: u32,
    wakes: u32,
    moves: u32,
) -> SyscallResult {
    if flags != 0 || waits.is_null() {
        return Err(Errno::EINVAL);
    }
    let waits = read_waits(cx, waits, 2)?;
    let [from, to] = waits[..] else { return Err(Errno::EINVAL) };
    if from.private != to.private {
        return Err(Errno::EINVAL);
    }
    let counts = (count(wakes)?, count(moves)?);
    let words = (from.addr, to.addr);
    futex::requeue(cx.user(), words, from.private, counts, Some(from.value)).map(|done| done as u64)
}
