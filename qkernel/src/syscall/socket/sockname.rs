//! `getsockname(2)` and `getpeername(2)`.

use alloc::vec::Vec;

use crate::net::{Socket, SocketFile};
use crate::syscall::context::SyscallResult;
use crate::syscall::socket::{socket_file, write_address};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;

fn write_name(
    cx: &Ctx<'_>,
    fd: i32,
    addr: UserAddr,
    len_at: UserAddr,
    name: impl FnOnce(&dyn Socket) -> Result<Vec<u8>>,
) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let name = name(&*SocketFile::of(&file)?.socket)?;
    if addr.is_null() {
        return Err(Errno::EFAULT);
    }
    write_address(cx, addr, len_at, &name).map(|()| 0)
}

/// `getsockname(2)`.
pub(in crate::syscall) fn getsockname(
    cx: &Ctx<'_>,
    fd: i32,
    addr: UserAddr,
    len_at: UserAddr,
) -> SyscallResult {
    write_name(cx, fd, addr, len_at, |socket| socket.local_name())
}

/// `getpeername(2)`.
pub(in crate::syscall) fn getpeername(
    cx: &Ctx<'_>,
    fd: i32,
    addr: UserAddr,
    len_at: UserAddr,
) -> SyscallResult {
    write_name(cx, fd, addr, len_at, |socket| socket.peer_name())
}
