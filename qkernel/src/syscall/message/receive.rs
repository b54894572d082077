//! Receiving a message: `recv(2)`.

use abi::word::len32;
use alloc::sync::Arc;

use crate::config::RW_MAX_BYTES;
use crate::fs::file::File;
use crate::net::inbox::{ReceiveHow, Received};
use crate::net::{AF_UNIX, MsgFlags, SocketFile};
use crate::syscall::context::SyscallResult;
use crate::syscall::message::flags_of;
use crate::syscall::socket::{attempt, socket_file};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, UserAddr};
use machine::sched::wait::PollEvents;

/// How a message is to be received.
fn receive_how(open: &SocketFile, flags: MsgFlags) -> ReceiveHow {
    ReceiveHow {
        peek: flags.contains(MsgFlags::PEEK),
        split_senders: open.options.wants_creds(),
        flags,
        ..ReceiveHow::default()
    }
}

/// Receives one message, waiting for it as the flags and the file say.
pub(super) fn receive_message(
    file: &File,
    buf: &mut IoBuf<'_>,
    flags: MsgFlags,
    name: bool,
    control_room: usize,
) -> Result<Received> {
    let open = SocketFile::of(file)?;
    let beside = MsgFlags::OOB | MsgFlags::ERRQUEUE;
    if open.socket.family() == AF_UNIX {
        if flags.contains(MsgFlags::OOB) && !open.socket.has_urgent_bytes() {
            return Err(Errno::EOPNOTSUPP);
        }
        if flags.contains(MsgFlags::ERRQUEUE) {
            return Err(Errno::EAGAIN);
        }
    }
    let dont_wait = flags.intersects(beside | MsgFlags::DONTWAIT);
    let wait = !dont_wait && !file.is_nonblocking();
    let how = ReceiveHow { wait, name, control_room, ..receive_how(open, flags) };
    // As many bytes as the call waits for: all, or the least amount that is set.
    let least = match (open.socket.is_stream() && !how.peek, flags.contains(MsgFlags::WAITALL)) {
        (false, _) => 0,
        (true, true) => usize::MAX,
        (true, false) if open.socket.has_host_options() => 0,
        (true, false) => open.options.least_received(),
    };
    let mut all: Option<Received> = None;
    loop {
        let only_from = all.as_ref().filter(|_| how.split_senders).map(|all| all.creds);
        let how = ReceiveHow { only_from, ..how };
        let got = attempt(file, PollEvents::READABLE, dont_wait, || open.receive(buf, how));
        let got = match (got, &mut all) {
            (Ok(got), None) => {
                let ended = got.bytes == 0 || got.at_mark;
                let whole = !got.files.is_empty();
                all = Some(got);
                ended || whole
            }
            (Ok(more), Some(all)) => {
                all.bytes += more.bytes;
                all.full += more.full;
                let ended = more.bytes == 0 || more.at_mark || !more.files.is_empty();
                all.files.extend(more.files);
                ended
            }
            (Err(error), None) => return Err(error),
            (Err(error), Some(_)) => {
                open.socket.keep_error(error);
                true
            }
        };
        if got || buf.is_empty() || all.as_ref().is_some_and(|all| all.bytes >= least) {
            return Ok(all.unwrap_or_default());
        }
    }
}

/// The number that the call returns: bytes received, or with `MSG_TRUNC` all bytes of the message.
pub(super) fn received_len(received: &Received, flags: MsgFlags) -> u64 {
    (if flags.contains(MsgFlags::TRUNC) { received.full } else { received.bytes }) as u64
}

/// `recvfrom(2)`.
pub(in crate::syscall) fn recvfrom(
    cx: &Ctx<'_>,
    fd: i32,
    addr: UserAddr,
    len: usize,
    flags: u32,
    from: UserAddr,
    from_len: UserAddr,
) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let flags = flags_of(flags);
    let mut buf = IoBuf::user(cx.aspace(), addr, len.min(RW_MAX_BYTES));
    let received = receive_message(&file, &mut buf, flags, !from.is_null(), 0)?;
    if !from.is_null() {
        let room: i32 = cx.user().read(from_len)?;
        let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
        let name = sender_name(&received);
        cx.user().write_bytes(from, &name[..name.len().min(room)])?;
        cx.user().write(from_len, &len32(name.len()))?;
    }
    Ok(received_len(&received, flags))
}

/// The sender's address as it is shown: nothing when it has no name.
pub(super) fn sender_name(received: &Received) -> Arc<[u8]> {
    received.from.clone().unwrap_or_default()
}
