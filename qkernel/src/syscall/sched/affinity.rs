//! `sched_setaffinity(2)` and `sched_getaffinity(2)`.

use core::sync::atomic::Ordering;

use crate::syscall::context::SyscallResult;
use crate::syscall::sched::{Subject, check_owner, target};
use crate::task::context::Ctx;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::platform;
use machine::sched::{self, CpuSet, Runnable};

impl Subject {
    fn cpus(&self) -> CpuSet {
        match &self.task {
            Some(task) => task.thread.sched.cpus(),
            None => CpuSet::of(self.policy.affinity.load(Ordering::Relaxed), platform::cpus()),
        }
    }
}

/// The thread of an id. A negative one is nobody's.
fn by_id(cx: &Ctx<'_>, tid: i32) -> Result<Subject> {
    if tid < 0 { Err(Errno::ESRCH) } else { target(cx, tid) }
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
    let cpus = by_id(cx, tid)?.cpus().among(platform::cpus());
    cx.user().write(mask, &cpus)?;
    Ok(8)
}

/// `sched_setaffinity(2)`: of a thread that has ended it is only kept.
pub(in crate::syscall) fn sched_setaffinity(
    cx: &Ctx<'_>,
    tid: i32,
    size: u32,
    mask: UserAddr,
) -> SyscallResult {
    let mut bytes = [0u8; 8];
    let given = (size as usize).min(bytes.len());
    cx.user().read_bytes(mask, &mut bytes[..given])?;
    let wanted = CpuSet::of(u64::from_le_bytes(bytes), platform::cpus());
    let subject = by_id(cx, tid)?;
    check_owner(cx, &subject)?;
    if wanted.bits() == 0 {
        return Err(Errno::EINVAL);
    }
    subject.policy.affinity.store(wanted.bits(), Ordering::Relaxed);
    if let Some(task) = subject.task {
        sched::bind(&(task as Runnable), wanted);
    }
    Ok(0)
}
