//! Errors of this crate: damaged packed bytes or tables, and names that are no style's.

use thiserror::Error;

/// Packed bytes, or a table, that no packer wrote. The text says which rule they break.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("cannot unpack a piece of memory: {0}; the file that it came from is damaged")]
pub struct Corrupt(pub(crate) &'static str);

/// A name that is no style's.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StyleError {
    /// No style has this name.
    #[error(
        "cannot use the codec {0:?}: there is none of this name; use none, lz4, zstd[:LEVEL], deflate-fixed, \
         deflate-dynamic or deflate-canned"
    )]
    Unknown(String),
    /// zstd has no such level.
    #[error("cannot use the codec {0:?}: its level is not a number from 1 to 19; use one, or leave it out")]
    Level(String),
    /// A level was given to a style that has none.
    #[error("cannot use the codec {0:?}: only zstd has levels; leave the colon and what follows out")]
    NoLevels(String),
}
