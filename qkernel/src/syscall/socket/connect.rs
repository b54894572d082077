//! Connecting: `bind(2)`, `listen(2)`, `accept(2)`, `connect(2)`, `shutdown(2)`.

use crate::fs::file::OpenFlags;
use crate::fs::sigio;
use crate::limits::RLIMIT_NOFILE;
use crate::net::ancillary::PeerCreds;
use crate::net::{AF_UNSPEC, SocketFile};
use crate::syscall::context::SyscallResult;
use crate::syscall::socket::{kind_and_flags, read_address, socket_file, write_address};
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;
use machine::sched::wait::PollEvents;

/// `bind(2)`.
pub(in crate::syscall) fn bind(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len: u32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let address = read_address(cx, addr, len)?;
    SocketFile::of(&file)?.socket.bind(cx, &address).map(|()| 0)
}

/// `listen(2)`.
pub(in crate::syscall) fn listen(cx: &Ctx<'_>, fd: i32, backlog: i32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
    SocketFile::of(&file)?.socket.listen(cx, backlog).map(|()| 0)
}

/// `accept(2)`.
pub(in crate::syscall) fn accept(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len_at: UserAddr) -> SyscallResult {
    accept4(cx, fd, addr, len_at, 0)
}

/// `accept4(2)`.
pub(in crate::syscall) fn accept4(
    cx: &Ctx<'_>,
    fd: i32,
    addr: UserAddr,
    len_at: UserAddr,
    flags: u32,
) -> SyscallResult {
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
    let options = &SocketFile::of(&accepted)?.options;
    options.inherit(&SocketFile::of(&file)?.options);
    connection.set_wants_creds(options.wants_creds());
    if !addr.is_null() {
        // The peer may be gone already; it has no name then.
        let peer = connection.peer_name().unwrap_or_else(|_| socket.family().to_ne_bytes().to_vec());
        write_address(cx, addr, len_at, &peer)?;
    }
    cx.install(accepted, flags.contains(OpenFlags::CLOEXEC))
}

/// `connect(2)`.
pub(in crate::syscall) fn connect(cx: &Ctx<'_>, fd: i32, addr: UserAddr, len: u32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let open = SocketFile::of(&file)?;
    let address = read_address(cx, addr, len)?;
    let family = address.first_chunk().map(|family| u16::from_ne_bytes(*family)).ok_or(Errno::EINVAL)?;
    let to = if family == AF_UNSPEC { None } else { Some(open.socket.resolve(cx, &address)?) };
    if open.options.wants_creds() && to.is_some() {
        open.socket.autobind()?;
    }
    let creds = PeerCreds::of(cx.caller);
    let wait = !file.is_nonblocking();
    match file.blocking(PollEvents::WRITABLE, || open.socket.connect(to.as_ref(), creds.clone(), wait)) {
        // Time is up (`SO_SNDTIMEO`); the network goes on by itself.
        Err(Errno::EAGAIN) if wait && open.socket.has_host_options() => Err(Errno::EINPROGRESS),
        Err(Errno::EINPROGRESS) => {
            sigio::found_full(&file);
            Err(Errno::EINPROGRESS)
        }
        result => result.map(|()| 0),
    }
}

/// `shutdown(2)`.
pub(in crate::syscall) fn shutdown(cx: &Ctx<'_>, fd: i32, how: u32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    SocketFile::of(&file)?.socket.shutdown(how).map(|()| 0)
}
