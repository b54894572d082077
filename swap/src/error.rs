//! Why pages could not be stored or fetched, and why a home could not be written down or opened anew.

use std::io;

use crate::page::PageId;

/// Why pages could not be stored or fetched.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given, and of what")]
pub enum SwapError {
    #[error("cannot write pages to the {file}: {source}")]
    Write { file: &'static str, source: io::Error },
    #[error("cannot read pages from the {file}: {source}")]
    Read { file: &'static str, source: io::Error },
    #[error("page {id} came back from the {file} damaged: checksum {found:#010x} instead of {stored:#010x}")]
    Damaged { file: &'static str, id: PageId, stored: u32, found: u32 },
    #[error("page {id} came back from the {file} damaged: {source}")]
    Unpack { file: &'static str, id: PageId, source: codec::Corrupt },
    #[error("page {id} came back from the {file} damaged: its seal is broken")]
    Forged { file: &'static str, id: PageId },
    #[error("cannot make a key to seal pages with: the host has no randomness to give")]
    NoKey,
    #[error("cannot read page {id} from the {file}: {source}")]
    ReadPage { file: &'static str, id: PageId, source: io::Error },
    #[error("page {id} was never stored")]
    Unknown { id: PageId },
    #[error("the swap limit of {limit_bytes} bytes is reached")]
    Limit { limit_bytes: u64 },
    #[error("there is no memory to move pages with")]
    NoMemory,
}

/// Why the pages of a base could not be opened, or are not those that were written.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given, and of what")]
pub enum BaseError {
    #[error("cannot read the table of pages: {0}")]
    Table(#[source] io::Error),
    #[error("the table of pages has version {found} instead of {known}")]
    Version { found: u32, known: u32 },
    #[error("the table of pages is damaged: {what}")]
    Damaged { what: &'static str },
    #[error("the file of pages cannot be used: {0}")]
    File(#[source] io::Error),
    #[error("cannot read page {id} of the file of pages: {source}")]
    Pages { id: PageId, source: io::Error },
    #[error("page {id} is not the one that was written")]
    Changed { id: PageId },
    #[error(transparent)]
    Unpack(SwapError),
    #[error("there is no memory to read its pages with")]
    Memory,
}

impl BaseError {
    pub(crate) const fn damaged(what: &'static str) -> Self {
        Self::Damaged { what }
    }
}

impl From<TablesError> for BaseError {
    fn from(error: TablesError) -> Self {
        match error {
            TablesError::Version { found, known } => Self::Version { found, known },
            TablesError::Damaged { what } => Self::Damaged { what },
            TablesError::Write(source) | TablesError::Length { source, .. } => Self::Table(source),
            TablesError::Sealed | TablesError::Encrypted => Self::damaged("it is encrypted"),
            TablesError::InMemory => Self::damaged("it is of pages in memory"),
        }
    }
}

/// Why the pages of a home could not be written as a base.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given, and of what")]
pub enum ExportError {
    #[error(transparent)]
    Fetch(#[from] SwapError),
    #[error("cannot write its pages: {source}")]
    Pages { source: io::Error },
    #[error("cannot write the table of its pages: {source}")]
    Table { source: io::Error },
    #[error("there is no memory to write its pages with")]
    Memory,
    #[error("cannot read a page of its file of pages: {source}")]
    Read { source: io::Error },
    #[error("{0}")]
    Ended(String),
}

/// Why the pages of a base could not be packed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given, and of what")]
pub enum PackError {
    #[error(transparent)]
    Pages(#[from] SwapError),
    #[error(transparent)]
    Tables(#[from] TablesError),
    #[error("its pages are packed already")]
    Packed,
    #[error("it is not wanted any more")]
    Stopped,
    #[error("there are more of them than can be packed")]
    TooMany,
    #[error("cannot use the file of pages: {0}")]
    File(#[from] io::Error),
}

/// Why a home's tables could not be written or read.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given, and of what")]
pub enum TablesError {
    #[error("cannot write the tables of a home of pages: {0}")]
    Write(#[from] io::Error),
    #[error("cannot tell how long the {file} is: {source}")]
    Length { file: &'static str, source: io::Error },
    #[error("the tables of a home of pages have version {found} instead of {known}")]
    Version { found: u32, known: u32 },
    #[error("the tables of a home of pages are damaged: {what}")]
    Damaged { what: &'static str },
    #[error("cannot write the tables of a home of pages: the pages are sealed with a key that ends with it")]
    Sealed,
    #[error("cannot write the tables of a home of pages: pages of it are in memory that ends with it")]
    InMemory,
    #[error("the tables of a home of pages are encrypted, which this version cannot read")]
    Encrypted,
}
