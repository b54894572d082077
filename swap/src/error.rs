//! Why pages could not be stored or fetched.

use std::io;

use crate::page::PageId;

/// Why pages could not be stored or fetched.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    #[error("cannot write pages to the {file}: {source}")]
    Write { file: &'static str, source: io::Error },
    #[error("cannot read pages from the {file}: {source}")]
    Read { file: &'static str, source: io::Error },
    #[error("page {id} came back from the {file} damaged: checksum {found:#010x} instead of {stored:#010x}")]
    Damaged { file: &'static str, id: PageId, stored: u32, found: u32 },
    #[error("page {id} was never stored")]
    Unknown { id: PageId },
    #[error("the swap limit of {limit_bytes} bytes is reached")]
    Limit { limit_bytes: u64 },
}
