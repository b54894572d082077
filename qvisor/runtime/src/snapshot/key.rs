//! The key by which this host knows the snapshots that it has made itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{self, RenameFlags};
use rustix::io::Errno;
use vmm::checkpoint::wipe;
use vmm::directory::Directory;
use vmm::process;

use super::error::SnapshotError;
use crate::state::Id;

/// The host's own key, in the directory of its snapshots.
pub(super) const KEY: &str = ".key";
const BYTES: usize = 32;
/// Others than the owner may read or write it.
const OF_OTHERS: u32 = 0o077;

/// A key; it is never shown. It lies in a place of its own, so that nothing of it is left where it was moved from: processes that are forked
/// later, which do not get it, have this one's memory.
#[derive(Clone)]
pub(crate) struct Key(Box<[u8; BYTES]>);

impl Drop for Key {
    fn drop(&mut self) {
        wipe(&mut self.0[..]);
    }
}

impl Key {
    #[cfg(test)]
    pub(super) fn of_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes.into())
    }

    /// The seal of these bytes.
    pub(super) fn seal(&self, bytes: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.0, bytes)
    }

    /// A key that is derived from it for some purpose.
    pub(super) fn derive(&self, context: &str, salt: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_derive_key(context).update(&self.0[..]).update(salt).finalize()
    }

    /// The key in a file: a fleet's, which the node's configuration names, or a user's.
    pub(super) fn of_file(path: &Path) -> Result<Self, SnapshotError> {
        let failed = |why: String| SnapshotError::Key { path: path.to_owned(), why };
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let file = File::options().read(true).custom_flags(flags).open(path);
        file.and_then(read).map_err(|error| failed(error.to_string()))
    }

    /// The host's own key, which is made if there is none.
    pub(super) fn of_host(store: &Directory) -> Result<Self, SnapshotError> {
        let failed =
            |error: io::Error| SnapshotError::Key { path: store.path().join(KEY), why: error.to_string() };
        match store.file_to_read(KEY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(store).and_then(|()| store.file_to_read(KEY)).and_then(read).map_err(failed)
            }
            file => file.and_then(read).map_err(failed),
        }
    }
}

/// Makes the host's key, unless somebody else is faster.
fn make(store: &Directory) -> io::Result<()> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let fresh = format!("{KEY}.{}", Id::random().as_str());
    let mut file = store.new_file(&fresh)?;
    let written = file.write_all(&bytes).and_then(|()| file.sync_all());
    let renamed = written.and_then(|()| {
        let renamed = fs::renameat_with(store, &fresh, store, KEY, RenameFlags::NOREPLACE);
        match renamed {
            // A file system that renames, and cannot refuse to replace, links.
            Err(Errno::INVAL | Errno::NOSYS) => fs::linkat(store, &fresh, store, KEY, fs::AtFlags::empty())?,
            renamed => renamed?,
        }
        Ok(())
    });
    let _ = store.remove_file(&fresh);
    match renamed {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(fs::fsync(store.as_fd())?),
    }
}

fn read(file: File) -> io::Result<Key> {
    let found = file.metadata()?;
    let why = if !found.is_file() {
        "it is no regular file"
    } else if found.uid() != process::effective_user() {
        "it is not yours"
    } else if found.mode() & OF_OTHERS != 0 {
        "others than its owner may read or write it"
    } else {
        let mut bytes = Vec::with_capacity(BYTES + 1);
        file.take(BYTES as u64 + 1).read_to_end(&mut bytes)?;
        let mut key = Box::new([0; BYTES]);
        let is_key = bytes.len() == BYTES;
        if is_key {
            key.copy_from_slice(&bytes);
        }
        wipe(&mut bytes);
        if is_key {
            return Ok(Key(key));
        }
        "it is no key of 32 bytes"
    };
    Err(io::Error::other(why))
}
