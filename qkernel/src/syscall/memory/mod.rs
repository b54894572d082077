//! Memory: `munmap(2)`, `mprotect(2)`, `brk(2)`, `mremap(2)`.

mod flags;
pub(super) mod madvise;
pub(super) mod mlock;
pub(super) mod mmap;

use crate::limits;
use crate::syscall::context::SyscallResult;
use crate::syscall::memory::flags::protection;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::map::Remap;
use machine::mm::{PAGE, UserAddr};

pub(super) fn check_limit(cx: &Ctx<'_>, len: u64) -> Result<()> {
    let limit = cx.limit(limits::RLIMIT_AS);
    if limit != limits::RLIM_INFINITY && cx.aspace().sizes().0.saturating_add(len) > limit {
        return Err(Errno::ENOMEM);
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
    cx.aspace().protect(addr.get(), len, prot, grows_down).map(|()| 0)
}

/// `brk(2)`: returns the heap's end, moved or not.
pub(super) fn brk(cx: &Ctx<'_>, addr: UserAddr) -> SyscallResult {
    let addr = addr.get();
    let now = cx.aspace().set_brk(0, 0);
    if addr > now && check_limit(cx, addr - now).is_err() {
        return Ok(now);
    }
    Ok(cx.aspace().set_brk(addr, cx.limit(limits::RLIMIT_DATA)))
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
    if flags & !(MAYMOVE | FIXED) != 0 || !old.is_aligned(PAGE) {
        return Err(Errno::EINVAL);
    }
    let how = match flags {
        0 => Remap::InPlace,
        MAYMOVE => Remap::MayMove,
        flags if flags == MAYMOVE | FIXED => Remap::Fixed(new.get()),
        _ => return Err(Errno::EINVAL),
    };
    if new_len > old_len {
        check_limit(cx, new_len - old_len)?;
    }
    cx.aspace().remap(old.get(), old_len, new_len, how)
}
