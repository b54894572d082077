//! Waiting for descriptors, and Unix sockets that nobody waits for.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use super::calls::check;

/// Waits until one of the descriptors can be read or has ended; `timeout_ms` -1: for ever. Result: which of them.
#[must_use]
pub fn wait_readable<const N: usize>(fds: [RawFd; N], timeout_ms: i32) -> [bool; N] {
    let ready = wait_any(&fds, timeout_ms);
    std::array::from_fn(|at| ready.contains(&at))
}

/// Waits until one of any number of descriptors can be read or has ended; `timeout_ms` -1: for ever. Result: the
/// positions of those.
#[must_use]
pub fn wait_any(fds: &[RawFd], timeout_ms: i32) -> Vec<usize> {
    let entry = |fd: &RawFd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut entries: Vec<_> = fds.iter().map(entry).collect();
    // SAFETY: `entries` is live for the call, and as long as is told; a negative descriptor is skipped.
    let result = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout_ms) };
    let ready = entries.iter().enumerate().filter(|(_, entry)| result > 0 && entry.revents != 0);
    ready.map(|(at, _)| at).collect()
}

/// Sends all of the bytes, if there is room for them; does not wait.
#[must_use]
pub fn send_now(socket: &UnixStream, bytes: &[u8]) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the buffer is live and its length true.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).is_ok_and(|sent| sent == bytes.len())
}

/// Takes the bytes that have come; does not wait. `Some(0)`: the other side will send no more; `None`: nothing has
/// come.
pub fn receive_now(socket: &UnixStream, bytes: &mut [u8]) -> Option<usize> {
    // SAFETY: the buffer is live and its length true.
    let got =
        unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
    match usize::try_from(got) {
        Ok(got) => Some(got),
        Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => None,
        Err(_) => Some(0),
    }
}

/// Whether the other side is gone, and has left nothing to read.
#[must_use]
pub fn has_hung_up(socket: &UnixStream) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: one byte is live for the call.
    unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, flags) == 0 }
}

/// The user at the other end of a Unix socket.
pub fn peer_user(socket: &UnixStream) -> io::Result<u32> {
    let mut creds = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: `creds` and `len` are live, and `len` is the size of `creds`.
    check(unsafe {
        let option = (&raw mut creds).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, option, &raw mut len)
    })?;
    Ok(creds.uid)
}
