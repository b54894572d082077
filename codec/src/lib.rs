//! Coders that pack the pages of a sleeping or snapshotted sandbox, after *Sabre* (section 3).
//!
//! Memory comes in *pieces*: a page of 4 KiB, or a partition of several. A [`Packer`] packs a piece on its own, so that each
//! can be unpacked on its own by an [`Unpacker`]. A [`TableSet`] holds the codes of *canned* DEFLATE, which are made once from
//! the [`Statistics`] of many pieces, and spare each of them a header. Checksums are the store's business: of what was
//! changed on the way, an unpacker promises an error or bytes of the right length, and no harm.
//!
//! What is read may be hostile, and nothing here is `unsafe`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::too_many_lines)]
// Symbols, lengths and places are far below what their types hold; the codecs cut words to bytes all the time.
#![allow(clippy::cast_possible_truncation)]

mod bits;
mod choice;
mod coding;
mod engine;
mod error;
mod header;
mod huffman;
mod inflate;
mod lookup;
mod matcher;
mod measure;
mod measure_engine;
mod packer;
mod piece;
mod statistics;
mod style;
mod symbols;
mod table;
mod table_set;
mod unpacker;
mod whole;
mod window;

pub use choice::{Arrival, Candidate, Choice, Host, choose};
pub use engine::{Engine, Work};
pub use error::{Corrupt, StyleError};
pub use measure::{Measured, Speed, measure};
pub use measure_engine::measure_by;
pub use packer::Packer;
pub use piece::{ENGINE_WINDOW_BYTES, PAGE_BYTES, PIECE_BYTES, WINDOW_BYTES};
pub use statistics::Statistics;
pub use style::Style;
pub use table::{CodeWords, Table};
pub use table_set::TableSet;
pub use unpacker::Unpacker;
pub use whole::Whole;
