//! Snapshots that travel between hosts: as artefacts in OCI image layouts, which other tools copy to registries and back, and in tar files of
//! such ([`Store::push`](super::Store::push), [`Store::pull`](super::Store::pull)).
//!
//! The kernel's memory and the pages travel as dblocks of a store under a key that everybody has, one layer each, so that what snapshots have
//! in common is there once, and sent once. All else is in one tar file, a layer too. Whatever comes is hostile until it was checked: blobs by
//! their digests, the manifest by its seal, and files, pages and changes to files by the manifest, in a directory that becomes a snapshot
//! last.

mod arriving;
mod artefact;
mod blobs;
mod error;
mod layout;
mod pull;
mod push;

pub use self::error::MoveError;
pub use self::pull::{Came, Coming};
pub use self::push::Pushed;
