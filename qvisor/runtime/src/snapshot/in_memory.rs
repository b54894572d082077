//! A place in memory for a snapshot from which sandboxes begin at once, and which goes with the last of them.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use vmm::jail::{self, JailError, Propagation};
use vmm::process;

use super::error::SnapshotError;
use super::place::Place;
use super::store::Store;

/// The directory in the store that the place in memory is mounted on. No snapshot's name begins with a dot.
const MOUNT_POINT: &str = ".fork";
/// The directory of the snapshot there.
const IMAGE: &str = "image";
/// All changes to files of a sandbox may be copied there as well: so much of the host's free memory, as a divisor.
const SHARE_OF_FREE: u64 = 2;

impl Store {
    /// A place in memory, which only this process and those that it forks from now on see. Of all their other mounts nothing changes.
    pub fn place_in_memory(&self) -> Result<Place, SnapshotError> {
        let place = || -> io::Result<PathBuf> {
            let store = self.directory().map_err(io::Error::other)?;
            match store.make_directory(OsStr::new(MOUNT_POINT)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let free = process::available_memory().unwrap_or_else(process::host_memory);
            let place = std::fs::canonicalize(store.path())?.join(MOUNT_POINT);
            let mounted = jail::begin_apart(Propagation::Slave)
                .and_then(|()| jail::mount_memory(&place, free / SHARE_OF_FREE));
            mounted.map_err(|error| match error {
                JailError::Step { source, .. } => source,
                error => io::Error::other(error),
            })?;
            Ok(place.join(IMAGE))
        };
        place().map(Place::Directory).map_err(SnapshotError::InMemory)
    }
}
