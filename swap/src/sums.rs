//! The table of a base's pages: which there are, a checksum of each that tells damage when it is read, and a digest of each that
//! tells whether it is the page that was written (`docs/snapshot-format.md`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::below;
use crate::bits::Bits;
use crate::bounce::Bounces;
use crate::error::{BaseError, SwapError, TablesError};
use crate::packed::{PageKey, SET_PAGES_MAX};
use crate::packed_base::{BASE_FILE, PackedPages};
use crate::page::{PAGE_BYTES, PageBytes, PageId, offset_of};
use crate::pool;
use crate::ranks::Ranks;
use crate::regions::Regions;
use crate::tables::{self, Reader};

const KIND: &[u8; 8] = b"DORMPAGE";
/// The versions: of pages that lie in their file by their numbers, of packed ones, of either with more pages in other files, and of the
/// first with their regions.
const PLAIN: u32 = 1;
const PACKED: u32 = 2;
const STACKED: u32 = 3;
const REGIONS: u32 = 4;
/// Bytes of a page's digest: the first ones of its BLAKE3.
const DIGEST_BYTES: usize = 16;
/// Bytes before the first page's entry, of an entry, and behind the last one.
const HEAD_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 8 + DIGEST_BYTES as u64;
const SUM_BYTES: u64 = 4;
/// Most bytes that tell how the pages are packed, for each page, and beside that for each of the sets of all of them.
const PACKED_PAGE_BYTES: u64 = 2;
const PACKED_SET_BYTES: u64 = 16 + (1 << 16);
/// Bytes of the table that are written at a time.
const PART_BYTES: usize = 64 << 10;
/// Pages that one thread digests at a time.
const DIGESTED_PAGES: usize = 128;
/// Pages that are read at a time to be verified, and of packed ones.
const VERIFIED_PAGES: usize = 64;
const UNPACKED_PAGES: usize = 1024;

/// Another file has not the pages that it is said to have.
pub(crate) const LACKS: BaseError = BaseError::damaged("it has pages that another file lacks");

pub(crate) type PageDigest = [u8; DIGEST_BYTES];

/// The digest of a page.
fn digest(page: &PageBytes) -> PageDigest {
    let mut digest = [0; DIGEST_BYTES];
    digest.copy_from_slice(&blake3::hash(page).as_bytes()[..DIGEST_BYTES]);
    digest
}

/// Writes a table, page by page.
pub struct SumsWriter<'f> {
    to: &'f File,
    part: Vec<u8>,
    /// Of what has been written behind the head, and its length.
    sum: u32,
    len: u64,
    count: u32,
}

impl<'f> SumsWriter<'f> {
    /// Begins a table in a file, whose content goes.
    pub fn begin(to: &'f File) -> io::Result<Self> {
        to.set_len(0)?;
        Ok(Self { to, part: Vec::new(), sum: 0, len: 0, count: 0 })
    }

    /// Adds the next pages, whose numbers ascend, but for those that somebody else has. Result: which were added.
    pub fn add(
        &mut self,
        ids: &[PageId],
        pages: &[PageBytes],
        elsewhere: &mut dyn FnMut(PageId, &PageDigest) -> bool,
    ) -> io::Result<Vec<bool>> {
        let parts: Vec<&[PageBytes]> = pages.chunks(DIGESTED_PAGES).collect();
        let sums = pool::map(&parts, |part| {
            part.iter().map(|page| (crc32c::crc32c(page), digest(page))).collect::<Vec<_>>()
        });
        let mut added = Vec::with_capacity(ids.len());
        for (id, (sum, digest)) in ids.iter().zip(sums.into_iter().flatten()) {
            let is_new = !elsewhere(*id, &digest);
            added.push(is_new);
            if is_new {
                put_entry(&mut self.part, *id, sum, &digest);
                self.count = self.count.checked_add(1).ok_or(io::ErrorKind::InvalidInput)?;
            }
        }
        if self.part.len() >= PART_BYTES {
            self.flush()?;
        }
        Ok(added)
    }

    /// Ends the table; `below`: the pages that others have, one set for each of them. Without any it tells of regions, if they are known.
    pub fn end(mut self, below: &[&Bits], regions: &Regions) -> io::Result<()> {
        let version = match (below.is_empty(), regions.is_empty()) {
            (false, _) => STACKED,
            (true, false) => REGIONS,
            (true, true) => PLAIN,
        };
        match version {
            STACKED => below::put(&mut self.part, below),
            REGIONS => regions.put(&mut self.part),
            _ => {}
        }
        self.flush()?;
        let head = head(version, self.count);
        let len = usize::try_from(self.len).map_err(io::Error::other)?;
        let sum = crc32c::crc32c_combine(crc32c::crc32c(&head), self.sum, len);
        self.to.write_all_at(&sum.to_le_bytes(), HEAD_BYTES + self.len)?;
        self.to.write_all_at(&head, 0)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sum = crc32c::crc32c_append(self.sum, &self.part);
        self.to.write_all_at(&self.part, HEAD_BYTES + self.len)?;
        self.len += self.part.len() as u64;
        self.part.clear();
        Ok(())
    }
}

/// The bytes before the first entry of a table of so many.
fn head(version: u32, count: u32) -> Vec<u8> {
    let mut head = tables::begin(KIND, version);
    head.extend_from_slice(&count.to_le_bytes());
    head
}

/// A table that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSums {
    present: Bits,
    sums: Sums,
    digests: Vec<PageDigest>,
    /// The pages that are in other files, one set for each of those.
    below: Vec<Bits>,
    regions: Regions,
    /// How the pages are packed, as `persist_sets` has it; empty: they are not.
    packed: Box<[u8]>,
}

impl PageSums {
    /// Most bytes of a table of pages with numbers below `end`.
    #[must_use]
    pub fn bytes_max(end: PageId) -> u64 {
        let sets = (u64::from(end) / SET_PAGES_MAX as u64 + 1) * PACKED_SET_BYTES;
        let pages = (ENTRY_BYTES + PACKED_PAGE_BYTES) * u64::from(end);
        HEAD_BYTES + pages + below::bytes_max(end) + Regions::bytes_max(end) + sets + SUM_BYTES
    }

    /// Reads the table in a file. Its pages have numbers below `end`. Whoever wrote it may be hostile.
    pub fn read(from: &File, end: PageId) -> Result<Self, BaseError> {
        let (len, most) = (from.metadata().map_err(BaseError::Table)?.len(), Self::bytes_max(end));
        let len = usize::try_from(len.min(most + 1)).map_err(|_| BaseError::damaged("it is too long"))?;
        let mut bytes = vec![0; len];
        from.read_exact_at(&mut bytes, 0).map_err(BaseError::Table)?;
        Self::parse(&bytes, end)
    }

    /// Reads a table. Its pages have numbers below `end`. Whoever wrote it may be hostile.
    pub fn parse(bytes: &[u8], end: PageId) -> Result<Self, BaseError> {
        let (version, mut from) = tables::open(bytes, KIND, PLAIN..=REGIONS)?;
        let count = from.u32()?;
        let len = u64::from(count) * ENTRY_BYTES;
        // Before memory is taken for so many.
        if from.len() != len && version == PLAIN || from.len() <= len && version != PLAIN {
            return Err(BaseError::damaged("it has another length than it says"));
        }
        let mut present = Bits::default();
        let (mut sums, mut digests) = (Vec::new(), Vec::new());
        let mut behind = 0;
        for _ in 0..count {
            let (id, sum, digest) = entry(&mut from)?;
            if id < behind || id >= end {
                return Err(BaseError::damaged("it has pages that cannot be"));
            }
            behind = id + 1;
            present.set(id);
            sums.push(sum);
            digests.push(digest);
        }
        let below = if version == STACKED { below::take(&mut from, &present, end)? } else { Vec::new() };
        let regions = if version == REGIONS { Regions::take(&mut from, end)? } else { Regions::default() };
        let sums = Sums::new(&present, sums).ok_or(BaseError::damaged("a page is missing"))?;
        Ok(Self { present, sums, digests, below, regions, packed: from.rest().into() })
    }

    /// The bytes of the table of the same pages, packed as these bytes say.
    pub(crate) fn of_packed(&self, sets: &[u8]) -> Vec<u8> {
        let count = u32::try_from(self.digests.len()).unwrap_or(u32::MAX);
        let mut out = head(if self.below.is_empty() { PACKED } else { STACKED }, count);
        for ((id, sum), digest) in self.present.ids().zip(self.sums.all()).zip(&self.digests) {
            put_entry(&mut out, id, *sum, digest);
        }
        if !self.below.is_empty() {
            below::put(&mut out, &self.below.iter().collect::<Vec<_>>());
        }
        out.extend_from_slice(sets);
        tables::seal(&mut out);
        out
    }

    /// Most bytes of a table of so many pages that are not packed, some of which may be in other files; their numbers are below `end`.
    #[must_use]
    pub const fn plain_bytes_max(pages: u64, end: PageId) -> u64 {
        let parts = below::bytes_max(end) + Regions::bytes_max(end);
        pages.saturating_mul(ENTRY_BYTES).saturating_add(HEAD_BYTES + SUM_BYTES + parts)
    }

    /// Whether its pages are packed.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        !self.packed.is_empty()
    }

    /// Whether this is the content of a page, by its checksum.
    pub(crate) fn check(&self, id: PageId, content: &PageBytes) -> Result<(), SwapError> {
        self.sums.check(&self.present, id, content)
    }

    /// The pages.
    #[must_use]
    pub fn present(&self) -> &Bits {
        &self.present
    }

    /// The regions of its pages, as far as it tells.
    #[must_use]
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// The pages that are in other files, one set for each of those.
    #[must_use]
    pub fn below(&self) -> &[Bits] {
        &self.below
    }

    /// How many pages it tells of, those in other files among them.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.below.iter().chain([&self.present]).map(Bits::len).sum()
    }

    /// Whether its own file has all of these pages.
    pub fn has_all(&self, pages: &Bits) -> Result<(), BaseError> {
        let has_all = pages.ids().all(|id| self.present.has(id));
        if has_all { Ok(()) } else { Err(LACKS) }
    }

    /// Whether it has a page with this digest.
    pub(crate) fn has_same(&self, id: PageId, digest: &PageDigest) -> bool {
        let rank = self.sums.ranks.of(&self.present, id);
        rank.and_then(|rank| self.digests.get(rank as usize)) == Some(digest)
    }

    /// The pages in its own file, their checksums and how they are packed, for a base.
    pub(crate) fn into_parts(self) -> (Bits, Sums, Box<[u8]>) {
        (self.present, self.sums, self.packed)
    }

    /// Whether a file has the very pages that the table was written for: compares all digests.
    pub fn verify(&self, pages: &File) -> Result<(), BaseError> {
        self.verify_sealed(pages, None)
    }

    /// [`Self::verify`], if the pages are sealed by a key.
    pub fn verify_sealed(&self, pages: &File, key: Option<&PageKey>) -> Result<(), BaseError> {
        if self.is_packed() {
            return self.verify_packed(pages, key);
        }
        let mut room = vec![[0; PAGE_BYTES]; VERIFIED_PAGES];
        let mut expected = self.digests.iter();
        for (first, last) in self.present.runs() {
            for first in (first..last).step_by(VERIFIED_PAGES) {
                let count = VERIFIED_PAGES.min((last - first) as usize);
                let room = &mut room[..count];
                pages
                    .read_exact_at(room.as_flattened_mut(), offset_of(first))
                    .map_err(|source| BaseError::Pages { id: first, source })?;
                compare(first.., room, &mut expected)?;
            }
        }
        Ok(())
    }

    /// [`Self::verify`] of packed pages, which come by their order.
    fn verify_packed(&self, pages: &File, key: Option<&PageKey>) -> Result<(), BaseError> {
        let pages = pages.try_clone().map_err(BaseError::File)?;
        let packed = PackedPages::open(pages, (&self.present, self.sums.all()), &self.packed, key)?;
        let ids: Vec<PageId> = self.present.ids().collect();
        let mut expected = self.digests.iter();
        let mut bounce = Bounces::new(UNPACKED_PAGES).take().ok_or(BaseError::Memory)?;
        for ids in ids.chunks(UNPACKED_PAGES) {
            packed.fetch(&self.present, &bounce.pages(ids)).map_err(BaseError::Unpack)?;
            compare(ids.iter().copied(), &bounce.places()[..ids.len()], &mut expected)?;
        }
        Ok(())
    }
}

/// Whether pages are those that these digests are of.
fn compare<'d>(
    ids: impl IntoIterator<Item = PageId>,
    pages: &[PageBytes],
    expected: &mut impl Iterator<Item = &'d PageDigest>,
) -> Result<(), BaseError> {
    let mut differs = ids.into_iter().zip(pages).filter(|(_, page)| expected.next() != Some(&digest(page)));
    differs.next().map_or(Ok(()), |(id, _)| Err(BaseError::Changed { id }))
}

fn put_entry(to: &mut Vec<u8>, id: PageId, sum: u32, digest: &PageDigest) {
    to.extend_from_slice(&id.to_le_bytes());
    to.extend_from_slice(&sum.to_le_bytes());
    to.extend_from_slice(digest);
}

fn entry(from: &mut Reader<'_>) -> Result<(PageId, u32, PageDigest), TablesError> {
    let (id, sum) = (from.u32()?, from.u32()?);
    let mut digest = [0; DIGEST_BYTES];
    digest.copy_from_slice(from.bytes(DIGEST_BYTES as u64)?);
    Ok((id, sum, digest))
}

/// The checksums of the pages of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// In the order of the pages.
    sums: Box<[u32]>,
    ranks: Ranks,
}

impl Sums {
    /// Those of these pages, in their order; `None`: there are not as many.
    pub fn new(pages: &Bits, sums: Vec<u32>) -> Option<Self> {
        let ranks = Ranks::new(pages);
        (pages.len() == sums.len() as u64).then(|| Self { sums: sums.into(), ranks })
    }

    /// That of a page of the set.
    pub fn of(&self, pages: &Bits, id: PageId) -> Option<u32> {
        self.sums.get(self.ranks.of(pages, id)? as usize).copied()
    }

    /// Whether this is the content of a page of the set, by its checksum.
    pub fn check(&self, pages: &Bits, id: PageId, content: &PageBytes) -> Result<(), SwapError> {
        let stored = self.of(pages, id).ok_or(SwapError::Unknown { id })?;
        match crc32c::crc32c(content) {
            found if found == stored => Ok(()),
            found => Err(SwapError::Damaged { file: BASE_FILE, id, stored, found }),
        }
    }

    /// All of them, in the order of the pages.
    pub fn all(&self) -> &[u32] {
        &self.sums
    }
}

/// Plays a table that anybody may have written, as it is and with the right checksum.
#[cfg(fuzzing)]
pub fn play(input: &[u8]) {
    const END: PageId = 5000;
    let mut sealed = input.to_vec();
    tables::seal(&mut sealed);
    for bytes in [input, &sealed] {
        let Ok(table) = PageSums::parse(bytes, END) else { continue };
        assert!(table.present.end() <= END && table.present.len() == table.digests.len() as u64);
        let others = table.below.iter().flat_map(Bits::ids).collect::<Vec<_>>();
        assert!(others.iter().all(|id| *id < END && !table.present.has(*id)));
        assert!(others.iter().collect::<std::collections::BTreeSet<_>>().len() == others.len());
        // There is no file that has them.
        let _ = PackedPages::sets(&table.packed, (END.into(), table.present.len()), false);
        let (pages, sums, _) = table.into_parts();
        assert!((0..END + 100).all(|id| sums.of(&pages, id).is_some() == pages.has(id)));
        assert!(pages.len() == sums.all().len() as u64);
    }
}

#[cfg(test)]
#[path = "sums_tests.rs"]
mod tests;
