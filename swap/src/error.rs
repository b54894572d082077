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
    #[error("page {id} was never stored")]
    Unknown { id: PageId },
    #[error("the swap limit of {limit_bytes} bytes is reached")]
    Limit { limit_bytes: u64 },
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
    #[error("the tables of a home of pages are encrypted, which this version cannot read")]
    Encrypted,
}
