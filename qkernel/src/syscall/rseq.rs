//! `rseq(2)`.

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::rseq::{FEATURE_BYTES, ORIGINAL_BYTES};
use crate::task::sequences::reset;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// `rseq(2)`: the C library registers every thread.
pub(super) fn rseq(cx: &Ctx<'_>, addr: UserAddr, len: u32, flags: u32, signature: u32) -> SyscallResult {
    const UNREGISTER: u32 = 1;
    let rseq = &cx.task.rseq;
    let registered = rseq.registered();
    match (flags, registered) {
        (UNREGISTER, Some((at, bytes, own))) if at == addr.get() && bytes == len => {
            if own != signature {
                return Err(Errno::EPERM);
            }
            reset(cx.user(), at)?;
            rseq.forget();
            Ok(0)
        }
        (0, Some((at, bytes, own))) if at == addr.get() && bytes == len => {
            Err(if own == signature { Errno::EBUSY } else { Errno::EPERM })
        }
        (0, None) => register(cx, addr, len, signature),
        _ => Err(Errno::EINVAL),
    }
}

fn register(cx: &Ctx<'_>, addr: UserAddr, len: u32, signature: u32) -> SyscallResult {
    // Longer ones are for fields to come, and aligned like the first.
    if len < ORIGINAL_BYTES.max(FEATURE_BYTES) || !addr.is_aligned(u64::from(ORIGINAL_BYTES)) {
        return Err(Errno::EINVAL);
    }
    if addr.is_null() || !addr.has_room(u64::from(len)) {
        return Err(Errno::EFAULT);
    }
    const SEQUENCE_OFFSET: u64 = 8;
    // A sequence that an earlier owner of the memory was in is none of this thread's.
    cx.user().write(addr.offset(SEQUENCE_OFFSET), &0u64)?;
    cx.task.rseq.register(addr.get(), len, signature);
    Ok(0)
}
