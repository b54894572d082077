//! `madvise(2)`, `process_madvise(2)`, `msync(2)`, `mincore(2)`.

use alloc::sync::Arc;

use crate::creds::{CAP_SYS_ADMIN, CAP_SYS_NICE, Inspection};
use crate::syscall::context::SyscallResult;
use crate::syscall::memory::process_vm::memory_of;
use crate::syscall::pidfd::pid_process;
use crate::syscall::rw::vectored::read_iovecs;
use crate::task::context::Ctx;
use abi::layout::USER_MAX;
use machine::errno::{Errno, Result};
use machine::mm::advice::Advice;
use machine::mm::vma::VmaFlags;
use machine::mm::{Access, AddressSpace, MemoryObject, PAGE, UserAddr, page_up};
use machine::sched;

/// `MADV_*` that need more than a look at one mapping.
const COLD: u32 = 20;
const WILLNEED: u32 = 3;
const PAGEOUT: u32 = 21;

/// `msync(2)`: shared mappings are the host's page cache (or memory); a synchronous flush goes to the host's file.
pub(in crate::syscall) fn msync(cx: &Ctx<'_>, addr: UserAddr, len: u64, flags: u32) -> SyscallResult {
    const ASYNC: u32 = 1;
    const INVALIDATE: u32 = 2;
    const SYNC: u32 = 4;
    if flags & !(ASYNC | INVALIDATE | SYNC) != 0
        || flags & (ASYNC | SYNC) == ASYNC | SYNC
        || !addr.is_aligned(PAGE)
    {
        return Err(Errno::EINVAL);
    }
    let addr = addr.get();
    let end = page_up(len).and_then(|len| addr.checked_add(len)).ok_or(Errno::ENOMEM)?;
    let mut hosts = alloc::vec::Vec::new();
    let mut is_locked = false;
    let covered = cx.aspace().for_each_in(addr, end, |vma, _, _| {
        is_locked |= vma.flags.contains(VmaFlags::LOCKED);
        if let Some(MemoryObject::Host(file)) = vma.object.as_ref().filter(|_| vma.is_shared()) {
            hosts.push(file.clone());
        }
    });
    if flags & INVALIDATE != 0 && is_locked {
        return Err(Errno::EBUSY);
    }
    if flags & SYNC != 0 {
        for file in hosts {
            file.sync()?;
        }
    }
    if covered { Ok(0) } else { Err(Errno::ENOMEM) }
}

/// `mincore(2)`.
pub(in crate::syscall) fn mincore(cx: &Ctx<'_>, addr: UserAddr, len: u64, vec: UserAddr) -> SyscallResult {
    /// Pages that are looked at in one go.
    const BATCH: u64 = 4096;
    if !addr.is_aligned(PAGE) {
        return Err(Errno::EINVAL);
    }
    if !addr.has_room(len) {
        return Err(Errno::ENOMEM);
    }
    if !vec.has_room(len.div_ceil(PAGE)) {
        return Err(Errno::EFAULT);
    }
    let start = addr.get();
    let end = page_up(len).and_then(|len| start.checked_add(len)).ok_or(Errno::ENOMEM)?;
    let mut at = start;
    while at < end {
        let to = end.min(at + BATCH * PAGE);
        let resident = cx.aspace().resident(at, to)?;
        cx.user().write_bytes(vec.offset((at - start) / PAGE), &resident)?;
        if (resident.len() as u64) < (to - at) / PAGE {
            return Err(Errno::ENOMEM);
        }
        sched::go_on()?;
        at = to;
    }
    Ok(0)
}

/// `madvise(2)`: advice that frees memory is carried out, what children get is noted, and advice about the future is accepted
/// and has no effect.
pub(in crate::syscall) fn madvise(cx: &Ctx<'_>, addr: UserAddr, len: u64, advice: u32) -> SyscallResult {
    advise(cx, cx.aspace(), addr, len, advice).map(|()| 0)
}

fn advise(cx: &Ctx<'_>, aspace: &Arc<AddressSpace>, addr: UserAddr, len: u64, advice: u32) -> Result<()> {
    const REMOVE: u32 = 9;
    const POPULATE_READ: u32 = 22;
    const POPULATE_WRITE: u32 = 23;
    const COLLAPSE: u32 = 25;
    const HWPOISON: u32 = 100;
    const SOFT_OFFLINE: u32 = 101;
    let known = match advice {
        // NORMAL, RANDOM, SEQUENTIAL, WILLNEED, MERGEABLE, UNMERGEABLE, HUGEPAGE, NOHUGEPAGE
        0..=WILLNEED | 12..=15 => Some(Advice::Nothing),
        4 => Some(Advice::Discard { even_locked: false }),
        8 => Some(Advice::Free),
        10 => Some(Advice::Inherit(false)),
        11 => Some(Advice::Inherit(true)),
        16 => Some(Advice::Dump(false)),
        17 => Some(Advice::Dump(true)),
        18 => Some(Advice::Wipe(true)),
        19 => Some(Advice::Wipe(false)),
        COLD | PAGEOUT => Some(Advice::Cold),
        24 => Some(Advice::Discard { even_locked: true }),
        HWPOISON | SOFT_OFFLINE if !cx.task.creds.get().has(CAP_SYS_ADMIN) => return Err(Errno::EPERM),
        REMOVE | POPULATE_READ | POPULATE_WRITE | COLLAPSE => None,
        _ => return Err(Errno::EINVAL),
    };
    let len = page_up(len).ok_or(Errno::EINVAL)?;
    if !addr.is_aligned(PAGE) {
        return Err(Errno::EINVAL);
    }
    let start = addr.get();
    let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
    match (known, advice) {
        _ if len == 0 => Ok(()),
        (Some(advice), _) => aspace.advise(start, end, advice),
        _ if end > USER_MAX => Err(Errno::ENOMEM),
        (None, REMOVE) => aspace.remove_backing(start, len),
        (None, POPULATE_READ) => aspace.touch_all(start, end, Access::Read),
        (None, POPULATE_WRITE) => aspace.touch_all(start, end, Access::Write),
        // There are no huge pages to collapse anything into.
        (None, _) if aspace.for_each_in(start, end, |_, _, _| {}) => Err(Errno::EINVAL),
        (None, _) => Err(Errno::ENOMEM),
    }
}

/// `process_madvise(2)`: advice about pages of another process that changes nothing it can see.
pub(in crate::syscall) fn process_madvise(
    cx: &Ctx<'_>,
    pidfd: i32,
    iov: UserAddr,
    count: u64,
    advice: u32,
    flags: u32,
) -> SyscallResult {
    const COLLAPSE: u32 = 25;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let pieces = read_iovecs(cx, iov, count)?;
    let process = pid_process(cx, &*cx.file(pidfd)?)?;
    if !matches!(advice, COLD | PAGEOUT | WILLNEED | COLLAPSE) {
        return Err(Errno::EINVAL);
    }
    let task = process.any_task().ok_or(Errno::ESRCH)?;
    let aspace = memory_of(cx, &task, Inspection::Files).map_err(|error| match error {
        Errno::EPERM => Errno::EACCES,
        other => other,
    })?;
    if !Arc::ptr_eq(&aspace, cx.aspace()) && !cx.task.creds.get().has(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let mut done = 0;
    for (addr, len) in pieces {
        match advise(cx, &aspace, addr, len as u64, advice) {
            Ok(()) => done += len as u64,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
        sched::go_on()?;
    }
    Ok(done)
}
