//! Resource limits: `getrlimit(2)` and its relatives.

use alloc::sync::Arc;

use crate::config::NR_OPEN;
use crate::creds::CAP_SYS_RESOURCE;
use crate::limits::{Limit, RLIM_COUNT, RLIMIT_CPU, RLIMIT_NOFILE};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use crate::task::process::Process;

use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct rlimit`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct RLimit {
    soft: u64,
    hard: u64,
}

fn resource(number: u32) -> Result<usize> {
    usize::try_from(number).ok().filter(|number| *number < RLIM_COUNT).ok_or(Errno::EINVAL)
}

/// Whether a limit may be changed so.
fn check(old: Limit, new: Limit, resource: usize, privileged: bool) -> Result<()> {
    if new.soft > new.hard {
        return Err(Errno::EINVAL);
    }
    if (resource == RLIMIT_NOFILE && new.hard > NR_OPEN) || (new.hard > old.hard && !privileged) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Reads a limit, and changes it if there is a new one.
fn exchange(cx: &Ctx<'_>, process: &Arc<Process>, resource: usize, new: Option<RLimit>) -> Result<RLimit> {
    let privileged = cx.task.creds.get().has(CAP_SYS_RESOURCE);
    let old = {
        let mut limits = process.limits.lock();
        let old = limits.0[resource];
        if let Some(new) = new {
            let new = Limit { soft: new.soft, hard: new.hard };
            check(old, new, resource, privileged)?;
            limits.0[resource] = new;
        }
        old
    };
    if new.is_some() && resource == RLIMIT_CPU {
        process.update_watch();
    }
    Ok(RLimit { soft: old.soft, hard: old.hard })
}

/// `getrlimit(2)`.
pub(super) fn getrlimit(cx: &Ctx<'_>, number: u32, to: UserAddr) -> SyscallResult {
    let limit = exchange(cx, cx.process(), resource(number)?, None)?;
    cx.user().write(to, &limit)?;
    Ok(0)
}

/// `setrlimit(2)`.
pub(super) fn setrlimit(cx: &Ctx<'_>, number: u32, from: UserAddr) -> SyscallResult {
    let new: RLimit = cx.user().read(from)?;
    exchange(cx, cx.process(), resource(number)?, Some(new))?;
    Ok(0)
}

/// `prlimit64(2)`.
pub(super) fn prlimit64(cx: &Ctx<'_>, pid: i32, number: u32, new: UserAddr, old: UserAddr) -> SyscallResult {
    let new: Option<RLimit> = cx.user().read_opt(new)?;
    let resource = resource(number)?;
    let process = match u32::try_from(pid).map_err(|_| Errno::ESRCH)? {
        0 => cx.process().clone(),
        pid => cx
            .pids()
            .find_task(pid)
            .map(|task| task.process.clone())
            .or_else(|| cx.pids().find_process(pid))
            .ok_or(Errno::ESRCH)?,
    };
    if !Arc::ptr_eq(&process, cx.process()) {
        check_access(cx, &process)?;
    }
    let former = exchange(cx, &process, resource, new)?;
    cx.user().write_opt(old, &former)?;
    Ok(0)
}

fn check_access(cx: &Ctx<'_>, process: &Process) -> Result<()> {
    let me = cx.task.creds.get();
    let them = process.creds().ok_or(Errno::ESRCH)?;
    let same = [them.uid, them.euid, them.suid].iter().all(|id| *id == me.uid)
        && [them.gid, them.egid, them.sgid].iter().all(|id| *id == me.gid);
    if same || me.has(CAP_SYS_RESOURCE) { Ok(()) } else { Err(Errno::EPERM) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_may_fall_but_only_the_privileged_raise_them() {
        let old = Limit { soft: 100, hard: 200 };
        assert_eq!(check(old, Limit { soft: 200, hard: 200 }, 0, false), Ok(()));
        assert_eq!(check(old, Limit { soft: 201, hard: 200 }, 0, true), Err(Errno::EINVAL));
        assert_eq!(check(old, Limit { soft: 0, hard: 300 }, 0, false), Err(Errno::EPERM));
        assert_eq!(check(old, Limit { soft: 0, hard: 300 }, 0, true), Ok(()));
        assert_eq!(check(old, Limit { soft: 0, hard: NR_OPEN + 1 }, RLIMIT_NOFILE, true), Err(Errno::EPERM));
    }
}
