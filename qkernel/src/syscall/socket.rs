//! Sockets: making, naming, connecting, options. Messages are in `message.rs`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::block::block_on;
use crate::fs::file::{File, OpenFlags};
use crate::limits::RLIMIT_NOFILE;
use crate::net;
use crate::net::ancillary::Ucred;
use crate::net::{AF_UNSPEC, SOL_SOCKET, Socket, SocketFile};
use crate::syscall::context::SyscallResult;
use crate::syscall::event::install_pair;
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::UserAddr;
use machine::sched::wait::PollEvents;

/// Most bytes of an address (`struct sockaddr_storage`).
const ADDRESS_MAX: usize = 128;
/// Most bytes of an option's value.
const OPTION_MAX: usize = 4096;

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
    let [a, b] = net::new_pair(family, kind, protocol, Ucred::of(cx.caller))?;
    let pair = (SocketFile::open(cx, a, flags), SocketFile::open(cx, b, flags));
    install_pair(cx, pair, flags.contains(OpenFlags::CLOEXEC), ends)
}

/// A socket's file by descriptor; `EBADF`, `ENOTSOCK`.
pub fn socket_file(cx: &Ctx<'_>, fd: i32) -> Result<Arc<File>> {
    let file = cx.file(fd)?;
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
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

/// `bind(2)`.
pub(super) fn bind(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len: u32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let address = read_address(cx, addr, len)?;
    SocketFile::of(&file)?.socket.bind(cx, &address).map(|()| 0)
}

/// `listen(2)`.
pub(super) fn listen(cx: &Ctx<'_>, fd: i32, backlog: i32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
    SocketFile::of(&file)?.socket.listen(cx, backlog).map(|()| 0)
}

/// `accept(2)`.
pub(super) fn accept(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len_at: UserAddr) -> SyscallResult {
    accept4(cx, fd, addr, len_at, 0)
}

/// `accept4(2)`.
pub(super) fn accept4(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len_at: UserAddr, flags: u32) -> SyscallResult {
    let (rest, flags) = kind_and_flags(flags)?;
    if rest != 0 {
        return Err(Errno::EINVAL);
    }
    let file = socket_file(cx, fd)?;
    let socket = &SocketFile::of(&file)?.socket;
    // A connection that there is no descriptor for stays in the backlog.
    cx.files().check_room(cx.limit(RLIMIT_NOFILE))?;
    let wait = !file.is_nonblocking();
    let accepted = file.blocking(PollEvents::READABLE, || socket.accept(wait))?;
    let connection = accepted.clone();
    let accepted = SocketFile::open(cx, accepted, flags);
    SocketFile::of(&accepted)?.options.inherit(&SocketFile::of(&file)?.options);
    if !addr.is_null() {
        // The peer may be gone already; it has no name then.
        let peer = connection.peer_name().unwrap_or_else(|_| socket.family().to_ne_bytes().to_vec());
        write_address(cx, addr, len_at, &peer)?;
    }
    cx.install(accepted, flags.contains(OpenFlags::CLOEXEC))
}

/// `connect(2)`.
pub(super) fn connect(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len: u32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let open = SocketFile::of(&file)?;
    let address = read_address(cx, addr, len)?;
    let family = address.first_chunk().map(|family| u16::from_ne_bytes(*family)).ok_or(Errno::EINVAL)?;
    let to = if family == AF_UNSPEC { None } else { Some(open.socket.resolve(cx, &address)?) };
    let creds = Ucred::of(cx.caller);
    let wait = !file.is_nonblocking();
    match file.blocking(PollEvents::WRITABLE, || open.socket.connect(to.as_ref(), creds, wait)) {
        // Time is up (`SO_SNDTIMEO`); the network goes on by itself.
        Err(Errno::EAGAIN) if wait && open.socket.has_host_options() => Err(Errno::EINPROGRESS),
        result => result.map(|()| 0),
    }
}

/// `shutdown(2)`.
pub(super) fn shutdown(cx: &Ctx<'_>, fd: i32, how: u32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    SocketFile::of(&file)?.socket.shutdown(how).map(|()| 0)
}

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
pub(super) fn getsockname(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len_at: UserAddr) -> SyscallResult {
    write_name(cx, fd, addr, len_at, |socket| socket.local_name())
}

/// `getpeername(2)`.
pub(super) fn getpeername(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len_at: UserAddr) -> SyscallResult {
    write_name(cx, fd, addr, len_at, |socket| socket.peer_name())
}

/// `setsockopt(2)`.
pub(super) fn setsockopt(
    cx: &Ctx<'_>,
    fd: i32,
    level: u32,
    name: u32,
    value: UserAddr,
    len: i32,
) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let open = SocketFile::of(&file)?;
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?.min(OPTION_MAX);
    let value: Vec<u8> = cx.user().read_array(value, len)?;
    if level == SOL_SOCKET {
        open.options.set(&*open.socket, name, &value)?;
    } else {
        open.socket.set_option(level, name, &value)?;
    }
    Ok(0)
}

/// `getsockopt(2)`.
pub(super) fn getsockopt(
    cx: &Ctx<'_>,
    fd: i32,
    level: u32,
    name: u32,
    value: UserAddr,
    len_at: UserAddr,
) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let open = SocketFile::of(&file)?;
    let room: i32 = cx.user().read(len_at)?;
    let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
    let found = if level == SOL_SOCKET {
        open.options.get(&*open.socket, name, room)?
    } else {
        open.socket.option(level, name, room)?
    };
    let shown = &found[..found.len().min(room)];
    cx.user().write_bytes(value, shown)?;
    cx.user().write(len_at, &u32::try_from(shown.len()).unwrap_or(u32::MAX))?;
    Ok(0)
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
