//! A sandbox as files: its kernel's memory, its pages with a table of their sums, and what a VMM must know before it reads any of them.
#![deny(unsafe_code)]

mod capture;

use std::fs::File;
use std::num::NonZeroU64;
use std::sync::Arc;

use abi::PAGE_SIZE;
use rustix::fs::{self, Advice};
use serde::{Deserialize, Serialize};
pub use swap::Style;
use swap::{BaseError, FileBase, PackError, PageSums};

use crate::memory::frames_of;
use crate::snapshot::Snapshot;

/// All that a VMM must know of an image before it reads it. Whoever keeps the image keeps this with it, under the same seal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageHead {
    /// Digests of the kernel's ELF file and of the stub's.
    pub kernel: String,
    pub stub: String,
    pub is_kvm: bool,
    /// The sizes that the kernel has built its tables for.
    pub cpus: u32,
    pub memory_bytes: u64,
    pub memory_most_bytes: u64,
    pub kernel_bytes: u64,
    /// How many VMMs its kernel has had.
    pub vmms: u32,
    /// The end of the numbers of handles that the kernel has.
    pub handles: u32,
    /// The last numbers of further containers and of processes that came in.
    pub last_container: u64,
    pub last_exec: u64,
    /// Pages in the image, and bytes of the kernel's memory.
    pub pages: u64,
    pub taken_bytes: u64,
}

impl ImageHead {
    /// The number behind the last page that the sandbox can have.
    #[must_use]
    pub fn pages_end(&self) -> u32 {
        frames_of(self.memory_most_bytes.max(self.memory_bytes))
    }
}

/// How an image is to be taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageTerms {
    /// The sandbox is as it was afterwards.
    pub leave_running: bool,
    /// None is taken while there are connections, which whoever begins with it would not have.
    pub refuses_connections: bool,
    /// Whoever asks copies the sandbox's files, too: nothing of it runs until that is done.
    pub copies_files: bool,
}

/// The files of an image that is asked for.
#[derive(Debug)]
pub(crate) struct WantedImage {
    pub request: i64,
    pub files: ImageFiles,
    /// The sandbox is to go on, and may do so before the pages are written.
    pub goes_on: bool,
}

/// The files of an image.
#[derive(Debug)]
pub struct ImageFiles {
    /// Memory by guest-physical address.
    pub kernel: File,
    /// Pages of the programs: page *n* at *n* × 4096.
    pub pages: File,
    /// Which pages there are, and their sums.
    pub table: File,
    /// The content of files that are open and have no name.
    pub orphans: File,
}

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadImage {
    #[error(transparent)]
    Pages(#[from] BaseError),
    #[error("the image has {found} pages instead of {said}")]
    PageCount { found: u64, said: u64 },
    #[error("cannot use the image's files: {0}")]
    File(#[from] std::io::Error),
    #[error(transparent)]
    Pack(#[from] PackError),
}

impl ImageFiles {
    /// The files once more.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        let Self { kernel, pages, table, orphans } = self;
        let [kernel, pages] = [kernel.try_clone()?, pages.try_clone()?];
        Ok(Self { kernel, pages, table: table.try_clone()?, orphans: orphans.try_clone()? })
    }

    /// Reads the table of pages, which may be a stranger's, of an image with this head.
    pub fn sums(&self, head: &ImageHead) -> Result<PageSums, BadImage> {
        let sums = PageSums::read(&self.table, head.pages_end())?;
        let found = sums.present().len();
        if found != head.pages {
            return Err(BadImage::PageCount { found, said: head.pages });
        }
        Ok(sums)
    }

    /// Has the host read pages whose numbers ascend, for whoever will bring them soon.
    pub fn read_ahead(&self, pages: &[u32]) {
        const APART_MAX: u32 = 8;
        for run in pages.chunk_by(|a, b| b - a <= APART_MAX) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let (offset, len) = (u64::from(*first) * PAGE_SIZE, u64::from(last - first + 1) * PAGE_SIZE);
            // A host that does not reads them later.
            let _ = fs::fadvise(&self.pages, offset, NonZeroU64::new(len), Advice::WillNeed);
        }
    }

    /// The pages, for a home that is put on them ([`crate::hibernate::Hibernation::on_base`]). Each is checked when it is read.
    pub fn open_base(&self, head: &ImageHead) -> Result<FileBase, BadImage> {
        Ok(FileBase::with_sums(self.pages.try_clone()?, self.sums(head)?)?)
    }

    /// Packs the pages, which lie in their file as they were written, to other files, which are empty. `goes_on` is asked now and then.
    pub fn pack(
        &self,
        head: &ImageHead,
        style: Style,
        pages: &File,
        table: &File,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), BadImage> {
        // Whoever wrote it may be a stranger, and it is read here as a whole.
        if self.table.metadata()?.len() != PageSums::plain_bytes(head.pages) {
            return Err(BaseError::Damaged { what: "it has another length than its pages" }.into());
        }
        Ok(swap::pack_base(&self.pages, &self.sums(head)?, style, pages, table, goes_on)?)
    }

    /// Has the host read all pages, which are packed, if they are few.
    pub fn read_ahead_packed(&self) {
        const MOST: u64 = 64 << 20;
        if self.pages.metadata().is_ok_and(|found| found.len() <= MOST) {
            let _ = fs::fadvise(&self.pages, 0, None, Advice::WillNeed);
        }
    }

    /// The kernel's memory, for [`crate::sandbox::Sandbox::load`].
    pub fn snapshot(&self, head: &ImageHead) -> Result<Snapshot, BadImage> {
        let (kernel, orphans) = (self.kernel.try_clone()?, self.orphans.try_clone()?);
        Ok(Snapshot::of_image(kernel, orphans, head.taken_bytes, head.vmms))
    }

    /// Compares all pages with their digests; an error names the first that is another.
    pub fn verify_pages(&self, head: &ImageHead) -> Result<(), BadImage> {
        Ok(self.sums(head)?.verify(&self.pages)?)
    }
}

/// An image that was taken. Times in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageTaken {
    pub head: ImageHead,
    /// How long nothing of the sandbox could run before it was told to go on, or its pages were about to be written.
    pub pause_us: u64,
    /// The part of that in which the kernel's memory was written.
    pub kernel_us: u64,
    /// How long its pages were written, behind it where it goes on.
    pub pages_us: u64,
}

/// News of a request for an image.
#[derive(Debug)]
pub enum ImageNews {
    /// All is taken that must be while it rests. It may go on now; its pages are being written.
    Captured,
    /// How it came out. Where it was not captured before, nothing of the sandbox runs until this is heard.
    Done(Result<ImageTaken, String>),
}

/// Takes the news of the request for an image with this number.
pub type ImageSink = Arc<dyn Fn(u64, ImageNews) + Send + Sync>;
