//! Something beside the processor that packs and unpacks: an accelerator.

use std::sync::Arc;

use crate::{error::Corrupt, table::Table};

/// A piece to be packed or unpacked.
#[derive(Debug)]
pub enum Work<'a> {
    /// All of `packed` into all of `out`.
    Unpack {
        /// The packed piece.
        packed: &'a [u8],
        /// The place of the piece's memory, all of which is filled.
        out: &'a mut [u8],
    },
    /// `piece` to the front of `out`. `packed_bytes` is how much it takes there, or nothing if it does not fit.
    Pack {
        /// The piece's memory.
        piece: &'a [u8],
        /// The place of the packed piece.
        out: &'a mut [u8],
        /// Bytes that the packed piece takes; `None`: it did not fit.
        packed_bytes: Option<usize>,
    },
}

impl Work<'_> {
    /// The bytes that are read: a packed piece, or one to be packed.
    #[must_use]
    pub fn input(&self) -> &[u8] {
        match self {
            Work::Unpack { packed, .. } => packed,
            Work::Pack { piece, .. } => piece,
        }
    }

    /// Bytes of the output's place.
    #[must_use]
    pub fn room(&self) -> usize {
        match self {
            Work::Unpack { out, .. } | Work::Pack { out, .. } => out.len(),
        }
    }
}

/// Packs and unpacks canned pieces with a window of [`ENGINE_WINDOW_BYTES`](crate::ENGINE_WINDOW_BYTES), for several threads at
/// once. What it cannot do it has the processor do, so that the caller need not know.
pub trait Engine: Send + Sync {
    /// Packs and unpacks by one table, many pieces at a time. All of them are done when it returns.
    ///
    /// # Errors
    /// One of the pieces to be unpacked is damaged: the first such, by its index. The others are done.
    ///
    /// # Panics
    /// If a piece or its packed bytes are longer than [`PIECE_BYTES`](crate::PIECE_BYTES).
    fn run(&self, table: &Arc<Table>, work: &mut [Work<'_>]) -> Result<(), (usize, Corrupt)>;

    /// Nothing is to be done for a while: gives back memory that only makes it faster.
    fn rest(&self);

    /// The engine's counters, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}
