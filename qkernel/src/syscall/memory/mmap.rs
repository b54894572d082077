//! `mmap(2)`.

use crate::fs::access;
use crate::fs::file::OpenFlags;
use crate::fs::mount::Limits;
use crate::syscall::context::SyscallResult;
use crate::syscall::memory::check_limit;
use crate::syscall::memory::flags::{map_flags, placement};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::map::NewMapping;
use machine::mm::vma::VmaFlags;
use machine::mm::{MapFlags, MemoryObject, PAGE, PageStore, Prot, UserAddr, page_up};

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
