//! `mlock(2)` and its relatives.

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::vma::VmaFlags;
use machine::mm::{Fault, UserAddr, page_down, page_up};

/// The pages that a range touches: start and length; `EINVAL`.
fn whole_pages(addr: UserAddr, len: u64) -> Result<(u64, u64)> {
    let start = page_down(addr.get());
    let len = len.checked_add(addr.get() - start).and_then(page_up).ok_or(Errno::EINVAL)?;
    start.checked_add(len).ok_or(Errno::EINVAL)?;
    Ok((start, len))
}

/// `EPERM`: the caller may lock nothing.
pub(super) fn check_may_lock(cx: &Ctx<'_>) -> Result<()> {
    if cx.task.lock_limit() == 0 { Err(Errno::EPERM) } else { Ok(()) }
}

/// Whether so many bytes of a new mapping may be locked. `EAGAIN`: that is beyond the limit.
pub(super) fn check_locked(cx: &Ctx<'_>, locks: VmaFlags, len: u64) -> Result<()> {
    let limit = cx.task.lock_limit();
    let is_bound = locks.contains(VmaFlags::LOCKED) && limit != u64::MAX;
    if is_bound && cx.aspace().locked_bytes().saturating_add(len) > limit {
        return Err(Errno::EAGAIN);
    }
    Ok(())
}

/// `mlock(2)`: pages are brought in, and leave memory by hibernation alone.
pub(in crate::syscall) fn mlock(cx: &Ctx<'_>, addr: UserAddr, len: u64) -> SyscallResult {
    mlock2(cx, addr, len, 0)
}

/// `mlock2(2)`.
pub(in crate::syscall) fn mlock2(cx: &Ctx<'_>, addr: UserAddr, len: u64, flags: u32) -> SyscallResult {
    const ONFAULT: u32 = 1;
    if flags & !ONFAULT != 0 {
        return Err(Errno::EINVAL);
    }
    check_may_lock(cx)?;
    let (start, len) = whole_pages(addr, len)?;
    let locks = if flags & ONFAULT != 0 { VmaFlags::LOCKS } else { VmaFlags::LOCKED };
    cx.aspace().set_locks(start, len, locks, cx.task.lock_limit())?;
    if flags & ONFAULT == 0 {
        cx.aspace().populate(start, len).map_err(|fault| match fault {
            Fault::NoMemory => Errno::EAGAIN,
            _ => Errno::ENOMEM,
        })?;
    }
    Ok(0)
}

/// `munlock(2)`.
pub(in crate::syscall) fn munlock(cx: &Ctx<'_>, addr: UserAddr, len: u64) -> SyscallResult {
    let (start, len) = whole_pages(addr, len)?;
    cx.aspace().set_locks(start, len, VmaFlags::empty(), u64::MAX).map(|()| 0)
}

/// `mlockall(2)`.
pub(in crate::syscall) fn mlockall(cx: &Ctx<'_>, flags: u32) -> SyscallResult {
    const CURRENT: u32 = 1;
    const FUTURE: u32 = 2;
    const ONFAULT: u32 = 4;
    if flags & !(CURRENT | FUTURE | ONFAULT) != 0 || flags & (CURRENT | FUTURE) == 0 {
        return Err(Errno::EINVAL);
    }
    check_may_lock(cx)?;
    let aspace = cx.aspace();
    if flags & CURRENT != 0 && aspace.sizes().0 > cx.task.lock_limit() {
        return Err(Errno::ENOMEM);
    }
    let locks = if flags & ONFAULT != 0 { VmaFlags::LOCKS } else { VmaFlags::LOCKED };
    let future = if flags & FUTURE != 0 { locks } else { VmaFlags::empty() };
    aspace.set_all_locks((flags & CURRENT != 0).then_some(locks), future);
    if flags & (CURRENT | ONFAULT) == CURRENT {
        for (start, end) in aspace.locked_ranges()? {
            // As on Linux, what cannot come does not matter.
            let _ = aspace.populate(start, end - start);
        }
    }
    Ok(0)
}

/// `munlockall(2)`.
pub(in crate::syscall) fn munlockall(cx: &Ctx<'_>) -> SyscallResult {
    cx.aspace().set_all_locks(Some(VmaFlags::empty()), VmaFlags::empty());
    Ok(0)
}
