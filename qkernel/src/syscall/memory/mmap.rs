//! `mmap(2)`.

use abi::layout::USER_MAX;
use abi::word::low32;
use alloc::sync::Arc;

use crate::fs::access;
use crate::fs::file::OpenFlags;
use crate::fs::mount::Limits;
use crate::syscall::context::SyscallResult;
use crate::syscall::memory::flags::{map_flags, placement};
use crate::syscall::memory::mlock::{check_locked, check_may_lock};
use crate::syscall::memory::{check_data_limit, check_exec_gain, check_limit};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::map::{NewMapping, Placement};
use machine::mm::vma::VmaFlags;
use machine::mm::{MapFlags, MemoryObject, PAGE, PageStore, Prot, UserAddr, page_down, page_up};

/// `mmap(2)`.
pub(in crate::syscall) fn mmap(
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
    check_huge(flags)?;
    let droppable = is_droppable(flags)?;
    let flags = if droppable {
        MapFlags::from_bits_truncate(low32(flags)) | MapFlags::PRIVATE
    } else {
        map_flags(flags)?
    };
    let len = page_up(len).filter(|len| *len <= USER_MAX).ok_or(Errno::ENOMEM)?;
    let shared = flags.contains(MapFlags::SHARED);
    let is_anonymous = flags.contains(MapFlags::ANONYMOUS);
    if flags.contains(MapFlags::GROWSDOWN) && (shared || !is_anonymous) {
        return Err(Errno::EINVAL);
    }
    if flags.contains(MapFlags::LOCKED) {
        check_may_lock(cx)?;
    }
    let vma_flags = vma_flags(flags, droppable);
    let locks = vma_flags | cx.aspace().future_locks();
    check_locked(cx, locks, len)?;
    let offset = check_offset(if is_anonymous { 0 } else { offset }, len)?;
    let (object, max_prot) = if is_anonymous {
        (if shared { Some(MemoryObject::Store(shared_memory(flags, len)?)) } else { None }, Prot::all())
    } else {
        file_object(cx, fd, prot, shared)?
    };
    check_exec_gain(cx, prot, || true)?;
    check_limit(cx, len)?;
    if !shared && prot.contains(Prot::WRITE) && !flags.contains(MapFlags::GROWSDOWN) {
        check_data(cx, addr, len, flags)?;
    }
    let new = NewMapping {
        placement: placement(addr, flags),
        len,
        prot,
        max_prot,
        flags: vma_flags,
        offset,
        object,
    };
    let start = cx.aspace().map(new)?;
    if is_populated(flags, locks) {
        // Frames that are not to be had now are missed at their first touch.
        let _ = cx.aspace().populate(start, len);
    }
    Ok(start)
}

/// No mapping shows an offset beyond the largest file, however it is moved.
fn check_offset(offset: u64, len: u64) -> Result<u64> {
    match offset.checked_add(len).is_some_and(|end| i64::try_from(end).is_ok()) {
        true => Ok(offset),
        false => Err(Errno::EOVERFLOW),
    }
}

/// Whether a mapping is made present at once.
fn is_populated(flags: MapFlags, locks: VmaFlags) -> bool {
    flags & (MapFlags::POPULATE | MapFlags::NONBLOCK) == MapFlags::POPULATE
        || locks & VmaFlags::LOCKS == VmaFlags::LOCKED
}

/// The flags that a mapping keeps.
fn vma_flags(flags: MapFlags, is_droppable: bool) -> VmaFlags {
    let mut kept = VmaFlags::empty();
    kept.set(VmaFlags::SHARED, flags.contains(MapFlags::SHARED));
    kept.set(VmaFlags::GROWS_DOWN, flags.contains(MapFlags::GROWSDOWN));
    kept.set(VmaFlags::NO_RESERVE, flags.contains(MapFlags::NORESERVE));
    kept.set(VmaFlags::LOCKED, flags.contains(MapFlags::LOCKED));
    if is_droppable {
        kept |= VmaFlags::NO_RESERVE | VmaFlags::WIPE_ON_FORK | VmaFlags::DONT_DUMP;
    }
    kept
}

/// Checks `RLIMIT_DATA` for a new mapping of data.
fn check_data(cx: &Ctx<'_>, addr: UserAddr, len: u64, flags: MapFlags) -> Result<()> {
    // What it replaces does not count.
    let len = page_up(len).ok_or(Errno::ENOMEM)?;
    let end = addr.get().saturating_add(len);
    let is_fixed = flags.contains(MapFlags::FIXED);
    check_data_limit(cx, |space| {
        let replaced = if is_fixed { space.data_between(addr.get(), end).0 } else { 0 };
        len.saturating_sub(replaced)
    })
}

/// Whether pages of the mapping may be dropped for want of memory (`MAP_DROPPABLE`), which none are here. It is private, and
/// not a file's.
fn is_droppable(flags: u64) -> Result<bool> {
    const DROPPABLE: u64 = 8;
    if flags & 0xf != DROPPABLE {
        return Ok(false);
    }
    let given = MapFlags::from_bits_truncate(low32(flags));
    let is_refused = given.intersects(MapFlags::LOCKED | MapFlags::HUGETLB | MapFlags::GROWSDOWN);
    if is_refused || !given.contains(MapFlags::ANONYMOUS) { Err(Errno::EINVAL) } else { Ok(true) }
}

/// There are no huge pages: `ENOMEM` for sizes that the processor has, `EINVAL` for others.
fn check_huge(flags: u64) -> Result<()> {
    const HUGETLB: u64 = 0x4_0000;
    const SIZE_SHIFT: u32 = 26;
    if flags & HUGETLB == 0 {
        return Ok(());
    }
    // log2 of the size; 0 for the usual one.
    let is_known = matches!(flags >> SIZE_SHIFT & 0x3f, 0 | 21 | 30);
    let is_anonymous = flags & u64::from(MapFlags::ANONYMOUS.bits()) != 0;
    Err(if is_known && is_anonymous { Errno::ENOMEM } else { Errno::EINVAL })
}

/// Memory without a file that processes share.
fn shared_memory(flags: MapFlags, len: u64) -> Result<Arc<PageStore>> {
    if flags.contains(MapFlags::NORESERVE) { Ok(PageStore::new(len)) } else { PageStore::promised(len) }
}

/// `remap_file_pages(2)`: another part of the file where a part of its shared mapping is. As Linux does it, by a mapping
/// of its own.
pub(in crate::syscall) fn remap_file_pages(
    cx: &Ctx<'_>,
    addr: UserAddr,
    len: u64,
    prot: u64,
    page: u64,
    _flags: u64,
) -> SyscallResult {
    let start = page_down(addr.get());
    let len = page_down(len);
    let end = start.checked_add(len).filter(|end| *end > start).ok_or(Errno::EINVAL)?;
    let offset = page.checked_mul(PAGE).ok_or(Errno::EINVAL)?;
    let last = offset.checked_add(len).is_some_and(|last| i64::try_from(last).is_ok());
    if prot != 0 || !last {
        return Err(Errno::EINVAL);
    }
    let region = cx.aspace().shared_region(start, end).ok_or(Errno::EINVAL)?;
    let new = NewMapping {
        placement: Placement::Fixed(start),
        len,
        prot: region.prot,
        max_prot: region.max_prot,
        flags: region.flags,
        offset,
        object: region.object,
    };
    cx.aspace().map(new)?;
    let _ = cx.aspace().populate(start, len);
    Ok(0)
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
    if matches!(object, MemoryObject::Store(_)) {
        // Of a file of the host's the host knows.
        file.move_atime();
    }
    if object.label().is_none()
        && let Some(path) = &file.path
    {
        object.set_label(&path.absolute());
    }
    Ok((Some(object), max_prot))
}
