//! Pages as differences from those of a base in memory, after *Phoenix* ("Phoenix", section 3): a sleeping sandbox of a few hundred
//! kilobytes, each page of which is put together again in a microsecond.
//!
//! A [`Reference`] is a base and its [index](BaseIndex), by which a page's nearest relatives are found. [`MemoryHome`] keeps what is left of
//! pages in chunks of memory. The formats are in `docs/phoenix.md`.

mod chunks;
mod coding;
mod home;
mod index;
mod matcher;
mod measure;
mod record;

pub use home::MemoryHome;
pub use index::{BaseIndex, IndexError};
pub use matcher::{BASE_PAGES_MAX, Reference};
pub use measure::{DiffMeasured, MeasureError, PagesInMemory, Spread, WayMeasured, measure_diffs};
