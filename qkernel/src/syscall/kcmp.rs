//! `kcmp(2)`.

use alloc::sync::Arc;
use core::ptr;

use crate::creds::Inspection;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::inspect;
use machine::errno::{Errno, Result};
use machine::random;
use machine::sync::Once;

const KCMP_FILE: u32 = 0;
const KCMP_VM: u32 = 1;
const KCMP_FILES: u32 = 2;
const KCMP_FS: u32 = 3;
const KCMP_SIGHAND: u32 = 4;
const KCMP_IO: u32 = 5;
const KCMP_SYSVSEM: u32 = 6;

/// `kcmp(2)`: 0 for the same, 1 and 2 for the order of two others.
pub(super) fn kcmp(cx: &Ctx<'_>, one: i32, other: i32, kind: u32, a: u64, b: u64) -> SyscallResult {
    let task = |tid: i32| -> Result<Arc<Task>> {
        let found = u32::try_from(tid).ok().and_then(|tid| cx.pids().find_task(tid));
        found.ok_or(Errno::ESRCH)
    };
    let (one, other) = (task(one)?, task(other)?);
    inspect::check(cx.task, &one, Inspection::Process)?;
    inspect::check(cx.task, &other, Inspection::Process)?;
    let (a, b) = (place(&one, kind, a)?, place(&other, kind, b)?);
    Ok(if a == b { 0 } else { 1 + u64::from(a > b) })
}

/// A number that stands for what is compared, and tells nothing of where it is.
fn place(task: &Arc<Task>, kind: u32, index: u64) -> Result<u64> {
    static COOKIE: Once<u64> = Once::new();
    let cookie = *COOKIE.call_once(|| {
        let mut bytes = [0; 8];
        random::fill(&mut bytes);
        u64::from_ne_bytes(bytes) | 1
    });
    let address = match kind {
        KCMP_FILE => {
            let fd = u32::try_from(index).map_err(|_| Errno::EBADF)?.cast_signed();
            ptr::from_ref(&*task.files().ok_or(Errno::EBADF)?.get(fd)?).addr()
        }
        KCMP_VM => task.aspace().map_or(0, |aspace| ptr::from_ref(&*aspace).addr()),
        KCMP_FILES => task.files().map_or(0, |files| ptr::from_ref(&*files).addr()),
        KCMP_FS => ptr::from_ref(&*task.fs.get()).addr(),
        KCMP_SIGHAND => ptr::from_ref(&*task.process.sighand.get()).addr(),
        // No task has a context of its own for this.
        KCMP_IO => 0,
        KCMP_SYSVSEM => task.sem_undo.lock().as_ref().map_or(0, |list| ptr::from_ref(&**list).addr()),
        _ => return Err(Errno::EINVAL),
    };
    Ok((address as u64).wrapping_mul(cookie))
}
