//! Read-only pages that may lie under a home: what several sandboxes begin with.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::bits::Bits;
use crate::error::SwapError;
use crate::page::{PAGE_BYTES, PageBytes, PageId};

/// Pages that never change.
pub trait Base: Send + Sync {
    /// Whether it has the page.
    fn has(&self, page: PageId) -> bool;
    /// The number behind the last page that it has.
    fn end(&self) -> PageId;
    /// Reads the pages from `first` on, which it has.
    fn read(&self, first: PageId, into: &mut [PageBytes]) -> Result<(), SwapError>;
    /// The offset of the page in a file that may be mapped in its place; `None`: there is no such file, or no such page.
    fn window(&self, page: PageId) -> Option<u64>;
    /// These pages will be read soon.
    fn hint(&self, runs: &[Range<PageId>]);
}

const BASE_FILE: &str = "base file";

/// A base in a file: page *n* at offset *n* × 4096, with holes where there is no page.
#[derive(Debug)]
pub struct FileBase {
    file: File,
    present: Bits,
}

impl FileBase {
    /// The base of the `present` pages of `file`, which goes through the page cache. It must be long enough for them.
    pub fn new(file: File, present: Bits) -> io::Result<Self> {
        if file.metadata()?.len() < offset_of(present.end()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { file, present })
    }
}

impl Base for FileBase {
    fn has(&self, page: PageId) -> bool {
        self.present.has(page)
    }

    fn end(&self) -> PageId {
        self.present.end()
    }

    fn read(&self, first: PageId, into: &mut [PageBytes]) -> Result<(), SwapError> {
        let ids = first..=PageId::MAX;
        if let Some(id) = ids.take(into.len()).find(|id| !self.has(*id)) {
            return Err(SwapError::Unknown { id });
        }
        let read = self.file.read_exact_at(into.as_flattened_mut(), offset_of(first));
        read.map_err(|source| SwapError::Read { file: BASE_FILE, source })
    }

    fn window(&self, page: PageId) -> Option<u64> {
        self.has(page).then(|| offset_of(page))
    }

    fn hint(&self, runs: &[Range<PageId>]) {
        for run in runs {
            let signed = |offset: u64| libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
            let (start, len) = (signed(offset_of(run.start)), signed(offset_of(run.end - run.start)));
            // SAFETY: integers only. A hint that the host does not take costs nothing but time.
            unsafe { libc::posix_fadvise(self.file.as_raw_fd(), start, len, libc::POSIX_FADV_WILLNEED) };
        }
    }
}

fn offset_of(page: PageId) -> u64 {
    u64::from(page) * PAGE_BYTES as u64
}
