//! Names of Unix sockets: paths, whose node carries the socket, and the abstract name space.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fs::caller::CallerCtx;
use crate::fs::path::Path;
use crate::net::families::AF_UNIX;
use crate::net::socket::Destination;
use crate::net::socket::Socket;
use crate::net::unix::UnixSocket;
use crate::net::unix_host::HostTarget;
use machine::errno::{Errno, Result};
use machine::sched;
use machine::sync::{Rank, SpinLock};

/// Bytes of a name at most (`sun_path`).
const PATH_BYTES: usize = 108;

/// Abstract names by type of socket: as on Linux, sockets of two types may have the same.
type Abstract = BTreeMap<(u32, Vec<u8>), Weak<UnixSocket>>;

static ABSTRACT: SpinLock<Abstract> = SpinLock::new(Rank::Leaf, BTreeMap::new());

/// The content of a `sockaddr_un`.
#[derive(Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// None: the kernel is to choose one.
    Empty,
    /// Without the leading NUL; any bytes, as many as were given.
    Abstract(&'a [u8]),
    Path(&'a [u8]),
}

/// Reads an address; `EINVAL`.
pub fn parse(addr: &[u8]) -> Result<Name<'_>> {
    let (family, name) = addr.split_first_chunk().ok_or(Errno::EINVAL)?;
    if u16::from_ne_bytes(*family) != AF_UNIX || name.len() > PATH_BYTES {
        return Err(Errno::EINVAL);
    }
    match name.split_first() {
        None => Ok(Name::Empty),
        Some((0, rest)) => Ok(Name::Abstract(rest)),
        Some(_) => Ok(Name::Path(name.split(|byte| *byte == 0).next().unwrap_or(name))),
    }
}

/// An address as `getsockname(2)` shows it.
pub fn to_sockaddr(name: &Name<'_>) -> Vec<u8> {
    let mut addr = AF_UNIX.to_ne_bytes().to_vec();
    match name {
        Name::Empty => {}
        Name::Abstract(rest) => {
            addr.push(0);
            addr.extend_from_slice(rest);
        }
        Name::Path(path) => {
            addr.extend_from_slice(path);
            addr.push(0);
        }
    }
    addr
}

/// Gives a socket its name; returns the name's address, and the node of a path. `EADDRINUSE`.
pub fn bind(
    cx: &CallerCtx<'_>,
    name: &Name<'_>,
    socket: &Arc<UnixSocket>,
) -> Result<(Vec<u8>, Option<Path>)> {
    match name {
        Name::Empty => Ok((autobind(socket)?, None)),
        Name::Abstract(rest) => {
            bind_abstract(rest, socket)?;
            Ok((to_sockaddr(name), None))
        }
        Name::Path(path) => Ok((to_sockaddr(name), Some(nodes::make(cx, path, socket)?))),
    }
}

fn bind_abstract(name: &[u8], socket: &Arc<UnixSocket>) -> Result<()> {
    let key = (socket.kind(), name.to_vec());
    let mut table = ABSTRACT.lock();
    if table.get(&key).is_some_and(|other| other.strong_count() != 0) {
        return Err(Errno::EADDRINUSE);
    }
    table.insert(key, Arc::downgrade(socket));
    Ok(())
}

/// Names of five hexadecimal digits.
const NUMBERS: u32 = 0x10_0000;
/// After so many names a task lets others go on.
const BATCH: u32 = 1024;
/// Where the search for a free name begins: behind the one that was found last.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Gives a socket a free abstract name of five hexadecimal digits; returns its address. The caller may sleep.
pub fn autobind(socket: &Arc<UnixSocket>) -> Result<Vec<u8>> {
    for step in 1..=NUMBERS {
        if step % BATCH == 0 {
            sched::go_on()?;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % NUMBERS;
        let name = format!("{number:05x}").into_bytes();
        if bind_abstract(&name, socket).is_ok() {
            return Ok(to_sockaddr(&Name::Abstract(&name)));
        }
    }
    Err(Errno::ENOSPC)
}

/// Gives an abstract name back. (A path stays until it is unlinked.)
pub fn release(addr: &[u8], kind: u32, socket: &Weak<UnixSocket>) {
    if let Ok(Name::Abstract(name)) = parse(addr) {
        let key = (kind, name.to_vec());
        let mut table = ABSTRACT.lock();
        // The sockets a listener accepts have its name, too.
        if table.get(&key).is_some_and(|owner| owner.ptr_eq(socket)) {
            table.remove(&key);
        }
    }
}

/// Abstract names that are taken.
#[cfg(feature = "harness")]
pub fn count() -> usize {
    ABSTRACT.lock().len()
}

/// The socket of a name, or the host's that the name leads to; `ECONNREFUSED` when there is none. `kind`: the type of an abstract
/// one.
pub fn find(cx: &CallerCtx<'_>, name: &Name<'_>, kind: u32) -> Result<Destination> {
    match name {
        Name::Empty => Err(Errno::EINVAL),
        Name::Abstract(rest) => {
            let found = ABSTRACT.lock().get(&(kind, rest.to_vec())).and_then(Weak::upgrade);
            found.map(Destination::Unix).ok_or(Errno::ECONNREFUSED)
        }
        Name::Path(path) => nodes::find(cx, path),
    }
}

/// Sockets in file systems: the node's attachment leads to the socket, and the socket keeps the node.
mod nodes {
    use super::{Arc, CallerCtx, Destination, Errno, HostTarget, Result, UnixSocket, Weak};
    use crate::fs::access;
    use crate::fs::access::{Actor, Want};
    use crate::fs::inode::{NodeKind, S_IFSOCK};
    use crate::fs::path::Path;
    use crate::fs::walk::AT_FDCWD;
    use crate::fs::{names, walk};

    /// The value of a node's attachment.
    struct Node(Weak<UnixSocket>);

    pub fn make(cx: &CallerCtx<'_>, path: &[u8], socket: &Arc<UnixSocket>) -> Result<Path> {
        let actor = Actor::of(cx);
        let start = walk::start(cx, &actor, AT_FDCWD, path)?;
        let place =
            names::mknod(&actor, start, path, NodeKind::Socket, 0o777).map_err(|error| match error {
                Errno::EEXIST => Errno::EADDRINUSE,
                error => error,
            })?;
        let attachment = place.inode.attachment().ok_or(Errno::EOPNOTSUPP)?;
        *attachment.lock() = Some(Arc::new(Node(Arc::downgrade(socket))));
        Ok(place)
    }

    pub fn find(cx: &CallerCtx<'_>, path: &[u8]) -> Result<Destination> {
        let actor = Actor::of(cx);
        let place = walk::resolve(cx, &actor, AT_FDCWD, path, true)?;
        access::check(&actor.creds, &place, Want::WRITE)?;
        if place.inode.kind() != S_IFSOCK {
            return Err(Errno::ECONNREFUSED);
        }
        let attached = place.inode.attachment().and_then(|attachment| attachment.lock().clone());
        let node = attached.and_then(|attached| attached.downcast::<Node>().ok());
        match node {
            // Its listener is, or was, in the sandbox.
            Some(node) => node.0.upgrade().map(Destination::Unix),
            None => HostTarget::new(cx, &place.inode).map(Destination::Host),
        }
        .ok_or(Errno::ECONNREFUSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_linux_does() {
        assert_eq!(parse(b"\x01\0/a\0rest"), Ok(Name::Path(b"/a")));
        assert_eq!(parse(b"\x01\0\0a\0b"), Ok(Name::Abstract(b"a\0b")));
        assert_eq!(parse(b"\x01\0"), Ok(Name::Empty));
        assert_eq!(parse(b"\x02\0/a"), Err(Errno::EINVAL));
        assert_eq!(parse(b"\x01"), Err(Errno::EINVAL));
        assert_eq!(parse(&[&b"\x01\0"[..], &[b'x'; 109]].concat()), Err(Errno::EINVAL));
        assert_eq!(to_sockaddr(&Name::Path(b"/a")), b"\x01\0/a\0");
    }
}
