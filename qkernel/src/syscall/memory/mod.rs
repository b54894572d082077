//! Memory: `munmap(2)`, `mprotect(2)`, `brk(2)`, `mremap(2)`.

mod flags;
pub(super) mod madvise;
pub(super) mod mlock;
pub(super) mod mmap;
pub(super) mod numa;
pub(super) mod pkeys;
pub(super) mod process_vm;

use crate::limits;
use crate::syscall::context::SyscallResult;
use crate::syscall::memory::flags::protection;
use crate::syscall::memory::mlock::check_locked;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::remap::Remap;
use machine::mm::vma::VmaFlags;
use machine::mm::{AddressSpace, PAGE, Prot, UserAddr, page_down, page_up};

pub(super) fn check_limit(cx: &Ctx<'_>, len: u64) -> Result<()> {
    let limit = cx.limit(limits::RLIMIT_AS);
    if limit != limits::RLIM_INFINITY && cx.aspace().sizes().0.saturating_add(len) > limit {
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

/// `ENOMEM`: with so many bytes more the program would have more data than `RLIMIT_DATA` lets it. Where there is no limit
/// nothing is counted.
pub(super) fn check_data_limit(cx: &Ctx<'_>, more: impl FnOnce(&AddressSpace) -> u64) -> Result<()> {
    let limit = cx.limit(limits::RLIMIT_DATA);
    if limit == limits::RLIM_INFINITY {
        return Ok(());
    }
    let more = more(cx.aspace());
    if more > 0 && cx.aspace().data_bytes().saturating_add(more) > limit {
        Err(Errno::ENOMEM)
    } else {
        Ok(())
    }
}

/// `EACCES`: the process is kept from making memory executable that can be written, or was not executable before
/// (`PR_SET_MDWE`).
pub(super) fn check_exec_gain(cx: &Ctx<'_>, prot: Prot, was_executable: impl FnOnce() -> bool) -> Result<()> {
    let gains = || prot.contains(Prot::WRITE) || !was_executable();
    if prot.contains(Prot::EXEC) && cx.process().kept.refuses_exec_gain() && gains() {
        return Err(Errno::EACCES);
    }
    Ok(())
}

/// `munmap(2)`.
pub(super) fn munmap(cx: &Ctx<'_>, addr: UserAddr, len: u64) -> SyscallResult {
    cx.aspace().unmap(addr.get(), len)?;
    cx.container().ipc().drop_unattached();
    Ok(0)
}

/// `mprotect(2)`.
pub(super) fn mprotect(cx: &Ctx<'_>, addr: UserAddr, len: u64, prot: u64) -> SyscallResult {
    let (prot, grows_down) = protection(prot)?;
    if prot.contains(Prot::WRITE)
        && let Some(end) = page_up(len).and_then(|len| addr.get().checked_add(len))
    {
        check_data_limit(cx, |space| space.data_between(addr.get(), end).1)?;
    }
    check_exec_gain(cx, prot, || {
        let end = page_up(len).and_then(|len| addr.get().checked_add(len)).unwrap_or(u64::MAX);
        let mut all = true;
        cx.aspace().for_each_in(addr.get(), end, |vma, _, _| all &= vma.prot.contains(Prot::EXEC));
        all
    })?;
    cx.aspace().protect(addr.get(), len, prot, grows_down).map(|()| 0)
}

/// `brk(2)`: returns the heap's end, moved or not.
pub(super) fn brk(cx: &Ctx<'_>, addr: UserAddr) -> SyscallResult {
    let addr = addr.get();
    let now = cx.aspace().set_brk(0, 0);
    let locks = cx.aspace().future_locks();
    let more = addr.saturating_sub(now);
    let is_refused = || {
        check_limit(cx, more).and(check_data_limit(cx, |_| more)).and(check_locked(cx, locks, more)).is_err()
    };
    if addr > now && is_refused() {
        return Ok(now);
    }
    let end = cx.aspace().set_brk(addr, cx.limit(limits::RLIMIT_DATA));
    if end > now && locks == VmaFlags::LOCKED {
        let from = page_down(now);
        let _ = cx.aspace().populate(from, end - from);
    }
    Ok(end)
}

/// `mseal(2)`.
pub(super) fn mseal(cx: &Ctx<'_>, addr: UserAddr, len: u64, flags: u64) -> SyscallResult {
    let end = page_up(len).and_then(|len| addr.get().checked_add(len)).ok_or(Errno::EINVAL)?;
    if flags != 0 || !addr.is_aligned(PAGE) {
        return Err(Errno::EINVAL);
    }
    if end == addr.get() {
        return Ok(0);
    }
    cx.aspace().seal(addr.get(), len).map(|()| 0)
}

/// `mremap(2)`.
pub(super) fn mremap(
    cx: &Ctx<'_>,
    old: UserAddr,
    old_len: u64,
    new_len: u64,
    flags: u64,
    new: UserAddr,
) -> SyscallResult {
    const MAYMOVE: u64 = 1;
    const FIXED: u64 = 2;
    const DONTUNMAP: u64 = 4;
    if flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0 || !old.is_aligned(PAGE) {
        return Err(Errno::EINVAL);
    }
    let how = match (flags & MAYMOVE != 0, flags & FIXED != 0, flags & DONTUNMAP != 0) {
        (false, false, false) => Remap::InPlace,
        (true, false, false) => Remap::MayMove,
        (true, true, false) => Remap::Fixed(new.get()),
        (true, false, true) if old_len == new_len => Remap::Kept(new.get()),
        (true, true, true) if old_len == new_len => Remap::FixedAndKept(new.get()),
        _ => return Err(Errno::EINVAL),
    };
    if flags & DONTUNMAP != 0 {
        check_limit(cx, new_len)?;
    } else if new_len > old_len {
        check_limit(cx, new_len - old_len)?;
        check_data_limit(cx, |space| if space.is_data(old.get()) { new_len - old_len } else { 0 })?;
    }
    let at = cx.aspace().remap(old.get(), old_len, new_len, how)?;
    if new_len > old_len && cx.aspace().is_fully_locked(at) {
        let from = page_down(old_len);
        let _ = cx.aspace().populate(at + from, new_len - from);
    }
    Ok(at)
}
