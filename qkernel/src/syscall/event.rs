//! Pipes, and descriptors that tell of events: `pipe(2)`, `eventfd(2)`, `epoll(7)`.

use abi::word::low32;
use alloc::sync::Arc;

use crate::fs::epoll;
use crate::fs::epoll::Epoll;
use crate::fs::eventfd::EventFile;
use crate::fs::file::{File, OpenFlags};
use crate::fs::inode::{S_IFDIR, S_IFREG};
use crate::fs::pipe;
use crate::syscall::context::SyscallResult;
use crate::syscall::poll::{deadline_of_ms, read_deadline, with_mask};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `O_*` flags out of `flags`; `EINVAL` for any that aren't `allowed`.
pub fn only(flags: u32, allowed: OpenFlags) -> Result<OpenFlags> {
    OpenFlags::from_bits(flags).filter(|flags| allowed.contains(*flags)).ok_or(Errno::EINVAL)
}

/// The flags that most of these calls take.
pub const COMMON: OpenFlags = OpenFlags::NONBLOCK.union(OpenFlags::CLOEXEC);

/// Gives a file a descriptor, close-on-exec as the flags say.
pub fn install(cx: &Ctx<'_>, file: Arc<File>, flags: OpenFlags) -> SyscallResult {
    cx.install(file, flags.contains(OpenFlags::CLOEXEC))
}

/// Installs two files and writes their descriptors to user memory; neither stays when something fails.
pub fn install_pair(
    cx: &Ctx<'_>,
    pair: (Arc<File>, Arc<File>),
    close_on_exec: bool,
    addr: UserAddr,
) -> SyscallResult {
    let first = low32(cx.install(pair.0, close_on_exec)?).cast_signed();
    let second = match cx.install(pair.1, close_on_exec) {
        Ok(second) => low32(second).cast_signed(),
        Err(error) => {
            let _ = cx.files().close(first);
            return Err(error);
        }
    };
    if let Err(error) = cx.user().write(addr, &[first, second]) {
        let _ = cx.files().close(first);
        let _ = cx.files().close(second);
        return Err(error);
    }
    Ok(0)
}

/// `pipe(2)`.
pub(super) fn pipe(cx: &Ctx<'_>, ends: UserAddr) -> SyscallResult {
    pipe2(cx, ends, 0)
}

/// `pipe2(2)`.
pub(super) fn pipe2(cx: &Ctx<'_>, ends: UserAddr, flags: u32) -> SyscallResult {
    let flags = only(flags, COMMON | OpenFlags::DIRECT)?;
    let creds = cx.task.creds.get();
    let pair = pipe::new_pipe((creds.fsuid, creds.fsgid), flags)?;
    install_pair(cx, pair, flags.contains(OpenFlags::CLOEXEC), ends)
}

/// `eventfd(2)`.
pub(super) fn eventfd(cx: &Ctx<'_>, initial: u32) -> SyscallResult {
    eventfd2(cx, initial, 0)
}

/// `eventfd2(2)`.
pub(super) fn eventfd2(cx: &Ctx<'_>, initial: u32, flags: u32) -> SyscallResult {
    const SEMAPHORE: u32 = 1;
    let semaphore = flags & SEMAPHORE != 0;
    let flags = only(flags & !SEMAPHORE, COMMON)?;
    let file = EventFile::open(u64::from(initial), semaphore, flags)?;
    install(cx, file, flags)
}

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

/// Whether waiting for a file makes sense: files and directories are always ready.
fn can_be_watched(file: &File) -> bool {
    file.ops.stat(file).is_ok_and(|stat| !matches!(stat.kind(), S_IFREG | S_IFDIR))
}

/// `epoll_ctl(2)`.
pub(super) fn epoll_ctl(cx: &Ctx<'_>, set: i32, operation: u32, fd: i32, event: UserAddr) -> SyscallResult {
    const ADD: u32 = 1;
    const DELETE: u32 = 2;
    const MODIFY: u32 = 3;
    let event: EpollEvent =
        if operation == DELETE { EpollEvent { events: 0, data: 0 } } else { cx.user().read(event)? };
    let me = cx.file(set)?;
    let file = cx.file(fd)?;
    if operation == ADD && !can_be_watched(&file) {
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
