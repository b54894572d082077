//! `cachestat(2)`.

use crate::creds::{CAP_FOWNER, Creds};
use crate::fs::access::{Want, permitted};
use crate::fs::file::{File, OpenFlags};
use crate::syscall::context::SyscallResult;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::{MemoryObject, PAGE, PageStore, UserAddr};
use machine::sched;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `struct cachestat`: numbers of pages.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, Immutable, IntoBytes)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// `cachestat(2)`: how much of a range of a file is in this kernel's memory. Files on disk are in the host's, of which it knows
/// nothing.
pub(super) fn cachestat(cx: &Ctx<'_>, fd: i32, range: UserAddr, to: UserAddr, flags: u32) -> SyscallResult {
    let file = cx.file(fd)?;
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    let [offset, len]: [u64; 2] = cx.user().read(range)?;
    check(&cx.task.creds.get(), &file)?;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let mut stat = CacheStat::default();
    if let Ok(MemoryObject::Store(store)) = file.ops.mapping(&file, false) {
        stat.cached = cached(&store, offset, len)?;
    }
    cx.user().write(to, &stat)?;
    Ok(0)
}

/// Checks that the caller may write to the file, or owns it, since the pages in memory tell what others do with it.
/// `EPERM`.
fn check(creds: &Creds, file: &File) -> Result<()> {
    if file.flags().writable() || creds.has(CAP_FOWNER) {
        return Ok(());
    }
    let stat = file.ops.stat(file)?;
    let may = stat.uid == creds.fsuid || permitted(creds, &stat, Want::WRITE).is_ok();
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// Pages of the range that are in memory; of length 0, up to the end.
fn cached(store: &PageStore, offset: u64, len: u64) -> Result<u64> {
    /// Pages that are looked at in one go.
    const BATCH: usize = 4096;
    let size = store.size();
    let end = if len == 0 { size } else { offset.saturating_add(len).min(size) };
    let mut count = 0;
    let mut next = Some(offset / PAGE);
    while let Some(page) = next {
        let (some, rest) = store.count_in_memory(&(page..end.div_ceil(PAGE)), BATCH);
        count += some;
        next = rest;
        sched::go_on()?;
    }
    Ok(count)
}
