//! `madvise(2)`, `msync(2)`, `mincore(2)`.

use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::vma::VmaFlags;
use machine::mm::{MemoryObject, PAGE, UserAddr, page_up};

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
    let covered = cx.aspace().for_each_in(addr, end, |vma, _, _| {
        if let Some(MemoryObject::Host(file)) = vma.object.as_ref().filter(|_| vma.is_shared()) {
            hosts.push(file.clone());
        }
    });
    if flags & SYNC != 0 {
        for file in hosts {
            file.sync()?;
        }
    }
    if covered { Ok(0) } else { Err(Errno::ENOMEM) }
}

/// `mincore(2)`.
pub(in crate::syscall) fn mincore(cx: &Ctx<'_>, addr: UserAddr, len: u64, vec: UserAddr) -> SyscallResult {
    if !addr.is_aligned(PAGE) {
        return Err(Errno::EINVAL);
    }
    let addr = addr.get();
    let mut at = addr;
    let end = page_up(len).and_then(|len| addr.checked_add(len)).ok_or(Errno::ENOMEM)?;
    while at < end {
        let part = (end - at).min(PAGE << 12);
        let resident = cx.aspace().resident(at, part)?;
        let to = vec.checked_add((at - addr) / PAGE).ok_or(Errno::EFAULT)?;
        cx.user().write_bytes(to, &resident)?;
        at += part;
    }
    Ok(0)
}

/// `madvise(2)`: advice that frees memory is carried out; advice about the future is accepted and has no effect.
pub(in crate::syscall) fn madvise(cx: &Ctx<'_>, addr: UserAddr, len: u64, advice: u32) -> SyscallResult {
    let len = page_up(len).ok_or(Errno::EINVAL)?;
    if !addr.is_aligned(PAGE) {
        return Err(Errno::EINVAL);
    }
    let addr = addr.get();
    let aspace = cx.aspace();
    let set = |on: VmaFlags, off: VmaFlags| aspace.set_flags(addr, len, |flags| (flags | on) - off);
    match advice {
        // NORMAL, RANDOM, SEQUENTIAL, WILLNEED, MERGEABLE, UNMERGEABLE, HUGEPAGE, NOHUGEPAGE, DONTDUMP, DODUMP, COLD,
        // PAGEOUT
        0..=3 | 12..=17 | 20 | 21 => set(VmaFlags::empty(), VmaFlags::empty()),
        // DONTNEED; FREE may be lazy, and may as well not be
        4 | 8 => aspace.discard(addr, len),
        9 => aspace.remove_backing(addr, len),
        10 => set(VmaFlags::DONT_FORK, VmaFlags::empty()),
        11 => set(VmaFlags::empty(), VmaFlags::DONT_FORK),
        18 => set(VmaFlags::WIPE_ON_FORK, VmaFlags::empty()),
        19 => set(VmaFlags::empty(), VmaFlags::WIPE_ON_FORK),
        // POPULATE_READ, POPULATE_WRITE
        22 | 23 => {
            aspace.populate(addr, len);
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
    .map(|()| 0)
}
