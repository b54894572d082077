//! Homes for the pages of a sleeping sandbox. Knows nothing of containers, of KVM, or of page tables: a page is 4 KiB at
//! an address, named by a number that its owner gives it (a frame number).
//!
//! A [`Home`] takes a batch of pages, all or nothing, and gives single pages or whole sets back. [`SwapHome`] is the
//! first one: the two files of *Hibernate Container* (section 3.4), a swap file for single pages and a REAP file for
//! the working set. Every page carries a checksum that is verified on its way in. The files' format is in
//! `docs/swap-format.md`.

mod bounce;
mod error;
mod file;
mod home;
pub mod io;
mod page;
mod pool;
mod table;

pub use error::SwapError;
pub use file::{SwapFileError, open_unnamed};
pub use home::{Home, Stored, SwapHome};
pub use page::{PAGE_BYTES, Page, PageId};
