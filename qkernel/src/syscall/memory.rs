//! Memory: `mmap(2)` and its relatives.

use abi::word::low32;

use crate::fs::access;
use crate::fs::file::OpenFlags;
use crate::fs::mount::Limits;
use crate::limits;
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::map::{NewMapping, Placement, Remap};
use machine::mm::vma::VmaFlags;
use machine::mm::{MapFlags, MemoryObject, PAGE, PageStore, Prot, UserAddr, page_down, page_up};

/// `mmap(2)`.
pub(super) fn mmap(
    cx: &Ctx<'_>,
    addr: UserAddr,
    len: u64,
    prot: u32,
    flags: u64,
    fd: i32,
    offset: u64,
) -> SyscallResult {
    // As on Linux, protection bits without a meaning here are ignored.
    let prot = Prot::from_bits_truncate(prot);
    if len == 0 || !offset.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let flags = map_flags(flags)?;
    let len = page_up(len).ok_or(Errno::ENOMEM)?;
    let shared = flags.contains(MapFlags::SHARED);
    let mut vma_flags = VmaFlags::empty();
    vma_flags.set(VmaFlags::SHARED, shared);
    vma_flags.set(VmaFlags::GROWS_DOWN, flags.contains(MapFlags::GROWSDOWN) && !shared);
    vma_flags.set(VmaFlags::NO_RESERVE, flags.contains(MapFlags::NORESERVE));
    vma_flags.set(VmaFlags::LOCKED, flags.contains(MapFlags::LOCKED));
    // No mapping shows an offset beyond the largest file, however it is moved.
    if offset.checked_add(len).is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(Errno::EOVERFLOW);
    }
    let (object, max_prot) = if flags.contains(MapFlags::ANONYMOUS) {
        (shared.then(|| MemoryObject::Store(PageStore::new(len))), Prot::all())
    } else {
        file_object(cx, fd, prot, shared)?
    };
    check_limit(cx, len)?;
    let new = NewMapping {
        placement: placement(addr, flags),
        len,
        prot,
        max_prot,
        flags: vma_flags,
        offset: if flags.contains(MapFlags::ANONYMOUS) { 0 } else { offset },
        object,
    };
    let start = cx.aspace().map(new)?;
    if flags.intersects(MapFlags::POPULATE | MapFlags::LOCKED) && !flags.contains(MapFlags::NONBLOCK) {
        cx.aspace().populate(start, len);
    }
    Ok(start)
}

/// `flags` of `mmap(2)`. As on Linux, those without a meaning are ignored with the old types of mappings, `MAP_SHARED` and
/// `MAP_PRIVATE`; `MAP_SHARED_VALIDATE` is for files, and refuses what came after it (`MAP_SYNC` among them).
fn map_flags(flags: u64) -> Result<MapFlags> {
    const SHARED_VALIDATE: u64 = 3;
    const ANONYMOUS: u64 = 0x20;
    /// `LEGACY_MAP_MASK`.
    const OLD: u64 = 0x7c07_f9f3;
    match flags & 0xf {
        1 | 2 => Ok(MapFlags::from_bits_truncate(low32(flags))),
        SHARED_VALIDATE if flags & ANONYMOUS != 0 => Err(Errno::EINVAL),
        SHARED_VALIDATE if flags & !OLD != 0 => Err(Errno::EOPNOTSUPP),
        SHARED_VALIDATE => Ok(MapFlags::from_bits_truncate(low32(flags))),
        _ => Err(Errno::EINVAL),
    }
}

fn placement(addr: UserAddr, flags: MapFlags) -> Placement {
    let addr = addr.get();
    if flags.contains(MapFlags::FIXED_NOREPLACE) {
        Placement::FixedNoReplace(addr)
    } else if flags.contains(MapFlags::FIXED) {
        Placement::Fixed(addr)
    } else if flags.contains(MapFlags::BIT32) && addr == 0 {
        Placement::Low
    } else {
        Placement::Hint(addr)
    }
}

fn file_object(cx: &Ctx<'_>, fd: i32, prot: Prot, shared: bool) -> Result<(Option<MemoryObject>, Prot)> {
    let file = cx.file(fd)?;
    let flags = file.flags();
    if flags.contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    if !flags.readable() || (shared && prot.contains(Prot::WRITE) && !flags.writable()) {
        return Err(Errno::EACCES);
    }
    let mut max_prot = Prot::all();
    if shared && !flags.writable() {
        max_prot -= Prot::WRITE;
    }
    if file.path.as_ref().is_some_and(|path| access::forbids(path, Limits::NO_EXEC)) {
        if prot.contains(Prot::EXEC) {
            return Err(Errno::EPERM);
        }
        max_prot -= Prot::EXEC;
    }
    let object = file.ops.mapping(&file, shared && flags.writable())?;
    if object.label().is_none()
        && let Some(path) = &file.path
    {
        object.set_label(&path.absolute());
    }
    Ok((Some(object), max_prot))
}

fn check_limit(cx: &Ctx<'_>, len: u64) -> Result<()> {
    let limit = cx.limit(limits::RLIMIT_AS);
    if limit != limits::RLIM_INFINITY && cx.aspace().sizes().0.saturating_add(len) > limit {
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

/// `munmap(2)`.
pub(super) fn munmap(cx: &Ctx<'_>, addr: UserAddr, len: u64) -> SyscallResult {
    cx.aspace().unmap(addr.get(), len).map(|()| 0)
}

/// `prot` of `mprotect(2)`, an `unsigned long`, and whether the mapping's growth is protected too.
fn protection(prot: u64) -> Result<(Prot, bool)> {
    const GROWSDOWN: u32 = 0x0100_0000;
    let prot = u32::try_from(prot).map_err(|_| Errno::EINVAL)?;
    let known = Prot::from_bits(prot & !GROWSDOWN).ok_or(Errno::EINVAL)?;
    Ok((known, prot & GROWSDOWN != 0))
}

/// `mprotect(2)`.
pub(super) fn mprotect(cx: &Ctx<'_>, addr: UserAddr, len: u64, prot: u64) -> SyscallResult {
    let (prot, grows_down) = protection(prot)?;
    cx.aspace().protect(addr.get(), len, prot, grows_down).map(|()| 0)
}

/// `brk(2)`: returns the heap's end, moved or not.
pub(super) fn brk(cx: &Ctx<'_>, addr: UserAddr) -> SyscallResult {
    let addr = addr.get();
    let now = cx.aspace().set_brk(0, 0);
    if addr > now && check_limit(cx, addr - now).is_err() {
        return Ok(now);
    }
    Ok(cx.aspace().set_brk(addr, cx.limit(limits::RLIMIT_DATA)))
}

/// `mremap(2)`.
pub(super) fn mremap(
    cx: &Ctx<'_>,
    old: UserAddr,
    old_len: u64,
    new_len: u64,
    flags: u64,
    new: UserAddr,
) -> SyscallResult {
    const MAYMOVE: u64 = 1;
    const FIXED: u64 = 2;
    if flags & !(MAYMOVE | FIXED) != 0 || !old.is_aligned(PAGE) {
        return Err(Errno::EINVAL);
    }
    let how = match flags {
        0 => Remap::InPlace,
        MAYMOVE => Remap::MayMove,
        flags if flags == MAYMOVE | FIXED => Remap::Fixed(new.get()),
        _ => return Err(Errno::EINVAL),
    };
    if new_len > old_len {
        check_limit(cx, new_len - old_len)?;
    }
    cx.aspace().remap(old.get(), old_len, new_len, how)
}

/// `msync(2)`: shared mappings are the host's page cache (or memory); a synchronous flush goes to the host's file.
pub(super) fn msync(cx: &Ctx<'_>, addr: UserAddr, len: u64, flags: u32) -> SyscallResult {
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
pub(super) fn mincore(cx: &Ctx<'_>, addr: UserAddr, len: u64, vec: UserAddr) -> SyscallResult {
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
pub(super) fn madvise(cx: &Ctx<'_>, addr: UserAddr, len: u64, advice: u32) -> SyscallResult {
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

/// The pages that a range touches: start and length; `EINVAL`.
fn whole_pages(addr: UserAddr, len: u64) -> Result<(u64, u64)> {
    let start = page_down(addr.get());
    let len = len.checked_add(addr.get() - start).and_then(page_up).ok_or(Errno::EINVAL)?;
    Ok((start, len))
}

/// `mlock(2)`: memory is never swapped behind the program's back except by hibernation; pages are brought in.
pub(super) fn mlock(cx: &Ctx<'_>, addr: UserAddr, len: u64) -> SyscallResult {
    mlock2(cx, addr, len, 0)
}

/// `mlock2(2)`.
pub(super) fn mlock2(cx: &Ctx<'_>, addr: UserAddr, len: u64, flags: u32) -> SyscallResult {
    const ONFAULT: u32 = 1;
    if flags & !ONFAULT != 0 {
        return Err(Errno::EINVAL);
    }
    let (start, len) = whole_pages(addr, len)?;
    cx.aspace().set_flags(start, len, |vma| vma | VmaFlags::LOCKED)?;
    if flags & ONFAULT == 0 {
        cx.aspace().populate(start, len);
    }
    Ok(0)
}

/// `munlock(2)`.
pub(super) fn munlock(cx: &Ctx<'_>, addr: UserAddr, len: u64) -> SyscallResult {
    let (start, len) = whole_pages(addr, len)?;
    cx.aspace().set_flags(start, len, |vma| vma - VmaFlags::LOCKED).map(|()| 0)
}

/// `mlockall(2)`.
pub(super) fn mlockall(_cx: &Ctx<'_>, flags: u32) -> SyscallResult {
    if flags == 0 || flags & !7 != 0 { Err(Errno::EINVAL) } else { Ok(0) }
}

/// `munlockall(2)`.
pub(super) fn munlockall(_cx: &Ctx<'_>) -> SyscallResult {
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_beyond_32_bits_are_not_cut_off() {
        assert_eq!(protection(3), Ok((Prot::READ | Prot::WRITE, false)));
        assert_eq!(protection(0x0100_0001), Ok((Prot::READ, true)));
        assert_eq!(protection(1 << 32 | 3), Err(Errno::EINVAL));
        assert_eq!(map_flags(1 << 40 | 0x22), Ok(MapFlags::PRIVATE | MapFlags::ANONYMOUS));
        assert_eq!(map_flags(1 << 40 | 3), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn a_validated_mapping_refuses_what_it_does_not_know() {
        let shared = MapFlags::SHARED | MapFlags::PRIVATE;
        assert_eq!(map_flags(3), Ok(shared));
        assert_eq!(map_flags(0x8003), Ok(shared | MapFlags::POPULATE));
        for newer in [MapFlags::SYNC, MapFlags::FIXED_NOREPLACE] {
            assert_eq!(map_flags(u64::from(newer.bits()) | 3), Err(Errno::EOPNOTSUPP));
            assert_eq!(map_flags(u64::from(newer.bits()) | 1), Ok(newer | MapFlags::SHARED));
        }
        assert_eq!(map_flags(0x23), Err(Errno::EINVAL));
        assert!([0, 4, 0x10, 0xf].into_iter().all(|kind| map_flags(kind) == Err(Errno::EINVAL)));
    }
}
