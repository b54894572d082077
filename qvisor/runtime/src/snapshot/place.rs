//! Where a snapshot is, and the names of its files.

use std::fmt;
use std::path::PathBuf;

use super::error::SnapshotError;
use crate::state::Id;

/// The files of a snapshot beside its manifest.
pub(super) const KERNEL: &str = "kernel.img";
pub(super) const PAGES: &str = "pages.img";
pub(super) const TABLE: &str = "pages.table";
pub(super) const ORPHANS: &str = "orphans.img";
/// In place of the first two, if they lie in the store of chunks; and the one that is being written.
pub(super) const RECIPE: &str = "recipe";
pub(super) const FRESH_RECIPE: &str = ".recipe";
/// The index of its base, which is there once it was held, and the one that is being written.
pub(super) const INDEX: &str = "base.idx";
pub(super) const FRESH_INDEX: &str = ".base.idx";
/// The directory beside them that has the changes to files of a sandbox of `dormouse do`.
pub(super) const LAYER: &str = "layer";
/// The directory beside them that has what comes from another host until it is a part of them.
pub(super) const MOVED: &str = ".moved";

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
