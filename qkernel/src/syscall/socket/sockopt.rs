//! `setsockopt(2)` and `getsockopt(2)`.

use abi::word::{len32, low32};
use alloc::vec::Vec;

use crate::net::options::{SO_PEERGROUPS, SO_PEERPIDFD};
use crate::net::{SOL_SOCKET, SocketFile};
use crate::syscall::context::SyscallResult;
use crate::syscall::pidfd;
use crate::syscall::socket::socket_file;
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::UserAddr;

/// Most bytes of an option's value.
const OPTION_MAX: usize = 4096;

/// `setsockopt(2)`.
pub(in crate::syscall) fn setsockopt(
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
pub(in crate::syscall) fn getsockopt(
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
    if (level, name) == (SOL_SOCKET, SO_PEERPIDFD) {
        return peer_pidfd(cx, open, value, len_at, room);
    }
    if (level, name) == (SOL_SOCKET, SO_PEERGROUPS) {
        let needed = open.socket.peer_creds().ok_or(Errno::ENODATA)?.groups.len() * size_of::<u32>();
        if room < needed {
            cx.user().write(len_at, &len32(needed))?;
            return Err(Errno::ERANGE);
        }
    }
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

/// `SO_PEERPIDFD`: opens the peer's process.
fn peer_pidfd(
    cx: &Ctx<'_>,
    open: &SocketFile,
    value: UserAddr,
    len_at: UserAddr,
    room: usize,
) -> SyscallResult {
    let peer = open.socket.peer_creds().ok_or(Errno::ENODATA)?;
    let file = pidfd::of_sender(cx, peer.creds)?;
    let fd = low32(cx.install(file, true)?);
    let bytes = fd.to_ne_bytes();
    let shown = &bytes[..bytes.len().min(room)];
    let written =
        cx.user().write_bytes(value, shown).and_then(|()| cx.user().write(len_at, &len32(shown.len())));
    if written.is_err() {
        cx.files().close(fd.cast_signed())?;
    }
    written.map(|()| 0)
}
