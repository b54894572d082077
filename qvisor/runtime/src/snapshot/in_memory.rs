//! A place in memory for a snapshot from which sandboxes begin at once, and which goes with the last of them.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use vmm::jail::{self, JailError, Propagation};
use vmm::{mounts, process};

use super::error::SnapshotError;
use super::place::Place;
use super::store::Store;

/// The directory in the store that the place in memory is mounted on. No snapshot's name begins with a dot.
const MOUNT_POINT: &str = ".fork";
/// The directory of the snapshot there.
const IMAGE: &str = "image";
/// The part of the host's free memory that is left to others.
const LEFT_PART: u64 = 8;

/// A place in memory, as long as this lives and whoever has files of it.
#[derive(Debug)]
pub struct InMemory {
    pub place: Place,
    _mount: Option<OwnedFd>,
}

impl Store {
    /// A place in memory. Where a snapshot has changes to files (`has_layer`), which are looked for by their paths, it is mounted in a mount
    /// namespace of this process and those that it forks from now on, to which what the host mounts still comes; else nowhere.
    pub fn place_in_memory(&self, has_layer: bool) -> Result<InMemory, SnapshotError> {
        let free = process::available_memory().unwrap_or_else(process::host_memory);
        let most_bytes = free - free / LEFT_PART;
        let made = if has_layer { self.mounted(most_bytes) } else { detached(most_bytes) };
        made.map_err(SnapshotError::InMemory)
    }

    fn mounted(&self, most_bytes: u64) -> io::Result<InMemory> {
        let store = self.directory().map_err(io::Error::other)?;
        match store.make_directory(OsStr::new(MOUNT_POINT)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let place = std::fs::canonicalize(store.path())?.join(MOUNT_POINT);
        jail::begin_apart(Propagation::Slave).map_err(|error| match error {
            JailError::Step { source, .. } => source,
            error => io::Error::other(error),
        })?;
        let mount = mounts::in_memory(most_bytes)?;
        jail::cover(mount.as_fd(), &CString::new(place.as_os_str().as_bytes())?)?;
        Ok(InMemory { place: Place::Directory(place.join(IMAGE)), _mount: None })
    }
}

fn detached(most_bytes: u64) -> io::Result<InMemory> {
    let mount = mounts::in_memory(most_bytes)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd())).join(IMAGE);
    Ok(InMemory { place: Place::Directory(path), _mount: Some(mount) })
}
