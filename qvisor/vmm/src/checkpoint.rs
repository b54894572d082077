//! A sandbox as files: its kernel's memory, its pages with a table of their sums, and what a VMM must know before it reads any of them.
#![deny(unsafe_code)]

mod capture;

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use abi::PAGE_SIZE;
use rustix::fs::{self, Advice};
use serde::{Deserialize, Serialize};
pub use swap::write_together;
pub use swap::{BELOW_MAX, Bits, PageKey, PageRegion, PageSums, Regions, Style, wipe};
use swap::{Base, BaseError, ExportError, FileBase, IndexError, PackError, PageId, StackedBase};

pub use crate::hibernate::{FileId, KnownParent};
use crate::memory::frames_of;
use crate::snapshot::Snapshot;

/// Most bytes of files without a name that an image keeps.
pub const ORPHANS_BYTES_MAX: u64 = 1 << 30;

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
    /// Whoever asks seals what is written, which is in memory until then: pages that are encrypted may be written.
    pub seals: bool,
}

/// The files of an image that is asked for.
#[derive(Debug)]
pub(crate) struct WantedImage {
    pub request: i64,
    pub files: ImageFiles,
    /// The image that pages are left to which it has.
    pub parent: Option<KnownParent>,
    /// Told by its kernel before its memory is taken.
    pub regions: Regions,
    /// The sandbox is to go on, and may do so before the pages are written.
    pub goes_on: bool,
    /// See [`ImageTerms::seals`].
    pub seals: bool,
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
    /// Those of other images that have some of its pages, in the order of its table.
    pub below: Vec<BelowFiles>,
    /// Some of its pages once more, where they are brought from ([`swap::write_together`]).
    pub together: Option<File>,
}

/// The pages of an image that others have pages in, with their table.
#[derive(Debug)]
pub struct BelowFiles {
    pub pages: File,
    pub table: File,
}

impl BelowFiles {
    /// The files once more.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self { pages: self.pages.try_clone()?, table: self.table.try_clone()? })
    }
}

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadImage {
    #[error(transparent)]
    Pages(#[from] BaseError),
    #[error("the image has {found} pages instead of {said}")]
    PageCount { found: u64, said: u64 },
    #[error("the image has pages in {said} other files, and there are {found}")]
    OtherFiles { found: usize, said: usize },
    #[error("cannot use the image's files: {0}")]
    File(#[from] std::io::Error),
    #[error(transparent)]
    Pack(#[from] PackError),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// Makes the index of a base's pages, which lie in a sealed file of memory: page *n* at *n* × 4096, and *n* below `end`.
pub fn index_pages(pages: File, table: &File, end: PageId) -> Result<Vec<u8>, BadImage> {
    let sums = PageSums::read(table, end).map_err(BadImage::Pages)?;
    Ok(FileBase::with_sums(pages, sums).map_err(BadImage::Pages)?.index()?)
}

impl ImageFiles {
    /// Those of an image that has all of its pages itself, each in one place.
    #[must_use]
    pub fn alone(kernel: File, pages: File, table: File, orphans: File) -> Self {
        Self { kernel, pages, table, orphans, below: Vec::new(), together: None }
    }

    /// The files once more.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        let Self { kernel, pages, table, orphans, below, together } = self;
        let [kernel, pages] = [kernel.try_clone()?, pages.try_clone()?];
        let below = below.iter().map(BelowFiles::try_clone).collect::<std::io::Result<_>>()?;
        let together = together.as_ref().map(File::try_clone).transpose()?;
        Ok(Self { kernel, pages, table: table.try_clone()?, orphans: orphans.try_clone()?, below, together })
    }

    /// Their descriptors, for another process.
    #[must_use]
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        let Self { kernel, pages, table, orphans, below, together } = self;
        let below = below.into_iter().flat_map(|BelowFiles { pages, table }| [pages, table]);
        [kernel, pages, table, orphans].into_iter().chain(below).chain(together).map(OwnedFd::from).collect()
    }

    /// The files that had [these descriptors](Self::into_descriptors); `None`: there are others.
    #[must_use]
    pub fn from_descriptors(descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut files = descriptors.into_iter().map(File::from);
        let mut next = || files.next();
        let (kernel, pages, table, orphans) = (next()?, next()?, next()?, next()?);
        let (mut below, mut together) = (Vec::new(), None);
        while let Some(pages) = next() {
            match next() {
                Some(table) => below.push(BelowFiles { pages, table }),
                None => together = Some(pages),
            }
        }
        Some(Self { kernel, pages, table, orphans, below, together })
    }

    /// Reads the table of pages, which may be a stranger's, of an image with this head.
    pub fn sums(&self, head: &ImageHead) -> Result<PageSums, BadImage> {
        let sums = PageSums::read(&self.table, head.pages_end())?;
        let found = sums.count();
        if found != head.pages {
            return Err(BadImage::PageCount { found, said: head.pages });
        }
        let (found, said) = (self.below.len(), sums.below().len());
        if found != said {
            return Err(BadImage::OtherFiles { found, said });
        }
        Ok(sums)
    }

    /// Has the host read pages whose numbers ascend, for whoever will bring them soon, wherever they are. `packed`: whether the pages of each
    /// file are packed, its own first; then it reads all of them, if they are few.
    pub fn read_ahead(&self, pages: &[u32], packed: &[bool]) {
        let files = [&self.pages].into_iter().chain(self.below.iter().map(|files| &files.pages));
        for (file, is_packed) in files.zip(packed) {
            if *is_packed { read_ahead_all(file) } else { read_ahead(file, pages) }
        }
    }

    /// The pages, for a home that is put on them ([`crate::hibernate::Hibernation::on_base`]). Each is checked when it is read.
    /// `key`: by which those in its own file are sealed, if they are.
    pub fn open_base(&self, head: &ImageHead, key: Option<&PageKey>) -> Result<StackedBase, BadImage> {
        let sums = self.sums(head)?;
        let below = self.below.iter().zip(sums.below()).map(|(files, pages)| {
            let sums = PageSums::read(&files.table, head.pages_end())?;
            Ok((FileBase::with_sums(files.pages.try_clone()?, sums)?, pages.clone()))
        });
        let below = below.collect::<Result<Vec<_>, BadImage>>()?;
        let own = FileBase::with_key(self.pages.try_clone()?, sums, key)?;
        let own = match &self.together {
            Some(together) => own.with_together(together.try_clone()?)?,
            None => own,
        };
        Ok(StackedBase::new(own, below)?)
    }

    /// Packs the pages, which lie in their file as they were written, to other files, which are empty: of pages, and of their table. With a
    /// key they are sealed; by it nothing else is. `goes_on` is asked now and then. Result: whether its own file has any.
    pub fn pack(
        &self,
        head: &ImageHead,
        how: (Style, Option<&PageKey>),
        to: (&File, &File),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool, BadImage> {
        // Whoever wrote it may be a stranger, and it is read here as a whole.
        if self.table.metadata()?.len() > PageSums::plain_bytes_max(head.pages, head.pages_end()) {
            return Err(BaseError::Damaged { what: "it is longer than its pages" }.into());
        }
        let sums = self.sums(head)?;
        swap::pack_base((&self.pages, &sums), how, to, goes_on)?;
        Ok(!sums.present().is_empty())
    }

    /// Writes all of its pages, those in other files among them, to a file in which each lies by its number, and the table of them to another.
    /// The pages are not sealed by a key; each is checked when it is read.
    pub fn write_plain(&self, head: &ImageHead, pages: &File, table: &File) -> Result<(), BadImage> {
        let sums = self.sums(head)?;
        let mut all = sums.present().clone();
        sums.below().iter().flat_map(Bits::ids).for_each(|id| all.set(id));
        let base = self.open_base(head, None)?;
        swap::make_room(pages, &all)?;
        swap::write_set(&all, sums.regions(), (pages, table), None, &|pages| {
            Ok(base.fetch(pages.to_vec()).map(drop)?)
        })?;
        Ok(())
    }

    /// The kernel's memory, for [`crate::sandbox::Sandbox::load`].
    pub fn snapshot(&self, head: &ImageHead) -> Result<Snapshot, BadImage> {
        let (kernel, orphans) = (self.kernel.try_clone()?, self.orphans.try_clone()?);
        Ok(Snapshot::of_image(kernel, orphans, head.taken_bytes, head.vmms))
    }

    /// Compares all pages with their digests, in the files of others too; an error names the first that is another. `packed`: whether the
    /// pages of each file are said to be packed, its own first. What is not said to be is not unpacked.
    /// `key`: by which those in its own file are sealed, if they are.
    pub fn verify_pages(
        &self,
        head: &ImageHead,
        packed: &[bool],
        key: Option<&PageKey>,
    ) -> Result<(), BadImage> {
        let own = self.sums(head)?;
        let is_of_kind = |sums: &PageSums, at: usize| packed.get(at) == Some(&sums.is_packed());
        let other_kind = || BaseError::Damaged { what: "its pages are not packed as is said of them" };
        if !is_of_kind(&own, 0) {
            return Err(other_kind().into());
        }
        own.verify_sealed(&self.pages, key)?;
        for (at, (files, pages)) in (1..).zip(self.below.iter().zip(own.below())) {
            let below = PageSums::read(&files.table, head.pages_end())?;
            below.has_all(pages)?;
            if !is_of_kind(&below, at) {
                return Err(other_kind().into());
            }
            below.verify(&files.pages)?;
        }
        Ok(())
    }
}

/// Has the host read pages of a file where they lie by their numbers.
pub fn read_ahead(file: &File, pages: &[u32]) {
    const APART_MAX: u32 = 8;
    for run in pages.chunk_by(|a, b| b - a <= APART_MAX) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let (offset, len) = (u64::from(*first) * PAGE_SIZE, u64::from(last - first + 1) * PAGE_SIZE);
        // A host that does not reads them later.
        let _ = fs::fadvise(file, offset, NonZeroU64::new(len), Advice::WillNeed);
    }
}

/// Has the host read a file, if it is short.
pub fn read_ahead_all(file: &File) {
    const MOST: u64 = 64 << 20;
    if file.metadata().is_ok_and(|found| found.len() <= MOST) {
        let _ = fs::fadvise(file, 0, None, Advice::WillNeed);
    }
}

/// A file of the host that a container may be writing to, as the kernel says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// The number of the container.
    pub container: u64,
    /// The path in it, in printable letters.
    pub path: String,
}

impl WrittenFile {
    /// Reads a line of [`abi::report::Report::Written`].
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (container, path) = line.split_once(' ')?;
        Some(Self { container: container.parse().ok()?, path: path.to_owned() }).filter(Self::is_printable)
    }

    /// Whether its path is in letters that a terminal shows.
    #[must_use]
    pub fn is_printable(&self) -> bool {
        self.path.bytes().all(|byte| (b' '..=b'~').contains(&byte))
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
    /// The further containers of a pod that are in it, as far as whoever runs the sandbox knows.
    #[serde(default)]
    pub further: Vec<u64>,
    /// Files of the host, not in the image, that programs may have been writing to.
    #[serde(default)]
    pub written: Vec<WrittenFile>,
    /// The files that pages were left to: their places among those of its parent, the parent's own being 0, in the order of the table.
    #[serde(default)]
    pub below: Vec<usize>,
    /// Pages that were left to them.
    #[serde(default)]
    pub left_pages: u64,
}

/// News of a request for an image.
#[derive(Debug)]
pub enum ImageNews {
    /// All is taken that must be while it rests. It may go on now; its pages are being written.
    Captured,
    /// How it came out. Where it was not captured before, nothing of the sandbox runs until this is heard.
    Done(Result<Box<ImageTaken>, String>),
}

/// Takes the news of the request for an image with this number.
pub type ImageSink = Arc<dyn Fn(u64, ImageNews) + Send + Sync>;
