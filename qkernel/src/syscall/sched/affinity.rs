//! `sched_setaffinity(2)` and `sched_getaffinity(2)`.

use core::sync::atomic::Ordering;

use crate::syscall::context::SyscallResult;
use crate::syscall::sched::{check_owner, target};
use crate::task::context::Ctx;

use machine::errno::Errno;
use machine::mm::UserAddr;
use machine::platform;

/// One bit for each vCPU.
fn all_cpus() -> u64 {
    u64::MAX >> (64 - platform::cpus().clamp(1, 64))
}

/// `sched_getaffinity(2)`, the raw call: returns the bytes written.
pub(in crate::syscall) fn sched_getaffinity(
    cx: &Ctx<'_>,
    tid: i32,
    size: u32,
    mask: UserAddr,
) -> SyscallResult {
    if size < 8 || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let kept = target(cx, tid)?.policy.affinity.load(Ordering::Relaxed) & all_cpus();
    cx.user().write(mask, &kept)?;
    Ok(8)
}

/// `sched_setaffinity(2)`: kept and reported, not followed.
pub(in crate::syscall) fn sched_setaffinity(
    cx: &Ctx<'_>,
    tid: i32,
    size: u32,
    mask: UserAddr,
) -> SyscallResult {
    let mut bytes = [0u8; 8];
    let given = (size as usize).min(bytes.len());
    cx.user().read_bytes(mask, &mut bytes[..given])?;
    let wanted = u64::from_le_bytes(bytes) & all_cpus();
    let task = target(cx, tid)?;
    check_owner(cx, &task)?;
    if wanted == 0 {
        return Err(Errno::EINVAL);
    }
    task.policy.affinity.store(wanted, Ordering::Relaxed);
    Ok(0)
}
