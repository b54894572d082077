//! Descriptors on their way over Unix sockets (`SCM_RIGHTS`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// Most descriptors beside one message.
const MOST: usize = 8;

/// What goes beside a message, as `cmsg(3)` lays it out.
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

/// Sends descriptors (at most 8), with some bytes beside them (at least one), over a Unix socket; `flags` as `sendmsg(2)`,
/// which raises no signal. Result: how many bytes went; the descriptors are with the first.
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

/// Takes what has come, and the descriptors beside it; does not wait. `Some(0)`: the other side will send no more; `None`:
/// nothing has come.
pub fn receive_now(socket: &UnixStream, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> Option<usize> {
    let mut ancillary = Ancillary::new(0);
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut ancillary).cast();
    message.msg_controllen = size_of::<Ancillary>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer is to a live value, and the lengths are theirs.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let Ok(got) = usize::try_from(got) else {
        let is_waiting = io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
        return if is_waiting { None } else { Some(0) };
    };
    let header = &ancillary.header;
    let is_rights = header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS;
    if message.msg_controllen >= HEADER_BYTES && is_rights {
        let count = header.cmsg_len.saturating_sub(HEADER_BYTES) / size_of::<RawFd>();
        for fd in ancillary.fds.iter().take(count).filter(|fd| **fd >= 0) {
            // SAFETY: the call has just made this descriptor, and it is in nobody else's hands.
            fds.push(unsafe { OwnedFd::from_raw_fd(*fd) });
        }
    }
    Some(got)
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
        assert_eq!(receive_now(&theirs, &mut bytes, &mut fds), Some(2));
        assert_eq!(fds.len(), 3);
        assert_eq!(receive_now(&theirs, &mut [0; 9], &mut fds), Some(3));
        assert_eq!((receive_now(&theirs, &mut bytes, &mut fds), fds.len()), (None, 3));
        let mut writer = File::from(fds.remove(0));
        writer.write_all(b"x").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        drop(ours);
        assert_eq!(receive_now(&theirs, &mut bytes, &mut fds), Some(0));
    }

    #[test]
    fn more_than_there_is_room_for_is_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        assert!(send(ours.as_fd(), &[null.as_fd(); MOST + 1], b"x", 0).is_err());
        send(ours.as_fd(), &[null.as_fd(); MOST], b"x", 0).unwrap();
        let mut fds = Vec::new();
        assert_eq!(receive_now(&theirs, &mut [0; 1], &mut fds), Some(1));
        assert_eq!(fds.len(), MOST);
    }
}
