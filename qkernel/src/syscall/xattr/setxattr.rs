//! Setting and removing extended attributes: `setxattr(2)`, `removexattr(2)`.

use crate::syscall::context::SyscallResult;
use crate::syscall::xattr::{by_fd, by_path, remove, set};
use crate::task::context::Ctx;
use machine::mm::UserAddr;

/// `setxattr(2)`.
pub(in crate::syscall) fn setxattr(
    cx: &Ctx<'_>,
    path: UserAddr,
    name: UserAddr,
    value: UserAddr,
    size: usize,
    flags: u32,
) -> SyscallResult {
    set(cx, &by_path(cx, path, true)?, name, value, size, flags)
}

/// `lsetxattr(2)`.
pub(in crate::syscall) fn lsetxattr(
    cx: &Ctx<'_>,
    path: UserAddr,
    name: UserAddr,
    value: UserAddr,
    size: usize,
    flags: u32,
) -> SyscallResult {
    set(cx, &by_path(cx, path, false)?, name, value, size, flags)
}

/// `fsetxattr(2)`.
pub(in crate::syscall) fn fsetxattr(
    cx: &Ctx<'_>,
    fd: i32,
    name: UserAddr,
    value: UserAddr,
    size: usize,
    flags: u32,
) -> SyscallResult {
    set(cx, &by_fd(cx, fd)?, name, value, size, flags)
}

/// `removexattr(2)`.
pub(in crate::syscall) fn removexattr(cx: &Ctx<'_>, path: UserAddr, name: UserAddr) -> SyscallResult {
    remove(cx, &by_path(cx, path, true)?, name)
}

/// `lremovexattr(2)`.
pub(in crate::syscall) fn lremovexattr(cx: &Ctx<'_>, path: UserAddr, name: UserAddr) -> SyscallResult {
    remove(cx, &by_path(cx, path, false)?, name)
}

/// `fremovexattr(2)`.
pub(in crate::syscall) fn fremovexattr(cx: &Ctx<'_>, fd: i32, name: UserAddr) -> SyscallResult {
    remove(cx, &by_fd(cx, fd)?, name)
}
