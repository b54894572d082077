//! Protection keys (`pkeys(7)`), as on a processor without them.

use crate::syscall::context::SyscallResult;
use crate::syscall::memory::mprotect;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// `pkey_mprotect(2)`: without a key it is `mprotect(2)`.
pub(in crate::syscall) fn pkey_mprotect(
    cx: &Ctx<'_>,
    addr: UserAddr,
    len: u64,
    prot: u64,
    key: i32,
) -> SyscallResult {
    const NO_KEY: i32 = -1;
    if key == NO_KEY { mprotect(cx, addr, len, prot) } else { Err(Errno::EINVAL) }
}

/// `pkey_alloc(2)`: all keys are taken.
pub(in crate::syscall) fn pkey_alloc(_cx: &Ctx<'_>, flags: u64, rights: u64) -> SyscallResult {
    const DISABLE_ACCESS: u64 = 1;
    const DISABLE_WRITE: u64 = 2;
    let is_known = flags == 0 && rights & !(DISABLE_ACCESS | DISABLE_WRITE) == 0;
    Err(if is_known { Errno::ENOSPC } else { Errno::EINVAL })
}

/// `pkey_free(2)`: nobody has one.
pub(in crate::syscall) fn pkey_free(_cx: &Ctx<'_>, _key: i32) -> SyscallResult {
    Err(Errno::EINVAL)
}
