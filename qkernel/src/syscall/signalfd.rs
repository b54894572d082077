//! Signals as descriptors: `signalfd(2)`.

use crate::syscall::context::SyscallResult;
use crate::syscall::event::{COMMON, install, only};
use crate::task::context::Ctx;
use crate::task::signalfd::SignalFile;

use machine::errno::Errno;
use machine::mm::UserAddr;

/// `signalfd(2)`.
pub(super) fn signalfd(cx: &Ctx<'_>, fd: i32, mask: UserAddr, size: u64) -> SyscallResult {
    signalfd4(cx, fd, mask, size, 0)
}

/// `signalfd4(2)`.
pub(super) fn signalfd4(cx: &Ctx<'_>, fd: i32, mask: UserAddr, size: u64, flags: u32) -> SyscallResult {
    let flags = only(flags, COMMON)?;
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let mask: u64 = cx.user().read(mask)?;
    if fd == -1 {
        return install(cx, SignalFile::open(mask, flags)?, flags);
    }
    let file = cx.opened(fd)?;
    file.as_ops::<SignalFile>().ok_or(Errno::EINVAL)?.set_mask(mask);
    Ok(u64::from(fd.unsigned_abs()))
}
