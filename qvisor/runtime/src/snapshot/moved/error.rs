//! Why a snapshot could not be taken to or from another host.

use std::io;

use ::store::StoreError;

use super::super::error::{SnapshotError, Unfit, printable};
use super::super::layer::LayerError;

/// Why a snapshot could not be taken to or from another host.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    #[error("{what} failed: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("it is no OCI image layout: {0}")]
    NoLayout(String),
    #[error("its {of} is damaged: {why}")]
    Damaged { of: &'static str, why: String },
    #[error("its {of} is larger than {most} bytes")]
    TooLarge { of: &'static str, most: u64 },
    #[error("its blob {digest} cannot be read: {source}")]
    Blob { digest: String, source: io::Error },
    #[error("its blob {digest} has {has} bytes instead of {said}")]
    Length { digest: String, has: u64, said: u64 },
    #[error("its blob {digest} is not what its digest says")]
    Changed { digest: String },
    #[error("it has no snapshot of this name")]
    NoSnapshot,
    #[error("it has {0} snapshots instead of one")]
    NotOne(usize),
    #[error("it has an image of this name, which is no snapshot; choose another directory")]
    OtherOfName,
    #[error("the snapshot in it has no name; give it one by --name")]
    NoName,
    #[error("it has version {found} of the format, and this dormouse knows version {known}")]
    Version { found: u64, known: u64 },
    #[error(
        "it was sealed by another host's key, or changed; if you trust whoever it comes from, pass --trust"
    )]
    Sealed,
    #[error(
        "it has pages in files of other snapshots, which would not come along; make one without checkpoint --parent"
    )]
    Below,
    #[error("it lacks {0}")]
    Lacks(&'static str),
    #[error("there is a file of this name; remove it first, or choose another one")]
    FileExists,
    #[error("somebody else writes to it")]
    Busy,
    #[error(transparent)]
    Chunks(#[from] StoreError),
    #[error("the changes to files that it has cannot be taken along: {0}")]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// It says for itself what could not be done.
    #[error(transparent)]
    Snapshot(Box<SnapshotError>),
}

impl From<SnapshotError> for MoveError {
    fn from(error: SnapshotError) -> Self {
        Self::Snapshot(error.into())
    }
}

impl MoveError {
    pub(super) fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

impl MoveError {
    /// The error about this attempt.
    pub(super) fn at(self, what: impl FnOnce() -> String) -> SnapshotError {
        match self {
            Self::Snapshot(error) => *error,
            // Some of its words may be those of whoever made it.
            why => SnapshotError::Move { what: what(), why: printable(&why).into() },
        }
    }
}
