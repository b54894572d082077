//! `kcmp(2)`.

use alloc::sync::Arc;
use core::any::Any;

use crate::creds::Inspection;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::core::Task;
use crate::task::inspect;
use machine::errno::{Errno, Result};
use machine::host_fact::HostFact;
use machine::random;

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
    // Both are kept until they are compared, so that neither takes the other's place.
    let (a, b) = (object(&one, kind, a)?, object(&other, kind, b)?);
    let (a, b) = (place(a.as_ref()), place(b.as_ref()));
    Ok(if a == b { 0 } else { 1 + u64::from(a > b) })
}

type Object = Arc<dyn Any + Send + Sync>;

/// Returns the object of a task that is compared; `None`: the task has none of this kind. `EINVAL`: the kind is
/// unknown.
fn object(task: &Arc<Task>, kind: u32, index: u64) -> Result<Option<Object>> {
    Ok(match kind {
        KCMP_FILE => {
            let fd = u32::try_from(index).map_err(|_| Errno::EBADF)?.cast_signed();
            Some(task.files().ok_or(Errno::EBADF)?.get(fd)?)
        }
        KCMP_VM => task.aspace().map(|aspace| aspace as Object),
        KCMP_FILES => task.files().map(|files| files as Object),
        KCMP_FS => Some(task.fs.get()),
        KCMP_SIGHAND => Some(task.process.sighand.get()),
        // No task has a context of its own for this.
        KCMP_IO => None,
        KCMP_SYSVSEM => task.sem_undo.lock().clone().map(|list| list as Object),
        _ => return Err(Errno::EINVAL),
    })
}

/// Drawn once under each VMM.
static COOKIE: HostFact<u64> = HostFact::unknown();

/// Draws it anew.
pub fn forget_cookie() {
    COOKIE.forget();
}

/// A number that stands for an object, and tells nothing of where it is.
fn place(object: Option<&Object>) -> u64 {
    let cookie = *COOKIE.learn(|| {
        let mut bytes = [0; 8];
        random::fill(&mut bytes);
        u64::from_ne_bytes(bytes) | 1
    });
    let address = object.map_or(0, |object| Arc::as_ptr(object).addr());
    (address as u64).wrapping_mul(cookie)
}
