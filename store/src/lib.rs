//! A deduplicating store of snapshots that knows regions ("SnapStore", section 4).
//!
//! The bytes of a snapshot's files are of [`Region`]s, each of which is cut into chunks of its own size. A chunk that the store has
//! already is kept once; the others lie in *dblocks*, files of up to 4 MiB that are never changed, and of one region each. A
//! [`Recipe`] says which chunks make up the files. Chunks are told apart by fingerprints under a key of the *domain* that they belong to,
//! and compared before one stands for another, so that nobody learns of chunks of other domains, and nobody can pass one off as another.
//!
//! There is one [`Writer`] at a time, and [readers](retrieve) need no lock: a dblock is there as a whole or not at all, and a chunk is found
//! in it until [`Collector`] has moved it, and a while after that.
//!
//! All that is read may have been written by an enemy: nothing here is `unsafe`, and lengths have limits before memory is taken for them. The
//! formats are in `docs/store.md`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::too_many_lines)]

mod bytes;
mod collector;
mod dblock;
mod difference;
mod directory;
mod error;
mod fingerprint;
mod footers;
mod index;
#[cfg(fuzzing)]
mod play;
mod recipe;
mod redundancy;
mod region;
mod retrieve;
#[cfg(test)]
mod tests;
mod usage;
mod writer;

pub use collector::{Collected, Collector};
pub use directory::{Store, Verified};
pub use error::StoreError;
pub use fingerprint::Domain;
#[cfg(fuzzing)]
pub use play::play;
pub use recipe::{Recipe, Relocations};
pub use redundancy::{CHUNK_SIZES, Estimate, Redundancy};
pub use region::{Chunking, Region};
pub use retrieve::{Retrieved, retrieve, retrieve_in_order};
pub use usage::{Needed, Usage};
pub use writer::{Added, Writer, Written};
