//! Sending messages: `send(2)`, `sendmsg(2)`, `sendmmsg(2)`.

use abi::word::low32;

use crate::config::RW_MAX_BYTES;
use crate::fs::file::File;
use crate::fs::pipe::raise_sigpipe;
use crate::net::ancillary::SenderCreds;
use crate::net::{AF_UNIX, MsgFlags, Outgoing, SocketFile};
use crate::syscall::context::SyscallResult;
use crate::syscall::message::control::{leave_to_routes, read_control};
use crate::syscall::message::{MESSAGES_MAX, MMSG_BYTES, MMSG_LEN_AT, MsgHdr, flags_of, read_pieces};
use crate::syscall::socket::{attempt, read_address, socket_file};
use crate::task::context::Ctx;
use machine::errno::Errno;
use machine::mm::{IoBuf, UserAddr};
use machine::sched::wait::PollEvents;

/// Sends one message, waiting for room as the flags and the file say.
fn send_message(file: &File, buf: &mut IoBuf<'_>, message: &mut Outgoing, flags: MsgFlags) -> SyscallResult {
    let open = SocketFile::of(file)?;
    let refuses_urgent = || !open.socket.has_urgent_bytes() || buf.is_empty();
    if open.socket.family() == AF_UNIX && flags.contains(MsgFlags::OOB) && refuses_urgent() {
        return Err(Errno::EOPNOTSUPP);
    }
    if open.options.wants_creds() && !open.socket.is_stream() {
        open.socket.autobind()?;
    }
    let dont_wait = flags.contains(MsgFlags::DONTWAIT);
    message.flags = flags;
    message.wait = !dont_wait && !file.is_nonblocking();
    let mut done = 0;
    loop {
        let sent =
            attempt(file, PollEvents::WRITABLE, dont_wait, || open.socket.send(buf, message, &open.options));
        match sent {
            Ok(sent) => done += sent,
            Err(error) if done == 0 => {
                if error == Errno::EPIPE && !flags.contains(MsgFlags::NOSIGNAL) && open.socket.is_stream() {
                    raise_sigpipe();
                }
                return Err(error);
            }
            Err(error) => {
                open.socket.keep_error(error);
                break;
            }
        }
        if buf.is_empty() || !open.socket.is_stream() {
            break;
        }
    }
    if flags.contains(MsgFlags::ZEROCOPY) && done > 0 {
        open.socket.sent_zerocopy();
    }
    Ok(done as u64)
}

/// `sendto(2)`.
pub(in crate::syscall) fn sendto(
    cx: &Ctx<'_>,
    fd: i32,
    addr: UserAddr,
    len: usize,
    flags: u32,
    to: UserAddr,
    to_len: u32,
) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let mut message = Outgoing { creds: SenderCreds::real(cx.caller), ..Outgoing::default() };
    if !to.is_null() {
        message.to = SocketFile::of(&file)?.socket.destination(cx, &read_address(cx, to, to_len)?)?;
    }
    let mut buf = IoBuf::user(cx.aspace(), addr, len.min(RW_MAX_BYTES));
    send_message(&file, &mut buf, &mut message, flags_of(flags))
}

/// `sendmsg(2)`.
pub(in crate::syscall) fn sendmsg(cx: &Ctx<'_>, fd: i32, header: UserAddr, flags: u32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    send_header(cx, &file, header, flags_of(flags))
}

fn send_header(cx: &Ctx<'_>, file: &File, header: UserAddr, flags: MsgFlags) -> SyscallResult {
    let header: MsgHdr = cx.user().read(header)?;
    let mut message = Outgoing { creds: SenderCreds::real(cx.caller), ..Outgoing::default() };
    let family = SocketFile::of(file)?.socket.family();
    read_control(cx, &header, family, &mut message)?;
    if !header.name.is_null() && header.name_len != 0 {
        let address = read_address(cx, header.name, header.name_len)?;
        message.to = SocketFile::of(file)?.socket.destination(cx, &address)?;
    }
    leave_to_routes(&mut message);
    let pieces = read_pieces(cx, header.iov, header.iov_len)?;
    let mut buf = IoBuf::user_pieces(cx.aspace(), pieces);
    send_message(file, &mut buf, &mut message, flags)
}

/// `sendmmsg(2)`.
pub(in crate::syscall) fn sendmmsg(
    cx: &Ctx<'_>,
    fd: i32,
    headers: UserAddr,
    count: u32,
    flags: u32,
) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let mut done = 0;
    for at in 0..count.min(MESSAGES_MAX) {
        let header = headers.offset(u64::from(at) * MMSG_BYTES);
        let sent = send_header(cx, &file, header, flags_of(flags))
            .and_then(|sent| cx.user().write(header.offset(MMSG_LEN_AT), &low32(sent)));
        match sent {
            Ok(()) => done += 1,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}
