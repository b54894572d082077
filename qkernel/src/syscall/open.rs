//! Opening and closing descriptors.

use abi::word::low32;

use crate::fs::file::OpenFlags;
use crate::fs::open;
use crate::fs::open::How;
use crate::fs::walk::AT_FDCWD;
use crate::fs::walk::Resolve;
use crate::syscall::context::SyscallResult;
use crate::syscall::dup::limit;
use crate::syscall::extensible::read_extensible;
use crate::task::context::Ctx;
use bitflags::bitflags;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

bitflags! {
    /// Flags of `close_range(2)`.
    struct CloseRange: u32 {
        const UNSHARE = 2;
        const CLOEXEC = 4;
    }
}

/// `struct open_how`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct RawHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Checks raw flags; unknown ones are ignored, as `open(2)` always did.
fn open_flags(raw: u32) -> Result<OpenFlags> {
    let mut flags = OpenFlags::from_bits_truncate(raw);
    if flags.contains(OpenFlags::PATH) {
        flags &= OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW | OpenFlags::CLOEXEC;
    }
    if flags.contains(OpenFlags::TMPFILE_BIT) && (!flags.contains(OpenFlags::DIRECTORY) || !flags.writable())
    {
        return Err(Errno::EINVAL);
    }
    if flags.contains(OpenFlags::CREAT | OpenFlags::DIRECTORY) {
        return Err(Errno::EINVAL);
    }
    if flags.contains(OpenFlags::SYNC_BIT) {
        flags |= OpenFlags::DSYNC;
    }
    Ok(flags | OpenFlags::LARGEFILE)
}

fn do_open(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, how: How) -> SyscallResult {
    let path = cx.user().read_path(path)?;
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    cx.files().check_room(limit(cx))?;
    let close_on_exec = how.flags.contains(OpenFlags::CLOEXEC);
    let file = open::open_how(cx, dirfd, &path, how)?;
    cx.install(file, close_on_exec)
}

/// `openat(2)`.
pub(super) fn openat(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, flags: u32, mode: u32) -> SyscallResult {
    let how = How { flags: open_flags(flags)?, mode: mode & 0o7777, resolve: Resolve::empty() };
    do_open(cx, dirfd, path, how)
}

/// `open(2)`.
pub(super) fn open(cx: &Ctx<'_>, path: UserAddr, flags: u32, mode: u32) -> SyscallResult {
    openat(cx, AT_FDCWD, path, flags, mode)
}

/// `creat(2)`.
pub(super) fn creat(cx: &Ctx<'_>, path: UserAddr, mode: u32) -> SyscallResult {
    let flags = OpenFlags::CREAT | OpenFlags::WRONLY | OpenFlags::TRUNC;
    openat(cx, AT_FDCWD, path, flags.bits(), mode)
}

/// `openat2(2)`: unlike `openat(2)`, refuses unknown flags.
pub(super) fn openat2(cx: &Ctx<'_>, dirfd: i32, path: UserAddr, how: UserAddr, size: u64) -> SyscallResult {
    let raw: RawHow = read_extensible(cx, how, size, size_of::<RawHow>() as u64)?;
    let bits = u32::try_from(raw.flags).map_err(|_| Errno::EINVAL)?;
    let known = OpenFlags::from_bits(bits).ok_or(Errno::EINVAL)?;
    let resolve = Resolve::from_bits(raw.resolve).ok_or(Errno::EINVAL)?;
    let makes = known.intersects(OpenFlags::CREAT | OpenFlags::TMPFILE_BIT);
    let of_path = OpenFlags::PATH | OpenFlags::DIRECTORY | OpenFlags::NOFOLLOW | OpenFlags::CLOEXEC;
    if known.contains(OpenFlags::PATH) && !(known - of_path).is_empty() {
        return Err(Errno::EINVAL);
    }
    if raw.mode & !0o7777 != 0 || (raw.mode != 0 && !makes) {
        return Err(Errno::EINVAL);
    }
    if resolve.contains(Resolve::BENEATH | Resolve::IN_ROOT) {
        return Err(Errno::EINVAL);
    }
    if resolve.contains(Resolve::CACHED) {
        return Err(Errno::EAGAIN);
    }
    let how = How { flags: open_flags(bits)?, mode: low32(raw.mode), resolve };
    do_open(cx, dirfd, path, how)
}

/// `close(2)`.
pub(super) fn close(cx: &Ctx<'_>, fd: i32) -> SyscallResult {
    cx.files().close(fd).map(|()| 0)
}

/// `close_range(2)`.
pub(super) fn close_range(cx: &Ctx<'_>, first: u32, last: u32, flags: u32) -> SyscallResult {
    let flags = CloseRange::from_bits(flags).ok_or(Errno::EINVAL)?;
    if first > last {
        return Err(Errno::EINVAL);
    }
    let files = if flags.contains(CloseRange::UNSHARE) {
        let own = cx.files().unshare()?;
        let old = cx.task.set_files(Some(own.clone()));
        drop(old);
        own
    } else {
        cx.files().clone()
    };
    let (first, last) = (first as usize, last as usize);
    if flags.contains(CloseRange::CLOEXEC) {
        files.set_close_on_exec_range(first, last);
    } else {
        files.close_where(|fd, _| (first..=last).contains(&fd));
    }
    Ok(0)
}
