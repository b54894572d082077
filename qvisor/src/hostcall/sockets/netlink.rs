//! `NETLINK_ROUTE`: reads only, and only from the kernel.

use super::super::guest::GuestBuffers;
use super::super::sys::Errno;
use super::{SocketKind, sys};

/// Most bytes of requests in one message.
const REQUESTS_MAX: usize = 64 << 10;
/// Bytes of a `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `RTM_GETLINK`, `RTM_GETADDR`, `RTM_GETROUTE`, `RTM_GETNEIGH`, `RTM_GETRULE`.
const READS: [u16; 5] = [18, 22, 26, 30, 34];

/// The group and port words of a `struct sockaddr_nl`.
fn words(address: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| address.get(at..).and_then(<[u8]>::first_chunk).map(|b| u32::from_ne_bytes(*b));
    Some((word(4)?, word(8)?))
}

/// `EPERM` for an address that joins groups.
pub fn check_bind(kind: SocketKind, address: &[u8]) -> Result<(), Errno> {
    if kind.family != libc::AF_NETLINK {
        return Ok(());
    }
    match words(address) {
        Some((_, 0)) => Ok(()),
        Some(_) => Err(Errno(libc::EPERM)),
        None => Err(Errno(libc::EINVAL)),
    }
}

/// `EPERM` for an address that isn't the kernel's.
pub fn check_destination(kind: SocketKind, address: &[u8]) -> Result<(), Errno> {
    if kind.family != libc::AF_NETLINK || address.is_empty() {
        return Ok(());
    }
    match words(address) {
        Some((0, 0)) => Ok(()),
        Some(_) => Err(Errno(libc::EPERM)),
        None => Err(Errno(libc::EINVAL)),
    }
}

/// Copies the requests out of guest memory, and checks the copy: all of them read.
pub fn copy_requests(buffers: &GuestBuffers<'_>) -> Result<Vec<u8>, Errno> {
    if buffers.total() > REQUESTS_MAX {
        return Err(Errno(libc::EMSGSIZE));
    }
    let bytes = sys::gather(buffers);
    let mut rest = &bytes[..];
    while let Some((header, _)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len < HEADER_BYTES || len > rest.len() {
            return Err(Errno(libc::EINVAL));
        }
        if !READS.contains(&u16::from_ne_bytes([header[4], header[5]])) {
            return Err(Errno(libc::EPERM));
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(bytes)
}
