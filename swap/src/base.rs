//! Read-only pages that may lie under a home: what several sandboxes begin with.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

use crate::bits::Bits;
use crate::bounce::Bounces;
use crate::error::{BaseError, SwapError, TablesError};
use crate::mapped::MappedPages;
use crate::mapping::SEALS;
use crate::packed::PageKey;
use crate::packed_base::{BASE_FILE, PackedPages};
use crate::page::{PAGE_BYTES, Page, PageBytes, PageId, offset_of};
use crate::pool;
use crate::sums::{PageSums, Sums};
use crate::together::Together;

/// Most pages that are read at once: 128 KiB.
const RUN_PAGES: usize = 32;
/// Pages that one thread compares at a time, and packed ones together.
const PART_PAGES: usize = 512;
/// Packed pages of a part that may fail to come before the others are not tried any more: two partitions of them.
const FAILURES_MAX: u32 = 32;

/// Pages that never change.
pub trait Base: Send + Sync {
    /// Whether it has the page.
    fn has(&self, page: PageId) -> bool;
    /// The number behind the last page that it has.
    fn end(&self) -> PageId;
    /// Brings pages that it has to where they are wanted. Result: bytes read.
    fn fetch(&self, pages: Vec<Page>) -> Result<u64, SwapError>;
    /// Whether pages equal those that it has; what it lacks, or cannot give, differs.
    fn equals(&self, pages: &[Page]) -> Vec<bool>;
    /// Whether pages are as they were written: for each the error of a read of it.
    fn check(&self, pages: &[PageId]) -> Vec<Result<(), SwapError>>;
    /// The offset of the page in a file that may be mapped in its place; `None`: there is no such file, or no such page.
    fn window(&self, page: PageId) -> Option<u64>;
    /// Nothing is read for a while.
    fn rest(&self) {}
}

/// A base in a file: page *n* at offset *n* × 4096, with holes where there is no page, or all of them packed. A sealed file of memory is mapped.
pub struct FileBase {
    present: Bits,
    content: Content,
    together: Option<Together>,
}

enum Content {
    /// `sums`: `None`: pages are taken as they come.
    Plain {
        file: File,
        sums: Option<Sums>,
    },
    Mapped(MappedPages),
    Packed(Box<PackedPages>),
}

/// All that must be known of a base to open its file.
#[derive(Debug, Default)]
pub struct BaseTables {
    /// The pages that it has.
    pub present: Bits,
    /// The checksums by which pages are checked, in the order of the pages; `None`: they are not checked.
    pub sums: Option<Vec<u32>>,
    /// How its pages are packed; empty: they are not.
    pub packed: Box<[u8]>,
}

impl fmt::Debug for FileBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_packed = matches!(self.content, Content::Packed(_));
        f.debug_struct("FileBase")
            .field("pages", &self.present.len())
            .field("is_packed", &is_packed)
            .finish_non_exhaustive()
    }
}

impl FileBase {
    /// The base of the `present` pages of `file`, which goes through the page cache. It must be long enough for them.
    pub fn new(file: File, present: Bits) -> io::Result<Self> {
        Self::plain(file, present, None)
    }

    fn plain(file: File, present: Bits, sums: Option<Sums>) -> io::Result<Self> {
        if file.metadata()?.len() < offset_of(present.end()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let content = match sums {
            None => Content::Plain { file, sums },
            Some(sums) => match MappedPages::open(file, sums)? {
                Ok(mapped) => Content::Mapped(mapped),
                Err((file, sums)) => Content::Plain { file, sums: Some(sums) },
            },
        };
        Ok(Self { present, content, together: None })
    }

    /// The base of the pages of a table, in a file that was written with it. Each page is checked when it is read.
    pub fn with_sums(file: File, table: PageSums) -> Result<Self, BaseError> {
        Self::with_key(file, table, None)
    }

    /// [`Self::with_sums`] of pages that are sealed by this key, if there is one.
    pub fn with_key(file: File, table: PageSums, key: Option<&PageKey>) -> Result<Self, BaseError> {
        let (present, sums, packed) = table.into_parts();
        Self::checked(file, present, sums, (&packed, key))
    }

    fn checked(
        file: File,
        present: Bits,
        sums: Sums,
        (packed, key): (&[u8], Option<&PageKey>),
    ) -> Result<Self, BaseError> {
        if packed.is_empty() && (key.is_none() || present.is_empty()) {
            return Self::plain(file, present, Some(sums)).map_err(BaseError::File);
        }
        let content = Content::Packed(PackedPages::open(file, (&present, sums.all()), packed, key)?.into());
        Ok(Self { present, content, together: None })
    }

    /// With pages that lie together in another file as well: they are brought from there.
    pub fn with_together(self, file: File) -> io::Result<Self> {
        Ok(Self { together: Some(Together::open(file)?), ..self })
    }

    /// The base that had this file, and [these tables](Self::tables) under another owner, who may be hostile.
    pub fn reopen(file: File, tables: BaseTables) -> Result<Self, BaseError> {
        let BaseTables { present, sums, packed } = tables;
        let other = BaseError::damaged("it has another number of checksums than of pages");
        match sums {
            Some(sums) => {
                let sums = Sums::new(&present, sums).ok_or(other)?;
                Self::checked(file, present, sums, (&packed, None))
            }
            None if packed.is_empty() => Self::new(file, present).map_err(BaseError::File),
            None => Err(other),
        }
    }

    /// All that must be known to open its file once more.
    pub fn tables(&self) -> Result<BaseTables, TablesError> {
        let present = self.present.clone();
        Ok(match &self.content {
            Content::Plain { sums, .. } => {
                let sums = sums.as_ref().map(|sums| sums.all().to_vec());
                BaseTables { present, sums, packed: Box::default() }
            }
            Content::Mapped(mapped) => {
                BaseTables { present, sums: Some(mapped.sums.all().to_vec()), packed: Box::default() }
            }
            Content::Packed(packed) => {
                BaseTables { present, sums: Some(packed.sums()), packed: packed.tables()?.into() }
            }
        })
    }

    /// The base of these pages, whose numbers ascend, in a file of memory that nobody can change.
    pub fn in_memory<'p>(
        pages: impl IntoIterator<Item = (PageId, &'p PageBytes)>,
    ) -> Result<Self, BaseError> {
        let failed = BaseError::File;
        let file = memfd_create("dormouse-base", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = File::from(file.map_err(|error| failed(error.into()))?);
        let (mut present, mut sums) = (Bits::default(), Vec::new());
        for (id, page) in pages {
            if present.end() > id {
                return Err(BaseError::damaged("its pages are in no order"));
            }
            file.write_all_at(page, offset_of(id)).map_err(failed)?;
            present.set(id);
            sums.push(crc32c::crc32c(page));
        }
        fcntl_add_seals(&file, SEALS).map_err(|error| failed(error.into()))?;
        Self::reopen(file, BaseTables { present, sums: Some(sums), packed: Box::default() })
    }

    /// Whether its pages are sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        matches!(&self.content, Content::Packed(packed) if packed.is_sealed())
    }

    /// The pages that it has.
    pub(crate) fn present(&self) -> &Bits {
        &self.present
    }

    /// The descriptor of its file.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.content {
            Content::Plain { file, .. } => Some(file.as_fd()),
            Content::Mapped(mapped) => Some(mapped.file.as_fd()),
            Content::Packed(packed) => packed.descriptor(),
        }
    }
}

impl Base for FileBase {
    fn has(&self, page: PageId) -> bool {
        self.present.has(page)
    }

    fn end(&self) -> PageId {
        self.present.end()
    }

    fn fetch(&self, mut pages: Vec<Page>) -> Result<u64, SwapError> {
        match &self.content {
            Content::Plain { file, sums } => {
                pages.sort_unstable_by_key(|page| page.id);
                let is_right = |id, content: &PageBytes| {
                    sums.as_ref().is_none_or(|sums| sums.check(&self.present, id, content).is_ok())
                };
                let together = self.together.as_ref();
                let read_bytes = together.map_or(0, |together| together.fetch(&mut pages, is_right));
                Ok(read_bytes + self.fetch_runs(file, sums.as_ref(), &pages)?)
            }
            Content::Mapped(mapped) => mapped.fetch(&self.present, &pages),
            Content::Packed(packed) => packed.fetch(&self.present, &pages),
        }
    }

    fn equals(&self, pages: &[Page]) -> Vec<bool> {
        match &self.content {
            Content::Plain { file, sums } => {
                let parts: Vec<&[Page]> = pages.chunks(PART_PAGES).collect();
                let compared = pool::map(&parts, |part| {
                    let mut room = Vec::new();
                    let equals = |run| self.run_equals(file, sums.as_ref(), run, &mut room);
                    self.runs(part).flat_map(equals).collect::<Vec<_>>()
                });
                compared.into_iter().flatten().collect()
            }
            Content::Mapped(mapped) => mapped.equals(&self.present, pages),
            Content::Packed(packed) => self.packed_equals(packed, pages),
        }
    }

    fn check(&self, pages: &[PageId]) -> Vec<Result<(), SwapError>> {
        match &self.content {
            Content::Plain { file, sums } => {
                let follows = |a: &PageId, b: &PageId| a.checked_add(1) == Some(*b);
                let runs: Vec<&[PageId]> =
                    pages.chunk_by(follows).flat_map(|run| run.chunks(RUN_PAGES)).collect();
                let checked = pool::map(&runs, |run| self.check_run(file, sums.as_ref(), run));
                checked.into_iter().flatten().collect()
            }
            Content::Mapped(mapped) => {
                pages.iter().map(|id| mapped.checked(&self.present, *id).map(drop)).collect()
            }
            Content::Packed(packed) => {
                let Some(mut room) = Bounces::new(1).take() else {
                    return pages.iter().map(|id| Err(SwapError::Unknown { id: *id })).collect();
                };
                let fetch = |id: &PageId| packed.fetch(&self.present, &room.pages(&[*id])).map(drop);
                pages.iter().map(fetch).collect()
            }
        }
    }

    fn window(&self, page: PageId) -> Option<u64> {
        let is_plain = matches!(self.content, Content::Plain { .. } | Content::Mapped(_));
        (is_plain && self.has(page)).then(|| offset_of(page))
    }

    fn rest(&self) {
        match &self.content {
            Content::Plain { .. } => {}
            Content::Mapped(mapped) => mapped.rest(),
            Content::Packed(packed) => packed.rest(),
        }
    }
}

/// Of a base in memory.
impl FileBase {
    fn mapping(&self) -> Option<&MappedPages> {
        match &self.content {
            Content::Mapped(mapped) => Some(mapped),
            Content::Plain { .. } | Content::Packed(_) => None,
        }
    }

    /// Whether its pages are in memory, and stay there.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.mapping().is_some()
    }

    /// A page, if it has it in memory.
    pub(crate) fn mapped(&self, id: PageId) -> Option<&PageBytes> {
        self.mapping()?.page(id).filter(|_| self.has(id))
    }

    /// A page that it has in memory, as it was written.
    pub(crate) fn mapped_checked(&self, id: PageId) -> Result<&PageBytes, SwapError> {
        self.mapping().ok_or(SwapError::Unknown { id })?.checked(&self.present, id)
    }
}

impl FileBase {
    /// Runs of pages that follow each other in the base, or are not in it.
    fn runs<'a>(&self, pages: &'a [Page]) -> impl Iterator<Item = &'a [Page]> {
        let follows =
            |a: &Page, b: &Page| a.id.checked_add(1) == Some(b.id) && self.has(a.id) == self.has(b.id);
        pages.chunk_by(follows).flat_map(|run| run.chunks(RUN_PAGES))
    }

    /// Brings pages, whose numbers ascend.
    fn fetch_runs(&self, file: &File, sums: Option<&Sums>, pages: &[Page]) -> Result<u64, SwapError> {
        let runs: Vec<&[Page]> = self.runs(pages).collect();
        runs.iter().for_each(|run| hint(file, run));
        let read = pool::map(&runs, |run| {
            let Some(first) = run.first() else { return Ok(0) };
            let mut room = vec![[0; PAGE_BYTES]; run.len()];
            self.read(file, sums, first.id, &mut room)?;
            run.iter().zip(&room).for_each(|(page, content)| page.copy_in(content));
            Ok(size_of_val(&room[..]) as u64)
        });
        read.into_iter().sum()
    }

    /// Whether pages equal those of the base, each of which comes behind the one before.
    fn run_equals(
        &self,
        file: &File,
        sums: Option<&Sums>,
        run: &[Page],
        room: &mut Vec<PageBytes>,
    ) -> Vec<bool> {
        let Some(first) = run.first().filter(|page| self.has(page.id)) else { return vec![false; run.len()] };
        room.resize(run.len(), [0; PAGE_BYTES]);
        if self.read(file, sums, first.id, room).is_err() {
            return vec![false; run.len()];
        }
        let mut copy: PageBytes = [0; PAGE_BYTES];
        let is_same = |(page, of_base): (&Page, &PageBytes)| {
            page.copy_out(&mut copy);
            copy == *of_base
        };
        run.iter().zip(&*room).map(is_same).collect()
    }

    /// Checks pages that follow each other.
    fn check_run(&self, file: &File, sums: Option<&Sums>, run: &[PageId]) -> Vec<Result<(), SwapError>> {
        let mut room = vec![[0; PAGE_BYTES]; run.len()];
        match run.first() {
            Some(first) if self.read(file, sums, *first, &mut room).is_ok() => {
                run.iter().map(|_| Ok(())).collect()
            }
            // One of them does not come.
            _ => run.iter().map(|id| self.read(file, sums, *id, &mut room[..1])).collect(),
        }
    }

    /// Whether pages equal those of the base, which is packed. Pages that were packed together are unpacked once.
    fn packed_equals(&self, packed: &PackedPages, pages: &[Page]) -> Vec<bool> {
        let mut same = vec![false; pages.len()];
        let Some(mut room) = Bounces::new(PART_PAGES).take() else { return same };
        let mut ascending: Vec<usize> = (0..pages.len()).filter(|at| self.has(pages[*at].id)).collect();
        ascending.sort_unstable_by_key(|at| pages[*at].id);
        let mut copy: PageBytes = [0; PAGE_BYTES];
        for part in ascending.chunks(PART_PAGES) {
            let ids: Vec<PageId> = part.iter().map(|at| pages[*at].id).collect();
            let places = room.pages(&ids);
            let fetch = |pages: &[Page]| packed.fetch(&self.present, pages).is_ok();
            // Those beside a damaged one come by themselves; a disk that gives none is not asked for each.
            let (all_came, mut failures) = (fetch(&places), 0);
            let mut comes = |place: &[Page]| {
                let came = all_came || failures < FAILURES_MAX && fetch(place);
                failures += u32::from(!came);
                came
            };
            let came: Vec<bool> = places.chunks(1).map(&mut comes).collect();
            for ((at, of_base), came) in part.iter().zip(room.places().iter()).zip(came) {
                pages[*at].copy_out(&mut copy);
                same[*at] = came && copy == *of_base;
            }
        }
        same
    }

    /// Reads pages from `first` on, which it has.
    fn read(
        &self,
        file: &File,
        sums: Option<&Sums>,
        first: PageId,
        into: &mut [PageBytes],
    ) -> Result<(), SwapError> {
        let ids = first..=PageId::MAX;
        if let Some(id) = ids.take(into.len()).find(|id| !self.has(*id)) {
            return Err(SwapError::Unknown { id });
        }
        if file.read_exact_at(into.as_flattened_mut(), offset_of(first)).is_err() {
            read_one_by_one(file, first, into)?;
        }
        let Some(sums) = sums else { return Ok(()) };
        // Whether they have come as they were written.
        (first..).zip(&*into).try_for_each(|(id, page)| sums.check(&self.present, id, page))
    }
}

/// These pages will be read soon.
fn hint(file: &File, run: &[Page]) {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return };
    let signed = |offset: u64| libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
    let (start, len) = (signed(offset_of(first.id)), signed(offset_of(last.id - first.id + 1)));
    // SAFETY: integers only. A hint that the host does not take costs nothing but time.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), start, len, libc::POSIX_FADV_WILLNEED) };
}

/// Reads pages so that an error names the first one that does not come.
fn read_one_by_one(file: &File, first: PageId, into: &mut [PageBytes]) -> Result<(), SwapError> {
    (first..).zip(into).try_for_each(|(id, page)| {
        let read = file.read_exact_at(page, offset_of(id));
        read.map_err(|source| SwapError::ReadPage { file: BASE_FILE, id, source })
    })
}
