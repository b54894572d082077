//! `flock(2)` and the locks of `fcntl(2)`.

use crate::fs::caller::PidOf;
use crate::fs::file::{File, Whence};
use crate::fs::locks;
use crate::fs::locks::{END, Lock, Owner};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const F_GETLK: u32 = 5;
const F_SETLK: u32 = 6;
const F_SETLKW: u32 = 7;
const F_OFD_GETLK: u32 = 36;
const F_OFD_SETLK: u32 = 37;
const F_OFD_SETLKW: u32 = 38;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;

/// `struct flock`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct RawLock {
    kind: i16,
    whence: i16,
    pad: u32,
    start: i64,
    len: i64,
    pid: i32,
    pad2: u32,
}

/// The range a `struct flock` means, both ends included.
fn range(file: &File, raw: &RawLock) -> Result<(u64, u64)> {
    let base = match raw.whence {
        0 => 0,
        1 => file.ops.seek(file, 0, Whence::Current)?,
        2 => file.ops.stat(file)?.size,
        _ => return Err(Errno::EINVAL),
    };
    let base = i64::try_from(base).map_err(|_| Errno::EOVERFLOW)?;
    let start = base.checked_add(raw.start).ok_or(Errno::EOVERFLOW)?;
    let (first, last) = match raw.len {
        0 => (start, i64::MAX),
        len if len > 0 => (start, start.checked_add(len - 1).ok_or(Errno::EOVERFLOW)?),
        len => (start.checked_add(len).ok_or(Errno::EINVAL)?, start - 1),
    };
    let first = u64::try_from(first).map_err(|_| Errno::EINVAL)?;
    Ok((first, u64::try_from(last).map_err(|_| Errno::EINVAL)?))
}

/// The lock commands of `fcntl(2)`; `EINVAL` for any other.
pub(super) fn fcntl_lock(cx: &Ctx<'_>, file: &File, fd: i32, command: u32, arg: UserAddr) -> SyscallResult {
    let by_description = matches!(command, F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW);
    if !by_description && !matches!(command, F_GETLK | F_SETLK | F_SETLKW) {
        return Err(Errno::EINVAL);
    }
    let mut raw: RawLock = cx.user().read(arg)?;
    if by_description && raw.pid != 0 {
        return Err(Errno::EINVAL);
    }
    let (start, end) = range(file, &raw)?;
    let owner = if by_description { Owner::Description(file.id) } else { Owner::Table(cx.files().id) };
    let process = PidOf::of(cx.caller);
    let lock = Lock { owner, process, file: file.id, start, end, exclusive: raw.kind == F_WRLCK };
    if !matches!(raw.kind, F_RDLCK | F_WRLCK | F_UNLCK) {
        return Err(Errno::EINVAL);
    }
    if matches!(command, F_GETLK | F_OFD_GETLK) {
        let found = match raw.kind {
            // Which lock the description has there itself.
            F_UNLCK if by_description => locks::own(file, &lock),
            F_UNLCK => return Err(Errno::EINVAL),
            _ => locks::test(file, &lock)?,
        };
        match found {
            None => raw.kind = F_UNLCK,
            Some(held) => show(cx, &mut raw, &held),
        }
        cx.user().write(arg, &raw)?;
        return Ok(0);
    }
    match raw.kind {
        F_UNLCK => locks::unlock(file, owner, start, end)?,
        F_RDLCK if !file.flags().readable() => return Err(Errno::EBADF),
        F_WRLCK if !file.flags().writable() => return Err(Errno::EBADF),
        _ => {
            locks::lock(file, &lock, matches!(command, F_SETLKW | F_OFD_SETLKW))?;
            check_open(cx, file, fd, &lock)?;
        }
    }
    Ok(0)
}

/// A process has no lock by a descriptor that another of its threads closed meanwhile: nothing would ever give it back. The lock is there
/// before this looks, and a close takes the descriptor away before the locks, so one of the two sees the other.
fn check_open(cx: &Ctx<'_>, file: &File, fd: i32, lock: &Lock) -> Result<()> {
    let is_open = || cx.files().get(fd).is_ok_and(|now| core::ptr::eq(&raw const *now, &raw const *file));
    if matches!(lock.owner, Owner::Description(_)) || is_open() {
        return Ok(());
    }
    if locks::unlock(file, lock.owner, lock.start, lock.end).is_err() {
        locks::release_range(file, lock.owner, lock.start, lock.end);
    }
    Err(Errno::EBADF)
}

/// Describes a lock that is in the way.
fn show(cx: &Ctx<'_>, raw: &mut RawLock, held: &Lock) {
    raw.kind = if held.exclusive { F_WRLCK } else { F_RDLCK };
    raw.whence = 0;
    raw.start = held.start.cast_signed();
    raw.len = if held.end == END { 0 } else { (held.end - held.start + 1).cast_signed() };
    raw.pid = match held.owner {
        Owner::Table(_) => held.process.seen_by(cx.caller).cast_signed(),
        Owner::Description(_) | Owner::Outside { is_process: false } => -1,
        // It has no id here, as a process of another pid namespace.
        Owner::Outside { is_process: true } => 0,
    };
}

/// `flock(2)`.
pub(super) fn flock(cx: &Ctx<'_>, fd: i32, operation: u32) -> SyscallResult {
    const NONBLOCK: u32 = 4;
    /// Was a lock of its own once; Linux goes on answering that there is one.
    const MANDATORY: u32 = 32;
    if operation & MANDATORY != 0 {
        return Ok(0);
    }
    let kind = match operation & !NONBLOCK {
        1 => Some(false),
        2 => Some(true),
        8 => None,
        _ => return Err(Errno::EINVAL),
    };
    let file = cx.opened(fd)?;
    locks::flock(&file, kind, operation & NONBLOCK == 0).map(|()| 0)
}
