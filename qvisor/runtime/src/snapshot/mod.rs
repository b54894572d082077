//! Snapshots of sandboxes on disk: made, found by name, checked, removed.
//!
//! A snapshot is a directory: [`manifest::MANIFEST`], which says what it is and is sealed by a key, the four files of
//! [`vmm::checkpoint::ImageFiles`], and for a sandbox of `dormouse do` its changes to files ([`layer`]); its first restore adds
//! [`working_set::WORKING_SET`]. It is there as a whole or not at all, whenever its maker is killed:
//!
//! - It is made in a directory beside its place, whose name begins with a dot and whose maker holds a lock on it. Once all
//!   of it is on the disk, the directory is renamed. A directory in its place that is there already and empty is used as it
//!   is, and gets its manifest last.
//! - A directory whose lock is free has lost its maker. The next maker removes it.
//!
//! On systrap a snapshot's kernel is code in the VMM, so nothing of a snapshot is believed before the seal was found to be
//! this host's (or this fleet's), and the digests to be those that it covers.

mod below;
mod digest;
mod error;
mod fit;
mod hold;
mod key;
mod layer;
mod making;
mod manifest;
mod sealing;
mod store;
#[cfg(test)]
mod tests;
mod working_set;

use std::fmt;
use std::path::PathBuf;

pub use self::below::BelowPages;
pub(crate) use self::below::Parent;
pub use self::error::{SnapshotError, Unfit};
pub use self::fit::Host;
pub(crate) use self::key::Key;
pub(crate) use self::layer::fill;
pub use self::layer::{Copied, Layer, LayerError, LayerFiles};
pub use self::making::Making;
pub use self::manifest::{
    CpuFeatures, Described, DescribedCommand, FileDigest, Files, Manifest, MountPoint, NetworkKind, PackedBy,
};
pub use self::sealing::SealedBy;
pub use self::store::{Listed, Opened, Store, WorkingSet};
pub use self::working_set::{BadWorkingSet, Recording};
use crate::state::Id;

/// The files of a snapshot beside its manifest.
const KERNEL: &str = "kernel.img";
const PAGES: &str = "pages.img";
const TABLE: &str = "pages.table";
const ORPHANS: &str = "orphans.img";
/// The directory beside them that has the changes to files of a sandbox of `dormouse do`.
const LAYER: &str = "layer";

/// Where a snapshot is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the store, by name.
    Named(Id),
    /// In a directory that somebody names.
    Directory(PathBuf),
}

impl Place {
    /// The place in the store of a name, if it is one.
    pub fn named(text: &str) -> Result<Self, SnapshotError> {
        name(text).map(Self::Named)
    }
}

/// A name for a snapshot: it is made as a sandbox's is.
pub fn name(text: &str) -> Result<Id, SnapshotError> {
    Id::new(text).map_err(|_| SnapshotError::BadName { name: text.chars().take(80).collect() })
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name.as_str()),
            Self::Directory(path) => write!(f, "{}", path.display()),
        }
    }
}
