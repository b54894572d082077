//! Why snapshots could not be stored, or did not come back.

use std::io;

use codec::Style;

/// Why a store could not be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given, and of what")]
pub enum StoreError {
    #[error("cannot {what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("dblock {id:08x} is damaged: {what}")]
    Dblock { id: u32, what: &'static str },
    #[error("dblock {id:08x} is not there")]
    Gone { id: u32 },
    #[error("chunk {slot} of dblock {id:08x} is damaged")]
    Chunk { id: u32, slot: u16 },
    #[error("the recipe is damaged: {what}")]
    Recipe { what: &'static str },
    #[error("the {of} has version {found} instead of {known}")]
    Version { of: &'static str, found: u32, known: u32 },
    #[error(
        "dblock {id:08x} is packed by {codec}, and of others only none and lz4 are unpacked; write it by --codec lz4"
    )]
    Codec { id: u32, codec: Style },
    #[error("somebody else writes to the store")]
    Busy,
    #[error("the store has as many dblocks as it may have")]
    Full,
}

impl StoreError {
    pub(crate) fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}
