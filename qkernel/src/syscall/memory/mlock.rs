//! `mlock(2)` and its relatives.

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::vma::VmaFlags;
use machine::mm::{UserAddr, page_down, page_up};

/// The pages that a range touches: start and length; `EINVAL`.
fn whole_pages(addr: UserAddr, len: u64) -> Result<(u64, u64)> {
    let start = page_down(addr.get());
    let len = len.checked_add(addr.get() - start).and_then(page_up).ok_or(Errno::EINVAL)?;
    Ok((start, len))
}

/// `mlock(2)`: memory is never swapped behind the program's back except by hibernation; pages are brought in.
pub(in crate::syscall) fn mlock(cx: &Ctx<'_>, addr: UserAddr, len: u64) -> SyscallResult {
    mlock2(cx, addr, len, 0)
}

/// `mlock2(2)`.
pub(in crate::syscall) fn mlock2(cx: &Ctx<'_>, addr: UserAddr, len: u64, flags: u32) -> SyscallResult {
    const ONFAULT: u32 = 1;
    if flags & !ONFAULT != 0 {
        return Err(Errno::EINVAL);
    }
    let (start, len) = whole_pages(addr, len)?;
    cx.aspace().set_flags(start, len, |vma| vma | VmaFlags::LOCKED)?;
    if flags & ONFAULT == 0 {
        cx.aspace().populate(start, len);
    }
    Ok(0)
}

/// `munlock(2)`.
pub(in crate::syscall) fn munlock(cx: &Ctx<'_>, addr: UserAddr, len: u64) -> SyscallResult {
    let (start, len) = whole_pages(addr, len)?;
    cx.aspace().set_flags(start, len, |vma| vma - VmaFlags::LOCKED).map(|()| 0)
}

/// `mlockall(2)`.
pub(in crate::syscall) fn mlockall(_cx: &Ctx<'_>, flags: u32) -> SyscallResult {
    if flags == 0 || flags & !7 != 0 { Err(Errno::EINVAL) } else { Ok(0) }
}

/// `munlockall(2)`.
pub(in crate::syscall) fn munlockall(_cx: &Ctx<'_>) -> SyscallResult {
    Ok(0)
}
