//! Times of files: `utimensat(2)` and its relatives.

use crate::fs::access::Actor;
use crate::fs::attr;
use crate::fs::inode::SetTime;
use crate::fs::walk::AT_FDCWD;
use crate::syscall::attr::place_at;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

const UTIME_NOW: i64 = 0x3fff_ffff;
const UTIME_OMIT: i64 = 0x3fff_fffe;

fn set_times(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    times: [Option<SetTime>; 2],
    flags: u32,
) -> SyscallResult {
    let actor = Actor::of(cx);
    let place = if path.is_null() && dirfd != AT_FDCWD {
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        // Pipes and sockets are their maker's, and keep no times.
        let Some(place) = cx.opened(dirfd)?.path.clone() else { return Ok(0) };
        place
    } else {
        place_at(cx, &actor, dirfd, path, flags)?
    };
    attr::set_times(&actor, &place, times[0], times[1]).map(|()| 0)
}

/// Nanoseconds of seconds and a part that is less than one second.
fn time(sec: i64, part: i64, parts: i64) -> Result<Option<SetTime>> {
    if !(0..parts).contains(&part) {
        return Err(Errno::EINVAL);
    }
    let ns = part * (1_000_000_000 / parts);
    Ok(Some(SetTime::At(sec.saturating_mul(1_000_000_000).saturating_add(ns))))
}

/// `utimensat(2)`.
pub(in crate::syscall) fn utimensat(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    times: UserAddr,
    flags: u32,
) -> SyscallResult {
    let mut set = [Some(SetTime::Now); 2];
    if let Some(raw) = cx.user().read_opt::<[[i64; 2]; 2]>(times)? {
        for (set, [sec, nsec]) in set.iter_mut().zip(raw) {
            *set = match nsec {
                UTIME_NOW => Some(SetTime::Now),
                UTIME_OMIT => None,
                _ => time(sec, nsec, 1_000_000_000)?,
            };
        }
    }
    set_times(cx, dirfd, path, set, flags)
}

/// `futimesat(2)`.
pub(in crate::syscall) fn futimesat(
    cx: &Ctx<'_>,
    dirfd: i32,
    path: UserAddr,
    times: UserAddr,
) -> SyscallResult {
    let mut set = [Some(SetTime::Now); 2];
    if let Some(raw) = cx.user().read_opt::<[[i64; 2]; 2]>(times)? {
        for (set, [sec, usec]) in set.iter_mut().zip(raw) {
            *set = time(sec, usec, 1_000_000)?;
        }
    }
    set_times(cx, dirfd, path, set, 0)
}

/// `utimes(2)`.
pub(in crate::syscall) fn utimes(cx: &Ctx<'_>, path: UserAddr, times: UserAddr) -> SyscallResult {
    futimesat(cx, AT_FDCWD, path, times)
}

/// `utime(2)`.
pub(in crate::syscall) fn utime(cx: &Ctx<'_>, path: UserAddr, times: UserAddr) -> SyscallResult {
    let mut set = [Some(SetTime::Now); 2];
    if let Some(raw) = cx.user().read_opt::<[i64; 2]>(times)? {
        set = [time(raw[0], 0, 1)?, time(raw[1], 0, 1)?];
    }
    set_times(cx, AT_FDCWD, path, set, 0)
}
