//! Receiving messages with headers: `recvmsg(2)`, `recvmmsg(2)`.

use abi::word::{len32, low32};

use crate::fs::file::File;
use crate::net::ancillary::Ucred;
use crate::net::{AF_UNIX, MsgFlags, SocketFile};
use crate::syscall::context::SyscallResult;
use crate::syscall::message::control_writer::ControlWriter;
use crate::syscall::message::receive::{receive_message, received_len, sender_name};
use crate::syscall::message::{
    CONTROL_LEN_AT, FLAGS_AT, MESSAGES_MAX, MMSG_BYTES, MMSG_LEN_AT, MsgHdr, NAME_LEN_AT, SCM_CREDENTIALS,
    flags_of, read_pieces,
};
use crate::syscall::socket::socket_file;
use crate::syscall::timeout::read_deadline;
use crate::task::context::Ctx;
use machine::mm::{IoBuf, UserAddr};
use machine::time;
use zerocopy::IntoBytes;

/// `recvmsg(2)`.
pub(in crate::syscall) fn recvmsg(cx: &Ctx<'_>, fd: i32, header: UserAddr, flags: u32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    receive_header(cx, &file, header, flags_of(flags))
}

fn receive_header(cx: &Ctx<'_>, file: &File, at: UserAddr, flags: MsgFlags) -> SyscallResult {
    let header: MsgHdr = cx.user().read(at)?;
    let pieces = read_pieces(cx, header.iov, header.iov_len)?;
    let mut buf = IoBuf::user_pieces(cx.aspace(), pieces);
    let control_room = if header.control.is_null() { 0 } else { header.control_len };
    let control_room = usize::try_from(control_room).unwrap_or(usize::MAX);
    let received = receive_message(file, &mut buf, flags, !header.name.is_null(), control_room)?;
    let len = received_len(&received, flags);
    let mut shown = (flags & MsgFlags::CMSG_CLOEXEC) | received.flags;
    if received.full > received.bytes {
        shown |= MsgFlags::TRUNC;
    }
    if !header.name.is_null() {
        let name = sender_name(&received);
        let room = name.len().min(header.name_len as usize);
        cx.user().write_bytes(header.name, &name[..room])?;
        cx.user().write(at.offset(NAME_LEN_AT), &len32(name.len()))?;
    }
    let mut control = ControlWriter { cx, at: header.control, left: header.control_len, used: 0, cut: false };
    let open = SocketFile::of(file)?;
    let options = &open.options;
    if open.socket.family() == AF_UNIX
        && !open.socket.is_stream()
        && received.from.is_some()
        && let Some((kind, stamp)) = options.stamp(time::realtime_ns())
    {
        control.put(kind, stamp.as_bytes())?;
    }
    // At its end a stream says that it was process 0, others say nothing.
    let is_end = received.from.is_none();
    if options.passes_creds() && (!is_end || open.socket.is_stream()) {
        let unknown = if is_end { Ucred::default() } else { Ucred::UNKNOWN };
        let creds = received.creds.map_or(unknown, |creds| creds.seen_by(cx.caller));
        control.put(SCM_CREDENTIALS, creds.as_bytes())?;
    }
    control.put_files(received.files, flags.contains(MsgFlags::CMSG_CLOEXEC))?;
    if options.passes_pidfd() {
        control.put_pidfd(received.creds)?;
    }
    control.put_raw(&received.control)?;
    if control.cut {
        shown |= MsgFlags::CTRUNC;
    }
    cx.user().write(at.offset(CONTROL_LEN_AT), &control.used)?;
    cx.user().write(at.offset(FLAGS_AT), &shown.bits())?;
    Ok(len)
}

/// `recvmmsg(2)`.
pub(in crate::syscall) fn recvmmsg(
    cx: &Ctx<'_>,
    fd: i32,
    headers: UserAddr,
    count: u32,
    flags: u32,
    timeout: UserAddr,
) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let mut flags = flags_of(flags);
    let deadline_ns = read_deadline(cx, timeout)?;
    let mut done = 0;
    for at in 0..count.min(MESSAGES_MAX) {
        let header = headers.offset(u64::from(at) * MMSG_BYTES);
        let received = receive_header(cx, &file, header, flags)
            .and_then(|len| cx.user().write(header.offset(MMSG_LEN_AT), &low32(len)));
        match received {
            Ok(()) => done += 1,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
        if flags.contains(MsgFlags::WAITFORONE) {
            flags |= MsgFlags::DONTWAIT;
        }
        // As on Linux, the time is looked at only between messages.
        if deadline_ns.is_some_and(|deadline| time::monotonic_ns() >= deadline) {
            break;
        }
    }
    Ok(done)
}
