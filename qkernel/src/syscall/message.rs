//! Messages: `send(2)`, `recv(2)`, `sendmsg(2)`, `recvmsg(2)` and their relatives, with their control data.

use abi::word::{len32, low32, to_usize};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::config::RW_MAX_BYTES;
use crate::creds::{CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN};
use crate::fs::file::File;
use crate::fs::pipe::raise_sigpipe;
use crate::limits::RLIMIT_NOFILE;
use crate::net::ancillary::{FILES_MAX, Rights, Ucred};
use crate::net::inbox::{ReceiveHow, Received};
use crate::net::{AF_UNIX, MsgFlags, Outgoing, SOL_SOCKET, SocketFile};
use crate::syscall::context::SyscallResult;
use crate::syscall::poll::read_deadline;
use crate::syscall::socket::{attempt, read_address, socket_file};
use crate::task::context::Ctx;
use machine::errno::{Errno, Result};
use machine::mm::{IoBuf, UserAddr};
use machine::sched::wait::PollEvents;
use machine::time;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const SCM_RIGHTS: u32 = 1;
const SCM_CREDENTIALS: u32 = 2;
/// Most pieces of a vectored call (`UIO_MAXIOV`).
const PIECES_MAX: u64 = 1024;
/// Most bytes of control data a message is sent with.
const CONTROL_MAX: u64 = 16 * 1024;
/// Most messages of one `sendmmsg(2)` or `recvmmsg(2)`.
const MESSAGES_MAX: u32 = 1024;

/// `struct msghdr`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct MsgHdr {
    name: UserAddr,
    name_len: u32,
    pad: u32,
    iov: UserAddr,
    iov_len: u64,
    control: UserAddr,
    control_len: u64,
    flags: u32,
    pad2: u32,
}
const NAME_LEN_AT: u64 = 8;
const CONTROL_LEN_AT: u64 = 40;
const FLAGS_AT: u64 = 48;
/// Bytes of a `struct mmsghdr`, whose length follows the header.
const MMSG_BYTES: u64 = 64;
const MMSG_LEN_AT: u64 = 56;

/// `struct cmsghdr`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
struct CmsgHdr {
    len: u64,
    level: u32,
    kind: u32,
}
const CMSG_BYTES: usize = size_of::<CmsgHdr>();

/// Reads the pieces of a vectored call.
pub fn read_pieces(cx: &Ctx<'_>, iov: UserAddr, count: u64) -> Result<Vec<(UserAddr, usize)>> {
    if count > PIECES_MAX {
        return Err(Errno::EMSGSIZE);
    }
    let raw: Vec<[u64; 2]> = cx.user().read_array(iov, to_usize(count))?;
    let mut left = RW_MAX_BYTES;
    let mut pieces = Vec::with_capacity(raw.len());
    for [addr, len] in raw {
        let len =
            usize::try_from(len).ok().filter(|len| isize::try_from(*len).is_ok()).ok_or(Errno::EINVAL)?;
        let len = len.min(left);
        left -= len;
        pieces.push((UserAddr::new(addr), len));
    }
    Ok(pieces)
}

fn flags_of(flags: u32) -> MsgFlags {
    // Bits without a meaning here are ignored, as on Linux.
    MsgFlags::from_bits_truncate(flags)
}

/// Sends one message, waiting for room as the flags and the file say.
fn send_message(file: &File, buf: &mut IoBuf<'_>, message: &mut Outgoing, flags: MsgFlags) -> SyscallResult {
    let open = SocketFile::of(file)?;
    if open.socket.family() == AF_UNIX && flags.contains(MsgFlags::OOB) {
        return Err(Errno::EOPNOTSUPP);
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
    Ok(done as u64)
}

/// `sendto(2)`.
pub(super) fn sendto(
    cx: &Ctx<'_>,
    fd: i32,
    addr: UserAddr,
    len: usize,
    flags: u32,
    to: UserAddr,
    to_len: u32,
) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    let mut message = Outgoing { creds: Ucred::real(cx.caller), ..Outgoing::default() };
    if !to.is_null() {
        message.to = SocketFile::of(&file)?.socket.destination(cx, &read_address(cx, to, to_len)?)?;
    }
    let mut buf = IoBuf::user(cx.aspace(), addr, len.min(RW_MAX_BYTES));
    send_message(&file, &mut buf, &mut message, flags_of(flags))
}

/// `sendmsg(2)`.
pub(super) fn sendmsg(cx: &Ctx<'_>, fd: i32, header: UserAddr, flags: u32) -> SyscallResult {
    let file = socket_file(cx, fd)?;
    send_header(cx, &file, header, flags_of(flags))
}

fn send_header(cx: &Ctx<'_>, file: &File, header: UserAddr, flags: MsgFlags) -> SyscallResult {
    let header: MsgHdr = cx.user().read(header)?;
    let mut message = Outgoing { creds: Ucred::real(cx.caller), ..Outgoing::default() };
    let family = SocketFile::of(file)?.socket.family();
    read_control(cx, &header, family, &mut message)?;
    if !header.name.is_null() && header.name_len != 0 {
        let address = read_address(cx, header.name, header.name_len)?;
        message.to = SocketFile::of(file)?.socket.destination(cx, &address)?;
    }
    let pieces = read_pieces(cx, header.iov, header.iov_len)?;
    let mut buf = IoBuf::user_pieces(cx.aspace(), pieces);
    send_message(file, &mut buf, &mut message, flags)
}

/// `sendmmsg(2)`.
pub(super) fn sendmmsg(cx: &Ctx<'_>, fd: i32, headers: UserAddr, count: u32, flags: u32) -> SyscallResult {
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

/// Reads the control data of a message to be sent.
fn read_control(cx: &Ctx<'_>, header: &MsgHdr, family: u16, message: &mut Outgoing) -> Result<()> {
    if header.control.is_null() || header.control_len == 0 {
        return Ok(());
    }
    if header.control_len > CONTROL_MAX {
        return Err(Errno::ENOBUFS);
    }
    let control: Vec<u8> = cx.user().read_array(header.control, to_usize(header.control_len))?;
    if family != AF_UNIX {
        return network_control(&control, message);
    }
    let mut files = Vec::new();
    for (level, kind, data) in Cmsgs(&control) {
        let (level, kind, data) = (level, kind, data?);
        match (level, kind) {
            (SOL_SOCKET, SCM_RIGHTS) => {
                for fd in data.chunks_exact(4) {
                    let fd = i32::from_ne_bytes(fd.try_into().map_err(|_| Errno::EINVAL)?);
                    files.push(cx.file(fd)?);
                }
                if files.len() > FILES_MAX {
                    return Err(Errno::EINVAL);
                }
            }
            (SOL_SOCKET, SCM_CREDENTIALS) => message.creds = checked_creds(cx, data)?,
            (SOL_SOCKET, _) => return Err(Errno::EINVAL),
            _ => {}
        }
    }
    if !files.is_empty() {
        message.rights = Some(Rights::new(files, cx.task.creds.get().uid, cx.limit(RLIMIT_NOFILE))?);
    }
    Ok(())
}

/// Control messages for the network: all but those that only have a meaning between processes.
fn network_control(control: &[u8], message: &mut Outgoing) -> Result<()> {
    for (level, kind, data) in Cmsgs(control) {
        let data = data?;
        if level == SOL_SOCKET && matches!(kind, SCM_RIGHTS | SCM_CREDENTIALS) {
            continue;
        }
        let header = CmsgHdr { len: (CMSG_BYTES + data.len()) as u64, level, kind };
        message.control.extend_from_slice(header.as_bytes());
        message.control.extend_from_slice(data);
        message.control.resize(message.control.len().next_multiple_of(8), 0);
    }
    Ok(())
}

/// Credentials a sender claims to have: its own ids, or any if it has the capabilities.
fn checked_creds(cx: &Ctx<'_>, data: &[u8]) -> Result<Ucred> {
    let data: [u8; 12] = data.try_into().map_err(|_| Errno::EINVAL)?;
    let word = |at: usize| u32::from_ne_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
    let claimed = Ucred { pid: word(0), uid: word(4), gid: word(8) };
    let creds = cx.task.creds.get();
    let uid = [creds.uid, creds.euid, creds.suid].contains(&claimed.uid) || creds.has(CAP_SETUID);
    let gid = [creds.gid, creds.egid, creds.sgid].contains(&claimed.gid) || creds.has(CAP_SETGID);
    let pid = claimed.pid == cx.process().pid || creds.has(CAP_SYS_ADMIN);
    if uid && gid && pid { Ok(claimed) } else { Err(Errno::EPERM) }
}

/// The control messages in a buffer: level, kind and data; `EINVAL` for one that isn't whole.
struct Cmsgs<'a>(&'a [u8]);

impl<'a> Iterator for Cmsgs<'a> {
    type Item = (u32, u32, Result<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, _) = self.0.split_first_chunk::<CMSG_BYTES>()?;
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let len = usize::try_from(u64::from(word(0)) | u64::from(word(4)) << 32).unwrap_or(usize::MAX);
        let data = self.0.get(CMSG_BYTES..len).ok_or(Errno::EINVAL);
        let next = len.checked_next_multiple_of(8).unwrap_or(usize::MAX);
        self.0 = if data.is_ok() { self.0.get(next..).unwrap_or_default() } else { &[] };
        Some((word(8), word(12), data))
    }
}

/// How a message is to be received.
fn receive_how(open: &SocketFile, flags: MsgFlags) -> ReceiveHow {
    ReceiveHow {
        peek: flags.contains(MsgFlags::PEEK),
        split_senders: open.options.passes_creds(),
        flags,
        ..ReceiveHow::default()
    }
}

/// Receives one message, waiting for it as the flags and the file say.
fn receive_message(
    file: &File,
    buf: &mut IoBuf<'_>,
    flags: MsgFlags,
    name: bool,
    control_room: usize,
) -> Result<Received> {
    let open = SocketFile::of(file)?;
    let beside = MsgFlags::OOB | MsgFlags::ERRQUEUE;
    if open.socket.family() == AF_UNIX && flags.intersects(beside) {
        return Err(if flags.contains(MsgFlags::OOB) { Errno::EOPNOTSUPP } else { Errno::EAGAIN });
    }
    let dont_wait = flags.intersects(beside | MsgFlags::DONTWAIT);
    let wait = !dont_wait && !file.is_nonblocking();
    let how = ReceiveHow { wait, name, control_room, ..receive_how(open, flags) };
    if open.socket.is_stream() && buf.is_empty() && !flags.intersects(beside) {
        return Ok(Received::default());
    }
    let mut all: Option<Received> = None;
    loop {
        let got = attempt(file, PollEvents::READABLE, dont_wait, || open.socket.receive(buf, how));
        let got = match (got, &mut all) {
            (Ok(got), None) => {
                let ended = got.bytes == 0;
                let whole = !got.files.is_empty();
                all = Some(got);
                ended || whole
            }
            (Ok(more), Some(all)) => {
                all.bytes += more.bytes;
                all.full += more.full;
                let ended = more.bytes == 0 || !more.files.is_empty();
                all.files.extend(more.files);
                ended
            }
            (Err(error), None) => return Err(error),
            (Err(error), Some(_)) => {
                open.socket.keep_error(error);
                true
            }
        };
        let wait_all = flags.contains(MsgFlags::WAITALL) && open.socket.is_stream() && !how.peek;
        if got || !wait_all || buf.is_empty() {
            return Ok(all.unwrap_or_default());
        }
    }
}

/// The number that the call returns: bytes received, or with `MSG_TRUNC` all bytes of the message.
fn received_len(received: &Received, flags: MsgFlags) -> u64 {
    (if flags.contains(MsgFlags::TRUNC) { received.full } else { received.bytes }) as u64
}

/// `recvfrom(2)`.
pub(super) fn recvfrom(
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
fn sender_name(received: &Received) -> Arc<[u8]> {
    received.from.clone().unwrap_or_default()
}

/// `recvmsg(2)`.
pub(super) fn recvmsg(cx: &Ctx<'_>, fd: i32, header: UserAddr, flags: u32) -> SyscallResult {
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
    if SocketFile::of(file)?.options.passes_creds() {
        control.put(SCM_CREDENTIALS, received.creds.unwrap_or(Ucred::NOBODY).as_bytes())?;
    }
    control.put_files(received.files, flags.contains(MsgFlags::CMSG_CLOEXEC))?;
    control.put_raw(&received.control)?;
    if control.cut {
        shown |= MsgFlags::CTRUNC;
    }
    cx.user().write(at.offset(CONTROL_LEN_AT), &control.used)?;
    cx.user().write(at.offset(FLAGS_AT), &shown.bits())?;
    Ok(len)
}

/// Writes control messages to user memory.
struct ControlWriter<'a> {
    cx: &'a Ctx<'a>,
    at: UserAddr,
    left: u64,
    used: u64,
    /// Something didn't fit.
    cut: bool,
}

impl ControlWriter<'_> {
    /// Writes one control message, cut to the room there is.
    fn put(&mut self, kind: u32, data: &[u8]) -> Result<()> {
        if self.at.is_null() || self.left < CMSG_BYTES as u64 {
            self.cut = true;
            return Ok(());
        }
        let room = usize::try_from(self.left).unwrap_or(usize::MAX) - CMSG_BYTES;
        self.cut |= room < data.len();
        let data = &data[..data.len().min(room)];
        let len = (CMSG_BYTES + data.len()) as u64;
        let header = CmsgHdr { len, level: SOL_SOCKET, kind };
        self.cx.user().write(self.at, &header)?;
        self.cx.user().write_bytes(self.at.offset(CMSG_BYTES as u64), data)?;
        let step = len.next_multiple_of(8).min(self.left);
        self.at = self.at.offset(step);
        self.left -= step;
        self.used += step;
        Ok(())
    }

    /// Writes whole control messages.
    fn put_raw(&mut self, messages: &[u8]) -> Result<()> {
        let fit = messages.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.cut |= fit < messages.len();
        self.cx.user().write_bytes(self.at, &messages[..fit])?;
        self.at = self.at.offset(fit as u64);
        self.left -= fit as u64;
        self.used += fit as u64;
        Ok(())
    }

    /// Installs files and reports their descriptors; files that there is no room for are closed.
    fn put_files(&mut self, files: Vec<Arc<File>>, close_on_exec: bool) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let room = self.left.saturating_sub(CMSG_BYTES as u64) / 4;
        let room = if self.at.is_null() { 0 } else { usize::try_from(room).unwrap_or(usize::MAX) };
        let wanted = files.len();
        let mut fds: Vec<u8> = Vec::new();
        for file in files.into_iter().take(room) {
            let Ok(fd) = self.cx.install(file, close_on_exec) else { break };
            fds.extend_from_slice(&low32(fd).to_ne_bytes());
        }
        self.cut |= fds.len() / 4 < wanted;
        if fds.is_empty() { Ok(()) } else { self.put(SCM_RIGHTS, &fds) }
    }
}

/// `recvmmsg(2)`.
pub(super) fn recvmmsg(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_are_walked_and_checked() {
        let mut control = Vec::new();
        control.extend_from_slice(CmsgHdr { len: 20, level: 1, kind: 1 }.as_bytes());
        control.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0]);
        control.extend_from_slice(CmsgHdr { len: 16, level: 1, kind: 2 }.as_bytes());
        let list: Vec<_> = Cmsgs(&control).collect();
        assert_eq!(list, [(1, 1, Ok(&[5u8, 0, 0, 0][..])), (1, 2, Ok(&[][..]))]);
        for bad in [0u64, 15, 1000, u64::MAX] {
            let header = CmsgHdr { len: bad, level: 1, kind: 1 };
            let list: Vec<_> = Cmsgs(header.as_bytes()).collect();
            assert_eq!(list, [(1, 1, Err(Errno::EINVAL))]);
        }
    }
}
