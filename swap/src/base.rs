//! Read-only pages that may lie under a home: what several sandboxes begin with.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::bits::Bits;
use crate::error::{BaseError, SwapError};
use crate::page::{PageBytes, PageId, offset_of};
use crate::sums::{PageSums, Sums};

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
    /// `None`: pages are taken as they come.
    sums: Option<Sums>,
}

impl FileBase {
    /// The base of the `present` pages of `file`, which goes through the page cache. It must be long enough for them.
    pub fn new(file: File, present: Bits) -> io::Result<Self> {
        if file.metadata()?.len() < offset_of(present.end()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { file, present, sums: None })
    }

    /// The base of the pages of a table, in a file that was written with it. Each page is checked when it is read.
    pub fn with_sums(file: File, table: PageSums) -> Result<Self, BaseError> {
        let (present, sums) = table.into_parts();
        let base = Self::new(file, present).map_err(BaseError::File)?;
        Ok(Self { sums: Some(sums), ..base })
    }

    /// The base that had this file, these pages and [these checksums](Self::sums) under another owner; `None`: there is not one for
    /// each page.
    #[must_use]
    pub fn with_known_sums(self, sums: Vec<u32>) -> Option<Self> {
        let sums = Sums::new(&self.present, sums)?;
        Some(Self { sums: Some(sums), ..self })
    }

    /// The checksums by which pages are checked, in the order of the pages; `None`: they are not checked.
    #[must_use]
    pub fn sums(&self) -> Option<&[u32]> {
        self.sums.as_ref().map(Sums::all)
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The pages that it has.
    #[must_use]
    pub fn present(&self) -> &Bits {
        &self.present
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
        if self.file.read_exact_at(into.as_flattened_mut(), offset_of(first)).is_err() {
            self.read_one_by_one(first, into)?;
        }
        self.check(first, into)
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

impl FileBase {
    /// Reads pages so that an error names the first one that does not come.
    fn read_one_by_one(&self, first: PageId, into: &mut [PageBytes]) -> Result<(), SwapError> {
        (first..).zip(into).try_for_each(|(id, page)| {
            let read = self.file.read_exact_at(page, offset_of(id));
            read.map_err(|source| SwapError::ReadPage { file: BASE_FILE, id, source })
        })
    }

    /// Whether pages have come as they were written.
    fn check(&self, first: PageId, pages: &[PageBytes]) -> Result<(), SwapError> {
        let Some(sums) = &self.sums else { return Ok(()) };
        (first..).zip(pages).try_for_each(|(id, page)| {
            let stored = sums.of(&self.present, id).ok_or(SwapError::Unknown { id })?;
            match crc32c::crc32c(page) {
                found if found == stored => Ok(()),
                found => Err(SwapError::Damaged { file: BASE_FILE, id, stored, found }),
            }
        })
    }
}
