//! Watching files: `inotify(7)`.

use alloc::sync::Arc;

use crate::fs::access::Actor;
use crate::fs::file::{File, OpenFlags};
use crate::fs::inotify::{InotifyFile, check_kind};
use crate::fs::notify::Mask;
use crate::fs::walk;
use crate::fs::walk::AT_FDCWD;
use crate::syscall::context::SyscallResult;
use crate::syscall::event::{COMMON, install, only};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

/// `inotify_init(2)`.
pub(super) fn inotify_init(cx: &Ctx<'_>) -> SyscallResult {
    inotify_init1(cx, 0)
}

/// `inotify_init1(2)`.
pub(super) fn inotify_init1(cx: &Ctx<'_>, flags: u32) -> SyscallResult {
    let flags = only(flags, COMMON)?;
    let file = InotifyFile::open(&cx.container().inotify, &cx.task.creds.get(), flags)?;
    install(cx, file, flags)
}

fn instance(file: &Arc<File>) -> Result<&InotifyFile> {
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    file.as_ops::<InotifyFile>().ok_or(Errno::EINVAL)
}

/// `inotify_add_watch(2)`.
pub(super) fn inotify_add_watch(cx: &Ctx<'_>, fd: i32, path: UserAddr, mask: u32) -> SyscallResult {
    let mask = Mask::from_bits(mask).filter(|mask| !mask.is_empty()).ok_or(Errno::EINVAL)?;
    let file = cx.file(fd)?;
    if mask.contains(Mask::MASK_ADD | Mask::MASK_CREATE) {
        return Err(Errno::EINVAL);
    }
    let instance = instance(&file)?;
    let path = cx.user().read_path(path)?;
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    let follow = !mask.contains(Mask::DONT_FOLLOW);
    let actor = Actor::of(cx);
    let place = walk::resolve(cx, &actor, AT_FDCWD, &path, follow)?;
    check_kind(&place, mask)?;
    instance.add(&actor.creds, &place, mask).map(|descriptor| u64::from(descriptor.cast_unsigned()))
}

/// `inotify_rm_watch(2)`.
pub(super) fn inotify_rm_watch(cx: &Ctx<'_>, fd: i32, descriptor: i32) -> SyscallResult {
    let file = cx.file(fd)?;
    instance(&file)?.remove(descriptor).map(|()| 0)
}
