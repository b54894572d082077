//! `copy_file_range(2)`.

use alloc::sync::Arc;

use crate::config::RW_MAX_BYTES;
use crate::fs::file::position::room_to_write;
use crate::fs::file::{At, File, OpenFlags};
use crate::fs::hostfs::file::HostFile;
use crate::fs::inode::{S_IFDIR, S_IFREG};
use crate::fs::notify::Mask;
use crate::syscall::context::SyscallResult;
use crate::syscall::rw::count_copy;
use crate::syscall::transfer::{Cursor, copy, is_stream};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::host;
use machine::mm::UserAddr;

/// Of a regular file the device it is on, and its size.
fn check_regular(file: &File) -> Result<(u64, u64)> {
    let stat = file.ops.stat(file)?;
    match stat.kind() {
        S_IFREG => Ok((stat.dev, stat.size)),
        S_IFDIR => Err(Errno::EISDIR),
        _ => Err(Errno::EINVAL),
    }
}

/// `copy_file_range(2)`.
pub(in crate::syscall) fn copy_file_range(
    cx: &Ctx<'_>,
    input: i32,
    input_offset: UserAddr,
    out: i32,
    out_offset: UserAddr,
    len: usize,
    flags: u32,
) -> SyscallResult {
    let (source, target) = (cx.opened(input)?, cx.opened(out)?);
    if flags != 0 || is_stream(&source) || is_stream(&target) {
        return Err(Errno::EINVAL);
    }
    let (source_dev, size) = check_regular(&source)?;
    let (target_dev, _) = check_regular(&target)?;
    let opened_for_it = source.flags().readable() && target.flags().writable();
    if !opened_for_it || target.flags().contains(OpenFlags::APPEND) {
        return Err(Errno::EBADF);
    }
    let are_hosts = source.as_ops::<HostFile>().is_some() && target.as_ops::<HostFile>().is_some();
    if source_dev != target_dev && !are_hosts {
        return Err(Errno::EXDEV);
    }
    let mut from = Cursor::new(cx, &source, input_offset)?;
    let mut to = Cursor::new(cx, &target, out_offset)?;
    let len = len.min(RW_MAX_BYTES).min(usize::try_from(size.saturating_sub(from.at)).unwrap_or(usize::MAX));
    let same = match (&source.path, &target.path) {
        (Some(a), Some(b)) => core::ptr::addr_eq(Arc::as_ptr(&a.inode), Arc::as_ptr(&b.inode)),
        _ => false,
    };
    if same && from.at < to.at.saturating_add(len as u64) && to.at < from.at.saturating_add(len as u64) {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let moved = match copy_on_host(&from, &to, len) {
        Some(moved) => {
            from.at += moved as u64;
            source.accessed();
            target.notify(Mask::MODIFY);
            moved
        }
        None => {
            let mut at = to.at;
            copy(&mut from, len, |buf| {
                let moved = target.write(buf, At::Offset(at))?;
                at += moved as u64;
                Ok(moved)
            })?
        }
    };
    to.at += moved as u64;
    from.finish(cx)?;
    to.finish(cx)?;
    count_copy(cx, Ok(moved as u64))
}

/// Lets the host copy between two of its files; `None` when the files are of another kind, or the host can't.
fn copy_on_host(from: &Cursor<'_>, to: &Cursor<'_>, len: usize) -> Option<usize> {
    let (source, target) = (from.file.as_ops::<HostFile>()?, to.file.as_ops::<HostFile>()?);
    let len = len.min(room_to_write(to.at).ok()?);
    let copy = || host::copy_range(source.handle(), from.at, target.handle(), to.at, len as u64);
    let moved = target.write_alone(to.at, copy).ok()?;
    (moved > 0).then_some(moved)
}
