//! Sockets: `socket(2)`, `socketpair(2)`, and addresses. Messages are in `message`.

pub(super) mod connect;
pub(super) mod sockname;
pub(super) mod sockopt;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::block::block_on;
use crate::fs::file::{File, OpenFlags};
use crate::net;
use crate::net::SocketFile;
use crate::net::ancillary::PeerCreds;
use crate::syscall::context::SyscallResult;
use crate::syscall::event::install_pair;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::sched::wait::PollEvents;

/// Most bytes of an address (`struct sockaddr_storage`).
const ADDRESS_MAX: usize = 128;

/// Kind and flags out of the `type` argument.
fn kind_and_flags(kind: u32) -> Result<(u32, OpenFlags)> {
    let flags = OpenFlags::from_bits(kind & !0xf)
        .filter(|flags| (OpenFlags::NONBLOCK | OpenFlags::CLOEXEC).contains(*flags));
    Ok((kind & 0xf, flags.ok_or(Errno::EINVAL)?))
}

/// `socket(2)`.
pub(super) fn socket(cx: &Ctx<'_>, family: u32, kind: u32, protocol: u32) -> SyscallResult {
    let (kind, flags) = kind_and_flags(kind)?;
    let socket = net::new_socket(family, kind, protocol)?;
    cx.install(SocketFile::open(cx, socket, flags), flags.contains(OpenFlags::CLOEXEC))
}

/// `socketpair(2)`.
pub(super) fn socketpair(
    cx: &Ctx<'_>,
    family: u32,
    kind: u32,
    protocol: u32,
    ends: UserAddr,
) -> SyscallResult {
    let (kind, flags) = kind_and_flags(kind)?;
    let [a, b] = net::new_pair(family, kind, protocol, &PeerCreds::of(cx.caller))?;
    let pair = (SocketFile::open(cx, a, flags), SocketFile::open(cx, b, flags));
    install_pair(cx, pair, flags.contains(OpenFlags::CLOEXEC), ends)
}

/// A socket's file by descriptor; `EBADF`, `ENOTSOCK`.
pub fn socket_file(cx: &Ctx<'_>, fd: i32) -> Result<Arc<File>> {
    let file = cx.opened(fd)?;
    SocketFile::of(&file)?;
    Ok(file)
}

/// Reads an address.
pub fn read_address(cx: &Ctx<'_>, addr: UserAddr, len: u32) -> Result<Vec<u8>> {
    let len = usize::try_from(len).ok().filter(|len| *len <= ADDRESS_MAX).ok_or(Errno::EINVAL)?;
    cx.user().read_array(addr, len)
}

/// Writes an address, cut to the room the caller has, and its real length.
fn write_address(cx: &Ctx<'_>, addr: UserAddr, len_at: UserAddr, address: &[u8]) -> Result<()> {
    if addr.is_null() {
        return Ok(());
    }
    let room: i32 = cx.user().read(len_at)?;
    let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
    cx.user().write_bytes(addr, &address[..address.len().min(room)])?;
    cx.user().write(len_at, &u32::try_from(address.len()).unwrap_or(u32::MAX))
}

/// Waits as [`File::blocking`] does, or not at all.
pub fn attempt<R>(
    file: &File,
    events: PollEvents,
    dont_wait: bool,
    attempt: impl FnMut() -> Result<R>,
) -> Result<R> {
    if dont_wait { block_on(file, events, true, None, attempt) } else { file.blocking(events, attempt) }
}
