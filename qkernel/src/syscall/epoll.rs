//! `epoll(7)`.

use alloc::sync::Arc;

use crate::fs::devfs;
use crate::fs::epoll;
use crate::fs::epoll::Epoll;
use crate::fs::file::{File, OpenFlags};
use crate::fs::inode::{S_IFCHR, S_IFDIR, S_IFREG, Stat};
use crate::syscall::context::SyscallResult;
use crate::syscall::event::{install, only};
use crate::syscall::timeout::{deadline_of_ms, read_deadline, with_mask};
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `epoll_create(2)`.
pub(super) fn epoll_create(cx: &Ctx<'_>, size: i32) -> SyscallResult {
    if size <= 0 {
        return Err(Errno::EINVAL);
    }
    epoll_create1(cx, 0)
}

/// `epoll_create1(2)`.
pub(super) fn epoll_create1(cx: &Ctx<'_>, flags: u32) -> SyscallResult {
    let flags = only(flags, OpenFlags::CLOEXEC)?;
    install(cx, epoll::open(flags)?, flags)
}

/// `struct epoll_event`, packed on x86-64.
#[repr(C, packed)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct EpollEvent {
    events: u32,
    data: u64,
}

/// Whether waiting for a file makes sense: files, directories and simple devices are always ready. `unknown`: the answer where the
/// file cannot be asked.
fn can_be_watched(file: &File, unknown: bool) -> bool {
    let is_always_ready = |stat: &Stat| {
        matches!(stat.kind(), S_IFREG | S_IFDIR)
            || (stat.kind() == S_IFCHR && devfs::is_always_ready(stat.rdev))
    };
    file.ops.is_polled() || file.ops.stat(file).map_or(unknown, |stat| !is_always_ready(&stat))
}

/// `epoll_ctl(2)`.
pub(super) fn epoll_ctl(cx: &Ctx<'_>, set: i32, operation: u32, fd: i32, event: UserAddr) -> SyscallResult {
    const ADD: u32 = 1;
    const DELETE: u32 = 2;
    const MODIFY: u32 = 3;
    let event: EpollEvent =
        if operation == DELETE { EpollEvent { events: 0, data: 0 } } else { cx.user().read(event)? };
    let me = cx.opened(set)?;
    let file = cx.opened(fd)?;
    // What is watched already is let go, whatever has become of it.
    if !can_be_watched(&file, operation != ADD) {
        return Err(Errno::EPERM);
    }
    let epoll = me.as_ops::<Epoll>().ok_or(Errno::EINVAL)?;
    if Arc::ptr_eq(&me, &file) {
        return Err(Errno::EINVAL);
    }
    match operation {
        ADD => epoll.add(&me, &file, fd, event.events, event.data)?,
        DELETE => epoll.delete(&me, &file, fd)?,
        MODIFY => epoll.modify(&file, fd, event.events, event.data)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

fn wait(cx: &Ctx<'_>, set: i32, events: UserAddr, max: i32, deadline_ns: Option<u64>) -> SyscallResult {
    const EVENT_BYTES: usize = size_of::<EpollEvent>();
    let most = i32::MAX as usize / EVENT_BYTES;
    let max = usize::try_from(max).ok().filter(|max| (1..=most).contains(max)).ok_or(Errno::EINVAL)?;
    let file = cx.file(set)?;
    let epoll = file.as_ops::<Epoll>().ok_or(Errno::EINVAL)?;
    let found = epoll.wait(max, deadline_ns)?;
    for (at, event) in found.iter().enumerate() {
        let out = EpollEvent { events: event.events, data: event.data };
        cx.user().write(events.offset((at * EVENT_BYTES) as u64), &out)?;
    }
    Ok(found.len() as u64)
}

/// `epoll_wait(2)`.
pub(super) fn epoll_wait(
    cx: &Ctx<'_>,
    set: i32,
    events: UserAddr,
    max: i32,
    timeout_ms: i32,
) -> SyscallResult {
    wait(cx, set, events, max, deadline_of_ms(timeout_ms))
}

/// `epoll_pwait(2)`.
pub(super) fn epoll_pwait(
    cx: &Ctx<'_>,
    set: i32,
    events: UserAddr,
    max: i32,
    timeout_ms: i32,
    mask: UserAddr,
    mask_size: u64,
) -> SyscallResult {
    with_mask(cx, mask, mask_size, || wait(cx, set, events, max, deadline_of_ms(timeout_ms)))
}

/// `epoll_pwait2(2)`.
pub(super) fn epoll_pwait2(
    cx: &Ctx<'_>,
    set: i32,
    events: UserAddr,
    max: i32,
    timeout: UserAddr,
    mask: UserAddr,
    mask_size: u64,
) -> SyscallResult {
    let deadline_ns = read_deadline(cx, timeout)?;
    with_mask(cx, mask, mask_size, || wait(cx, set, events, max, deadline_ns))
}
