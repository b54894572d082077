//! Reading and listing extended attributes: `getxattr(2)`, `listxattr(2)`.

use crate::syscall::context::SyscallResult;
use crate::syscall::xattr::{by_fd, by_path, get, list};
use crate::task::context::Ctx;
use machine::mm::UserAddr;

/// `getxattr(2)`.
pub(in crate::syscall) fn getxattr(
    cx: &Ctx<'_>,
    path: UserAddr,
    name: UserAddr,
    value: UserAddr,
    size: usize,
) -> SyscallResult {
    get(cx, &by_path(cx, path, true)?, name, value, size)
}

/// `lgetxattr(2)`.
pub(in crate::syscall) fn lgetxattr(
    cx: &Ctx<'_>,
    path: UserAddr,
    name: UserAddr,
    value: UserAddr,
    size: usize,
) -> SyscallResult {
    get(cx, &by_path(cx, path, false)?, name, value, size)
}

/// `fgetxattr(2)`.
pub(in crate::syscall) fn fgetxattr(
    cx: &Ctx<'_>,
    fd: i32,
    name: UserAddr,
    value: UserAddr,
    size: usize,
) -> SyscallResult {
    get(cx, &by_fd(cx, fd)?, name, value, size)
}

/// `listxattr(2)`.
pub(in crate::syscall) fn listxattr(
    cx: &Ctx<'_>,
    path: UserAddr,
    names: UserAddr,
    size: usize,
) -> SyscallResult {
    list(cx, &by_path(cx, path, true)?, names, size)
}

/// `llistxattr(2)`.
pub(in crate::syscall) fn llistxattr(
    cx: &Ctx<'_>,
    path: UserAddr,
    names: UserAddr,
    size: usize,
) -> SyscallResult {
    list(cx, &by_path(cx, path, false)?, names, size)
}

/// `flistxattr(2)`.
pub(in crate::syscall) fn flistxattr(cx: &Ctx<'_>, fd: i32, names: UserAddr, size: usize) -> SyscallResult {
    list(cx, &by_fd(cx, fd)?, names, size)
}
