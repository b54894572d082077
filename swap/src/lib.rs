//! Homes for the pages of a sleeping sandbox. Knows nothing of containers, of KVM, or of page tables: a page is 4 KiB at
//! an address, named by a number that its owner gives it (a frame number).
//!
//! A [`Home`] takes a batch of pages, all or nothing, and gives single pages or whole sets back, to several threads at
//! once. [`SwapHome`] is one in the two files of *Hibernate Container* (section 3.4), a swap file for single pages and a
//! REAP file for the working set. Every page carries a checksum that is verified on its way in. [`Layered`] is a home on
//! top of a read-only [`Base`], from which it stores only what differs. A home's tables can be written down, and the home
//! opened anew from them. The formats are in `docs/swap-format.md`.
//!
//! The memory of pages may be a guest's, who writes it whenever it likes: it is copied by opaque copies alone, and what is
//! looked at is a private copy.
#![warn(missing_docs)]
#![warn(clippy::too_many_lines)]

mod aligned;
mod arena;
mod base;
mod below;
mod bits;
mod bounce;
pub mod capture;
mod diff;
mod disk;
mod error;
mod export;
mod file;
mod home;
pub mod io;
mod large;
mod layered;
mod mapped;
mod mapping;
mod pack;
mod packed;
mod packed_base;
mod packing;
mod page;
mod page_file;
mod parent;
mod persist;
mod persist_sets;
mod piece;
mod pool;
mod ranks;
mod regions;
mod sampling;
mod shared;
mod slots;
mod stacked;
mod staging;
mod sums;
mod table;
mod tables;
#[cfg(test)]
mod testing;
mod tiers;
mod together;

pub use codec::{Engine, Style};

pub use base::{Base, BaseTables, FileBase};
pub use below::BELOW_MAX;
pub use bits::Bits;
pub use diff::{BASE_PAGES_MAX, BaseIndex, IndexError, MemoryHome, Reference};
pub use diff::{DiffMeasured, MeasureError, PagesInMemory, Spread, WayMeasured, measure_diffs};
pub use disk::SwapHome;
pub use error::{BaseError, ExportError, PackError, SwapError, TablesError};
pub use export::{make_room, read_pages, write_pages, write_set};
pub use file::{SwapFileError, open_unnamed};
pub use home::{Home, Stat, Stored};
pub use layered::Layered;
pub use pack::pack_base;
pub use packed::{PageKey, wipe};
pub use packing::{Codec, CodecError, Packing, Repacked};
pub use page::{Class, PAGE_BYTES, Page, PageBytes, PageId};
pub use parent::Parent;
pub use pool::THREADS;
pub use regions::{PageRegion, Regions};
pub use sampling::placing_bytes_s;
pub use stacked::StackedBase;
pub use sums::PageSums;
#[cfg(fuzzing)]
pub use sums::play as play_page_sums;
pub use tiers::{MOVED_PAGES, Moves, Tier, TieredHome};
pub use together::write_together;
