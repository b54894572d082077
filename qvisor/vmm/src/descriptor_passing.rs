//! Descriptor passing over Unix sockets (`SCM_RIGHTS`), and credentials of senders (`SCM_CREDENTIALS`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::process;

/// Most descriptors beside one message.
const MOST: usize = 128;

/// The control message with descriptors, as `cmsg(3)` lays it out.
#[repr(C, align(8))]
struct Ancillary {
    header: libc::cmsghdr,
    fds: [RawFd; MOST],
}

const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const _: () = assert!(HEADER_BYTES.is_multiple_of(8));

impl Ancillary {
    fn new(len: usize) -> Self {
        let header =
            libc::cmsghdr { cmsg_len: len, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
        Self { header, fds: [-1; MOST] }
    }
}

/// Sends descriptors (at most 128), with some bytes beside them (at least one), over a Unix socket; `flags` as
/// `sendmsg(2)`, which raises no signal. Result: the number of bytes sent; the descriptors go with the first.
pub fn send(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>], bytes: &[u8], flags: i32) -> io::Result<usize> {
    if fds.len() > MOST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut ancillary = Ancillary::new(HEADER_BYTES + size_of_val(fds));
    ancillary.fds.iter_mut().zip(fds).for_each(|(slot, fd)| *slot = fd.as_raw_fd());
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid header without name and flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        message.msg_control = (&raw mut ancillary).cast();
        message.msg_controllen = (HEADER_BYTES + size_of_val(fds)).next_multiple_of(8);
    }
    // SAFETY: every pointer is to a live value, and the lengths are within them; the bytes are only read.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags | libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Connects to a Unix socket that the caller or root listens to. Another user may have put a socket in its place, and
/// must not get the bytes and descriptors that are sent there.
pub fn connect_to_own(path: &Path) -> io::Result<UnixStream> {
    let socket = UnixStream::connect(path)?;
    let (user, listener) = (process::effective_user(), process::peer_user(&socket)?);
    if (listener != 0 && listener != user) || !process::is_one_user(listener) {
        let why = format!("it is user {listener} who listens there, not user {user}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(socket)
}

/// The control message with the sender's credentials.
#[repr(C, align(8))]
struct Claimed {
    header: libc::cmsghdr,
    who: libc::ucred,
}

/// Sends bytes as another user, over a Unix socket. Only a process that may become that user can do so.
pub fn send_as(socket: BorrowedFd<'_>, user: u32, bytes: &[u8]) -> io::Result<()> {
    let who = libc::ucred { pid: process::id(), uid: user, gid: process::effective_group() };
    let len = HEADER_BYTES + size_of_val(&who);
    let header =
        libc::cmsghdr { cmsg_len: len, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_CREDENTIALS };
    let mut claimed = Claimed { header, who };
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid header without name and flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut claimed).cast();
    message.msg_controllen = size_of::<Claimed>();
    // SAFETY: every pointer is to a live value, and the lengths are within them; the bytes are only read.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// From now on, bytes that come over a Unix socket, or over the connections of one that listens, come with their
/// sender's credentials.
pub fn ask_for_senders(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = libc::socklen_t::try_from(size_of_val(&on)).unwrap_or(0);
    // SAFETY: `on` is live for the call, and `len` its size.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, (&raw const on).cast(), len)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Bytes that were received in one piece, all of it from one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// 0: the other side will send no more.
    pub len: usize,
    /// The user id in the sender's credentials, which the host has checked, if it was asked for ([`ask_for_senders`]).
    pub sender: Option<u32>,
}

/// Room for the control messages that may come: credentials, and descriptors.
#[repr(C, align(8))]
struct Beside([u8; size_of::<Ancillary>() + size_of::<Claimed>()]);

/// Takes the bytes that have come, and the descriptors beside them; does not wait. `None`: nothing has come.
pub fn receive_now(socket: &UnixStream, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Option<Received> {
    let mut beside = Beside([0; _]);
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut beside).cast();
    message.msg_controllen = size_of::<Beside>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer is to a live value, and the lengths are theirs.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let Ok(len) = usize::try_from(got) else {
        let is_waiting = io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
        return if is_waiting { None } else { Some(Received { len: 0, sender: None }) };
    };
    let mut sender = None;
    // SAFETY: the call has filled in the header and what is beside the message, which are both live.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: `next` is within what is beside the message, aligned, and followed by what its length says.
        let (header, data) = unsafe { (next.read(), libc::CMSG_DATA(next)) };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                let count = header.cmsg_len.saturating_sub(HEADER_BYTES) / size_of::<RawFd>();
                for at in 0..count {
                    // SAFETY: the call has just made this descriptor, and it is in nobody else's hands.
                    fds.push(unsafe { OwnedFd::from_raw_fd(data.cast::<RawFd>().add(at).read_unaligned()) });
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                // SAFETY: this is what such a message holds.
                sender = Some(unsafe { data.cast::<libc::ucred>().read_unaligned() }.uid);
            }
            _ => {}
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Some(Received { len, sender })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn descriptors_arrive_with_the_first_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let null = File::open("/dev/null").unwrap();
        let sent = send(ours.as_fd(), &[writer.as_fd(), null.as_fd(), null.as_fd()], b"hello", 0);
        assert_eq!(sent.unwrap(), 5);
        drop(writer);
        let (mut bytes, mut fds) = ([0; 2], Vec::new());
        let got = |len| Some(Received { len, sender: None });
        assert_eq!(receive_now(&theirs, &mut bytes, &mut fds), got(2));
        assert_eq!(fds.len(), 3);
        assert_eq!(receive_now(&theirs, &mut [0; 9], &mut fds), got(3));
        assert_eq!((receive_now(&theirs, &mut bytes, &mut fds), fds.len()), (None, 3));
        let mut writer = File::from(fds.remove(0));
        writer.write_all(b"x").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        drop(ours);
        assert_eq!(receive_now(&theirs, &mut bytes, &mut fds), got(0));
    }

    #[test]
    fn what_is_for_the_caller_goes_to_nobody_else() {
        let dir = testdir::TempDir::new();
        let (own, theirs) = (dir.path().join("own"), dir.path().join("theirs"));
        let _own = std::os::unix::net::UnixListener::bind(&own).unwrap();
        assert!(connect_to_own(&own).is_ok());
        if process::effective_user() != 0 {
            return;
        }
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let listener = std::thread::scope(|scope| {
            let stranger = scope.spawn(|| {
                // SAFETY: integers only; the system call itself is for this thread alone, which ends.
                unsafe { libc::syscall(libc::SYS_setresuid, 1234, 1234, 1234) };
                std::os::unix::net::UnixListener::bind(&theirs).unwrap()
            });
            stranger.join().unwrap()
        });
        assert!(connect_to_own(&theirs).unwrap_err().to_string().contains("user 1234"));
        drop(listener);
    }

    #[test]
    fn senders_are_told_when_asked_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ask_for_senders(theirs.as_fd()).unwrap();
        let null = File::open("/dev/null").unwrap();
        let (mut bytes, mut fds) = ([0; 9], Vec::new());
        send(ours.as_fd(), &[null.as_fd(); 2], b"x", 0).unwrap();
        // SAFETY: takes nothing and cannot fail.
        let user = unsafe { libc::getuid() };
        let got = |len, sender| Some(Received { len, sender: Some(sender) });
        assert_eq!((receive_now(&theirs, &mut bytes, &mut fds), fds.len()), (got(1, user), 2));
        // Bytes of two users do not come in one piece, and only root can send as another user.
        (&ours).write_all(b"y").unwrap();
        if send_as(ours.as_fd(), user + 77, b"zz").is_ok() {
            assert_eq!(user, 0);
            assert_eq!(receive_now(&theirs, &mut bytes, &mut fds), got(1, user));
            assert_eq!(receive_now(&theirs, &mut bytes, &mut fds), got(2, user + 77));
        }
    }

    #[test]
    fn more_than_there_is_room_for_is_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        assert!(send(ours.as_fd(), &[null.as_fd(); MOST + 1], b"x", 0).is_err());
        send(ours.as_fd(), &[null.as_fd(); MOST], b"x", 0).unwrap();
        let mut fds = Vec::new();
        assert_eq!(receive_now(&theirs, &mut [0; 1], &mut fds).unwrap().len, 1);
        assert_eq!(fds.len(), MOST);
    }
}
