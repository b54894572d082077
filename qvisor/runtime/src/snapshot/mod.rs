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

mod analysis;
pub mod bases;
mod below;
pub mod comparing;
mod digest;
mod error;
mod files;
mod fit;
mod hold;
mod in_memory;
mod key;
mod layer;
mod making;
mod manifest;
mod moved;
mod place;
mod prefetch;
mod sealing;
mod sharing;
mod socket;
mod store;
mod stored;
mod tar;
#[cfg(test)]
mod tests;
mod trial;
mod working_set;

pub use self::analysis::{Analysed, Analysis};
pub use self::error::{SnapshotError, Unfit, printable};
pub use self::fit::Host;
pub use self::in_memory::InMemory;
pub(crate) use self::key::Key;
pub(crate) use self::layer::fill;
pub use self::layer::{Copied, Layer, LayerError, LayerFiles};
pub use self::making::Making;
pub use self::manifest::{
    BelowPages, CpuFeatures, Described, DescribedCommand, FileDigest, Files, FurtherDescribed, Manifest,
    MountPoint, NetworkKind, PackedBy, SealedBy,
};
pub use self::moved::{Came, Coming, MoveError, Pushed};
pub use self::place::{Place, name};
pub use self::prefetch::Prefetch;
pub use self::sharing::{Recorded, Recorder};
pub use self::socket::DigestSocket;
pub use self::store::{Listed, Opened, Store};
pub use self::stored::{PutAway, StoreFigures};
pub use self::trial::{Trial, Tried};
pub use self::working_set::{BadWorkingSet, Recording};
pub use ::store::{Added, CHUNK_SIZES, Chunking, Collected, Estimate, Region, Retrieved, Verified};
