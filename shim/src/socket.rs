//! The socket of a pod's shim, by its name: who makes it or removes it holds a lock beside it. So of several that start for one
//! pod one makes the shim, and none finds a shim that is about to end.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The right to make or remove a socket, until it is dropped.
#[derive(Debug)]
pub struct Claim {
    socket: PathBuf,
    lock: PathBuf,
    _held: File,
}

impl Claim {
    /// Waits until nobody else has it. Makes the directory.
    pub fn new(socket: &Path) -> io::Result<Self> {
        if let Some(directory) = socket.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let lock = socket.with_extension("lock");
        loop {
            let mut options = File::options();
            let held = options.write(true).create(true).truncate(false).mode(0o600).open(&lock)?;
            while let Err(error) = flock(&held, FlockOperation::LockExclusive) {
                if error != rustix::io::Errno::INTR {
                    return Err(error.into());
                }
            }
            // Whoever had it may have removed the file; then it locks nothing.
            let own = held.metadata()?;
            if std::fs::metadata(&lock).is_ok_and(|now| (now.dev(), now.ino()) == (own.dev(), own.ino())) {
                return Ok(Self { socket: socket.to_owned(), lock, _held: held });
            }
        }
    }

    /// Whether a shim listens. A shim that is about to end does so nevertheless.
    #[must_use]
    pub fn is_served(&self) -> bool {
        UnixStream::connect(&self.socket).is_ok()
    }

    /// Whether a shim listens, which then stays for a connection to come: it reads a byte, the first one of a request that does
    /// not go on.
    fn holds_server(&self) -> bool {
        UnixStream::connect(&self.socket).is_ok_and(|mut shim| shim.write_all(&[0]).is_ok())
    }

    /// Listens; `None`: a shim does so already.
    pub fn listen(&self) -> io::Result<Option<UnixListener>> {
        let listener = match UnixListener::bind(&self.socket) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if self.holds_server() {
                    return Ok(None);
                }
                // Of a shim that was killed.
                std::fs::remove_file(&self.socket)?;
                UnixListener::bind(&self.socket)?
            }
            result => result?,
        };
        std::fs::set_permissions(&self.socket, std::fs::Permissions::from_mode(0o600))?;
        Ok(Some(listener))
    }

    /// Removes the socket, and the lock.
    pub fn remove(self) {
        // Whoever waits for the lock sees that it has gone, and makes a new one.
        let _ = (std::fs::remove_file(&self.socket), std::fs::remove_file(&self.lock));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_socket_of_a_dead_shim_is_taken_over() {
        let dir = testdir::TempDir::new();
        let path = dir.path().join("inner/socket");
        let listen = || Claim::new(&path).unwrap().listen().unwrap();
        let first = listen().unwrap();
        assert!(listen().is_none());
        drop(first);
        let second = listen();
        assert!(second.is_some() && Claim::new(&path).unwrap().is_served());
        Claim::new(&path).unwrap().remove();
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn of_those_that_start_and_end_at_once_one_serves_at_a_time() {
        let dir = testdir::TempDir::new();
        let (path, serving, served) = (dir.path().join("socket"), AtomicUsize::new(0), AtomicUsize::new(0));
        let life = || {
            for _ in 0..100 {
                let claim = Claim::new(&path).unwrap();
                let Some(listener) = claim.listen().unwrap() else {
                    assert_eq!(serving.load(Ordering::SeqCst), 1, "somebody is there who serves it");
                    continue;
                };
                assert_eq!(serving.fetch_add(1, Ordering::SeqCst), 0, "nobody else does");
                drop(claim);
                // Nobody has removed it, or made another one of its name: a connection comes here.
                let _client = UnixStream::connect(&path).unwrap();
                listener.accept().unwrap();
                let claim = Claim::new(&path).unwrap();
                serving.fetch_sub(1, Ordering::SeqCst);
                served.fetch_add(1, Ordering::SeqCst);
                claim.remove();
            }
        };
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(life))));
        assert!(served.load(Ordering::SeqCst) > 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
    }
}
