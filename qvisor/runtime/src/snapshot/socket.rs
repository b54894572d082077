//! Sockets that are named by the digest of a snapshot's manifest: of the one process that keeps something of that snapshot ready.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use vmm::directory::Directory;

use crate::control;

/// So many letters of the digest of a snapshot's manifest are the socket's name.
const DIGEST_LETTERS: usize = 32;
/// The ending of the name of the lock of whoever listens at a socket.
const LOCK: &str = ".lock";

/// See the module.
#[derive(Debug)]
pub struct DigestSocket {
    directory: Directory,
    name: String,
}

impl DigestSocket {
    /// The socket for the snapshot whose manifest has this digest.
    #[must_use]
    pub fn of(directory: Directory, digest: &str) -> Self {
        Self { directory, name: digest.get(..DIGEST_LETTERS).unwrap_or(digest).to_owned() }
    }

    /// All that are in a directory, whether somebody listens there or not.
    pub fn all_in(directory: &Directory) -> io::Result<Vec<Self>> {
        let names = directory.names()?.into_iter().filter_map(|name| name.into_string().ok());
        let mut names: Vec<_> = names.filter(|name| !name.ends_with(LOCK)).collect();
        names.sort();
        names.into_iter().map(|name| Ok(Self { directory: directory.try_clone()?, name })).collect()
    }

    /// Connects to whoever listens, who is of this user. The result waits no longer to send than this.
    pub fn connect(&self, patience: Duration) -> io::Result<UnixStream> {
        let path = self.directory.path_by_descriptor().join(&self.name);
        let socket = control::dial(&path, Instant::now() + patience)?;
        socket.set_write_timeout(Some(patience))?;
        Ok(socket)
    }

    /// Takes the lock of whoever listens, which is held as long as the result lives; `None`: somebody else has it.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let lock = self.directory.make_file(&format!("{}{LOCK}", self.name))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Listens, without ever waiting. The caller has the lock.
    pub fn listen(&self) -> io::Result<UnixListener> {
        // One that was killed has left its own.
        self.remove();
        let listener = UnixListener::bind(self.directory.path_by_descriptor().join(&self.name))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Removes the socket. The caller has the lock.
    pub fn remove(&self) {
        let _ = self.directory.remove_file(&self.name);
    }
}
