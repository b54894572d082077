//! The regions of a base's pages, as the kernel that had them knew them: which are copies of files, which of those are run, and which are of
//! files in memory. All others are programs' own.

use crate::below;
use crate::bits::Bits;
use crate::error::BaseError;
use crate::page::PageId;
use crate::tables::Reader;

const WORD_BYTES: u64 = 8;
const COUNT_BYTES: u64 = 4;
const SETS: usize = 3;

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRegion {
    /// A copy of a file's page that is mapped to be run, and not to be written.
    Executable,
    /// Another copy of a file's page.
    File,
    /// A page of a file in memory.
    Memory,
    /// A program's own.
    Own,
}

/// See the module. They are hints: nothing but time and room depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// Copies of files' pages, pages of files in memory, and those that are mapped to be run.
    sets: [Bits; SETS],
}

impl Regions {
    /// Says which pages are copies of files' pages, of files in memory, or mapped to be run.
    pub fn set(&mut self, region: PageRegion, pages: Bits) {
        let number = match region {
            PageRegion::File => 0,
            PageRegion::Memory => 1,
            PageRegion::Executable => 2,
            PageRegion::Own => return,
        };
        self.sets[number] = pages;
    }

    /// The region of a page.
    #[must_use]
    pub fn of(&self, page: PageId) -> PageRegion {
        let [files, memory, executable] = &self.sets;
        match (files.has(page), memory.has(page)) {
            (true, _) if executable.has(page) => PageRegion::Executable,
            (true, _) => PageRegion::File,
            (_, true) => PageRegion::Memory,
            (false, false) => PageRegion::Own,
        }
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sets.iter().all(Bits::is_empty)
    }

    /// Most bytes of them, where pages have numbers below `end`.
    pub const fn bytes_max(end: PageId) -> u64 {
        SETS as u64 * (COUNT_BYTES + end.div_ceil(u64::BITS) as u64 * WORD_BYTES)
    }

    /// Adds them to a table.
    pub fn put(&self, to: &mut Vec<u8>) {
        self.sets.iter().for_each(|set| below::put_set(to, set));
    }

    /// Reads those of a table. Whoever wrote it may be hostile.
    pub fn take(from: &mut Reader<'_>, end: PageId) -> Result<Self, BaseError> {
        let mut regions = Self::default();
        for set in &mut regions.sets {
            let count = from.u32()?;
            if count > end.div_ceil(u64::BITS) {
                return Err(BaseError::damaged("it has regions of pages that cannot be"));
            }
            let words = from.bytes(u64::from(count) * WORD_BYTES)?;
            *set =
                Bits::from_words(words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect());
        }
        if !from.is_empty() {
            return Err(BaseError::damaged("it has another length than it says"));
        }
        Ok(regions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(ids: &[PageId]) -> Bits {
        let mut bits = Bits::default();
        ids.iter().for_each(|id| bits.set(*id));
        bits
    }

    #[test]
    fn regions_come_back_and_bad_ones_are_refused() {
        let mut regions = Regions::default();
        assert!(regions.is_empty());
        regions.set(PageRegion::File, bits(&[1, 2, 300]));
        regions.set(PageRegion::Memory, bits(&[4]));
        regions.set(PageRegion::Executable, bits(&[2, 5]));
        regions.set(PageRegion::Own, bits(&[7]));
        let of = [1, 2, 4, 5, 7].map(|id| regions.of(id));
        let expected =
            [PageRegion::File, PageRegion::Executable, PageRegion::Memory, PageRegion::Own, PageRegion::Own];
        assert_eq!(of, expected);
        let mut bytes = Vec::new();
        regions.put(&mut bytes);
        assert!(bytes.len() as u64 <= Regions::bytes_max(320));
        assert_eq!(Regions::take(&mut Reader::of(&bytes), 320).unwrap(), regions);
        assert!(Regions::take(&mut Reader::of(&bytes), 256).is_err());
        assert!(Regions::take(&mut Reader::of(&bytes[..bytes.len() - 1]), 320).is_err());
        bytes.push(0);
        assert!(Regions::take(&mut Reader::of(&bytes), 320).is_err());
    }
}
