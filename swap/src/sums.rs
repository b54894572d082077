//! The table of a base's pages: which there are, a checksum of each that tells damage when it is read, and a digest of each that
//! tells whether it is the page that was written (`docs/snapshot-format.md`).

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use crate::bits::Bits;
use crate::error::{BaseError, TablesError};
use crate::page::{PAGE_BYTES, PageBytes, PageId, offset_of};
use crate::pool;
use crate::tables::{self, Reader};

const KIND: &[u8; 8] = b"DORMPAGE";
const VERSION: u32 = 1;
/// Bytes of a page's digest: the first ones of its BLAKE3.
const DIGEST_BYTES: usize = 16;
/// Bytes before the first page's entry, of an entry, and behind the last one.
const HEAD_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 8 + DIGEST_BYTES as u64;
const SUM_BYTES: u64 = 4;
/// Bytes of the table that are written at a time.
const PART_BYTES: usize = 64 << 10;
/// Pages that one thread digests at a time.
const DIGESTED_PAGES: usize = 128;
/// Pages that are read at a time to be verified.
const VERIFIED_PAGES: usize = 64;

type PageDigest = [u8; DIGEST_BYTES];

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
    /// Of what has been written.
    sum: u32,
    left: u32,
}

impl<'f> SumsWriter<'f> {
    /// Begins the table of `count` pages in a file, whose content goes.
    pub fn begin(to: &'f File, count: u32) -> io::Result<Self> {
        let mut file = to;
        to.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        let mut part = tables::begin(KIND, VERSION);
        part.extend_from_slice(&count.to_le_bytes());
        Ok(Self { to, part, sum: 0, left: count })
    }

    /// Adds the next pages, whose numbers ascend.
    pub fn add(&mut self, ids: &[PageId], pages: &[PageBytes]) -> io::Result<()> {
        let count = u32::try_from(ids.len()).map_err(io::Error::other)?;
        self.left = self.left.checked_sub(count).ok_or(io::ErrorKind::InvalidInput)?;
        let parts: Vec<&[PageBytes]> = pages.chunks(DIGESTED_PAGES).collect();
        let sums = pool::map(&parts, |part| {
            part.iter().map(|page| (crc32c::crc32c(page), digest(page))).collect::<Vec<_>>()
        });
        for (id, (sum, digest)) in ids.iter().zip(sums.into_iter().flatten()) {
            self.part.extend_from_slice(&id.to_le_bytes());
            self.part.extend_from_slice(&sum.to_le_bytes());
            self.part.extend_from_slice(&digest);
        }
        if self.part.len() >= PART_BYTES { self.flush() } else { Ok(()) }
    }

    /// Ends the table, which has as many pages as it was begun for.
    pub fn end(mut self) -> io::Result<()> {
        if self.left != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.flush()?;
        let mut to = self.to;
        to.write_all(&self.sum.to_le_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sum = crc32c::crc32c_append(self.sum, &self.part);
        let mut to = self.to;
        to.write_all(&self.part)?;
        self.part.clear();
        Ok(())
    }
}

/// A table that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageSums {
    present: Bits,
    sums: Sums,
    digests: Vec<PageDigest>,
}

impl PageSums {
    /// Reads the table in a file. Its pages have numbers below `end`. Whoever wrote it may be hostile.
    pub fn read(from: &File, end: PageId) -> Result<Self, BaseError> {
        let len = from.metadata().map_err(BaseError::Table)?.len();
        let most = HEAD_BYTES + ENTRY_BYTES * u64::from(end) + SUM_BYTES;
        let len = usize::try_from(len.min(most + 1)).map_err(|_| BaseError::damaged("it is too long"))?;
        let mut bytes = vec![0; len];
        from.read_exact_at(&mut bytes, 0).map_err(BaseError::Table)?;
        Self::parse(&bytes, end)
    }

    /// Reads a table. Its pages have numbers below `end`. Whoever wrote it may be hostile.
    pub fn parse(bytes: &[u8], end: PageId) -> Result<Self, BaseError> {
        let (_, mut from) = tables::open(bytes, KIND, VERSION..=VERSION)?;
        let count = from.u32()?;
        // Before memory is taken for so many.
        if from.len() != u64::from(count) * ENTRY_BYTES {
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
        let sums = Sums::new(&present, sums).ok_or(BaseError::damaged("a page is missing"))?;
        Ok(Self { present, sums, digests })
    }

    /// The pages.
    #[must_use]
    pub fn present(&self) -> &Bits {
        &self.present
    }

    /// The pages and their checksums, for a base.
    pub(crate) fn into_parts(self) -> (Bits, Sums) {
        (self.present, self.sums)
    }

    /// Whether a file has the very pages that the table was written for: compares all digests.
    pub fn verify(&self, pages: &File) -> Result<(), BaseError> {
        let mut room = vec![[0; PAGE_BYTES]; VERIFIED_PAGES];
        let mut expected = self.digests.iter();
        for (first, last) in self.present.runs() {
            for first in (first..last).step_by(VERIFIED_PAGES) {
                let count = VERIFIED_PAGES.min((last - first) as usize);
                let room = &mut room[..count];
                pages
                    .read_exact_at(room.as_flattened_mut(), offset_of(first))
                    .map_err(|source| BaseError::Pages { id: first, source })?;
                for (id, page) in (first..).zip(&*room) {
                    if expected.next() != Some(&digest(page)) {
                        return Err(BaseError::Changed { id });
                    }
                }
            }
        }
        Ok(())
    }
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
    /// How many pages come before those of each word of the set.
    before: Box<[u32]>,
}

impl Sums {
    /// Those of these pages, in their order; `None`: there are not as many.
    pub fn new(pages: &Bits, sums: Vec<u32>) -> Option<Self> {
        let mut count = 0_u32;
        let before = pages.words().iter().map(|word| {
            let before = count;
            count += word.count_ones();
            before
        });
        let before = before.collect();
        (count as usize == sums.len()).then(|| Self { sums: sums.into(), before })
    }

    /// That of a page of the set.
    pub fn of(&self, pages: &Bits, id: PageId) -> Option<u32> {
        let word = id as usize / 64;
        let earlier = pages.words().get(word)? & ((1 << (id % 64)) - 1);
        let at = self.before.get(word)? + earlier.count_ones();
        self.sums.get(at as usize).copied().filter(|_| pages.has(id))
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
        let (pages, sums) = table.into_parts();
        assert!((0..END + 100).all(|id| sums.of(&pages, id).is_some() == pages.has(id)));
        assert!(pages.len() == sums.all().len() as u64);
    }
}

#[cfg(test)]
#[path = "sums_tests.rs"]
mod tests;
