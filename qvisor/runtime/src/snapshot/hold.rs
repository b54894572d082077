//! Snapshots that are held against being removed but by name.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use rustix::fs::{self, AtFlags};
use vmm::directory::Directory;

/// The file by which a directory is a snapshot.
pub(super) const MANIFEST: &str = "manifest.json";
/// How often, and how far apart, a snapshot's directory is tried to be held.
const HOLDS: u32 = 400;
const HOLD_STEP: Duration = Duration::from_millis(5);

/// Holds the directory of a snapshot, as long as the result lives, against being removed but by name.
pub(super) fn hold(directory: &Directory) -> io::Result<Directory> {
    let held = directory.directory(OsStr::new("."))?;
    let lock = File::from(held.as_fd().try_clone_to_owned()?);
    for _ in 0..HOLDS {
        match lock.try_lock_shared() {
            Ok(()) if held.has(MANIFEST) => return Ok(held),
            Ok(()) => break,
            // Its maker is about to let go.
            Err(TryLockError::WouldBlock) => thread::sleep(HOLD_STEP),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Whether this is still the entry of that name.
pub(super) fn is_named(parent: impl AsFd, name: impl AsRef<OsStr>, entry: impl AsFd) -> bool {
    let named = fs::statat(parent, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW);
    let found = fs::fstat(entry);
    matches!((named, found), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}
