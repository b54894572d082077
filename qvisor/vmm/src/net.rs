//! The network a sandbox's sockets live in: a network namespace of the host, entered before the sandbox starts.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host_paths::HostPaths;

/// `ioctl` that answers the `CLONE_NEW*` flag of a namespace's kind.
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;

/// The network that a sandbox sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// The caller's.
    #[default]
    Host,
    /// A fresh one of its own that has nothing but a loopback interface.
    None,
    /// The network namespace that this path names.
    Path(PathBuf),
}

/// Whose settings a network has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The host's own programs go by them.
    Host,
    /// Containers alone are in it.
    Container,
}

/// Whether the sandbox's sockets may choose the device that their messages take.
static DEVICES: AtomicBool = AtomicBool::new(false);

/// Says whose the network is that the sandbox's sockets are in. Before the jail is closed. Where nobody can tell whether a network is
/// the host's, it may be.
pub fn belongs_to(network: &Network, owner: Owner) {
    let is_sure = *network == Network::None || std::fs::metadata("/proc/1/ns/net").is_ok();
    DEVICES.store(owner == Owner::Container && is_sure, Ordering::Relaxed);
}

/// Whether a socket may choose the device that its messages take. A device leads around the routes, and those of the host are
/// not to be led around.
#[must_use]
pub fn devices_may_be_chosen() -> bool {
    DEVICES.load(Ordering::Relaxed)
}

/// Why a network could not be had.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("cannot make a network namespace: {source}; run as root, or pass --net host")]
    New { source: io::Error },
    #[error("cannot bring up the loopback interface: {source}; pass --net host")]
    Loopback { source: io::Error },
    #[error(
        "cannot open network namespace {path}: {source}; name one that exists, as /run/netns/NAME or /proc/PID/ns/net"
    )]
    Open { path: PathBuf, source: io::Error },
    #[error(
        "cannot use {path} as a network namespace: it is none; name one, as /run/netns/NAME or /proc/PID/ns/net"
    )]
    NotOne { path: PathBuf },
    #[error("cannot enter network namespace {path}: {source}; run as root, or name one of this user's own")]
    Enter { path: PathBuf, source: io::Error },
}

/// Moves this process into the network. Only while it has a single thread, after it entered its user namespace.
pub fn enter(_: &HostPaths, network: &Network) -> Result<Owner, NetError> {
    match network {
        Network::Host => Ok(Owner::Host),
        Network::None => {
            // SAFETY: integers only.
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map_err(|source| NetError::New { source })?;
            raise_loopback().map_err(|source| NetError::Loopback { source })?;
            Ok(Owner::Container)
        }
        Network::Path(path) => enter_path(path),
    }
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn enter_path(path: &Path) -> Result<Owner, NetError> {
    // Without waiting, should it be a FIFO, and without getting a terminal, should it be one.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|source| NetError::Open { path: path.to_owned(), source })?;
    // SAFETY: the request takes no argument; files that are no namespaces refuse it.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
    if kind != libc::CLONE_NEWNET {
        return Err(NetError::NotOne { path: path.to_owned() });
    }
    // Before this process leaves its own.
    let owner = owner_of(&file);
    // SAFETY: integers only; the descriptor is live.
    check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) })
        .map_err(|source| NetError::Enter { path: path.to_owned(), source })?;
    Ok(owner)
}

/// A network is the host's if this process is in it, or the host's first one, where that may be seen.
fn owner_of(namespace: &File) -> Owner {
    let is_in = |known: &str| -> io::Result<bool> {
        let (one, other) = (std::fs::metadata(known)?, namespace.metadata()?);
        Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
    };
    let is_hosts =
        ["/proc/self/ns/net", "/proc/1/ns/net"].into_iter().any(|known| is_in(known).unwrap_or(false));
    if is_hosts { Owner::Host } else { Owner::Container }
}

/// Sets the loopback interface of the current network namespace up, which gives it its addresses.
fn raise_loopback() -> io::Result<()> {
    // SAFETY: integers only.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the call just returned this descriptor.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `ifreq` is plain integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    // SAFETY: the request reads and writes one `ifreq`, which is live; the union's field is the one it uses.
    unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request))?;
        request.ifr_ifru.ifru_flags |= i16::try_from(libc::IFF_UP).unwrap_or(1);
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(network: &Network) -> Result<Owner, NetError> {
        super::enter(&HostPaths::of_new_process(), network)
    }

    #[test]
    fn a_namespace_is_entered_by_its_path() {
        let own = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let outside = own();
        let (to_us, from_it) = std::sync::mpsc::channel();
        let (to_it, from_us) = std::sync::mpsc::channel::<()>();
        // Namespaces of the network are a thread's own.
        let holder = std::thread::spawn(move || {
            enter(&Network::None).unwrap();
            // SAFETY: takes nothing and cannot fail.
            to_us.send((unsafe { libc::gettid() }, own())).unwrap();
            let _ = from_us.recv();
        });
        let (thread, inside) = from_it.recv().unwrap();
        assert_ne!(inside, outside);
        let path = format!("/proc/self/task/{thread}/ns/net").into();
        let entered = std::thread::spawn(move || {
            enter(&Network::Path(path)).unwrap();
            own()
        });
        assert_eq!(entered.join().unwrap(), inside);
        assert_eq!(own(), outside);
        drop(to_it);
        holder.join().unwrap();
    }

    #[test]
    fn what_is_no_network_namespace_is_refused() {
        let refused = |path: &str| enter(&Network::Path(path.into())).unwrap_err().to_string();
        assert!(
            refused("/no/such/namespace").starts_with("cannot open network namespace /no/such/namespace")
        );
        for other in ["/", "/dev/null", "/proc/self/ns/mnt", "/proc/self/status"] {
            assert!(refused(other).contains("it is none"), "{other}");
        }
    }
}
