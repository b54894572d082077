//! Pages for the measurement: all that a source has, or a sample of them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use codec::{PAGE_BYTES, PIECE_BYTES};

/// Most bytes that are measured: measuring takes four times as much memory, and some seconds for each round.
pub const MOST_BYTES: usize = 64 << 20;

/// Where pages lie in a file: ranges of whole pages, in order.
pub struct Source {
    pub file: File,
    pub ranges: Vec<Range<u64>>,
    /// Where the page number 0 lies, or would.
    pub first: u64,
}

impl Source {
    /// How many bytes there are.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Reads up to `most` bytes. Of more it takes partitions of [`PIECE_BYTES`], evenly spread, so that neighbours stay
    /// neighbours.
    pub fn read(&self, most: usize) -> io::Result<Vec<u8>> {
        let (piece, len) = (PIECE_BYTES as u64, self.len());
        if len <= most as u64 {
            let mut memory = vec![0; usize::try_from(len).map_err(io::Error::other)?];
            self.read_at(0, &mut memory)?;
            return Ok(memory);
        }
        let mut memory = vec![0; most / PIECE_BYTES * PIECE_BYTES];
        let parts = memory.len() / PIECE_BYTES;
        for (at, part) in self.spread(parts).zip(memory.chunks_exact_mut(PIECE_BYTES)) {
            self.read_at(at * piece, part)?;
        }
        Ok(memory)
    }

    /// The numbers of the pages that [`Self::read`] reads.
    pub fn numbers(&self, most: usize) -> Vec<u32> {
        let in_order = self.ranges.iter().flat_map(|range| range.clone().step_by(PAGE_BYTES));
        let number = |at: u64| u32::try_from((at - self.first) / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        let all: Vec<u32> = in_order.map(number).collect();
        if self.len() <= most as u64 {
            return all;
        }
        let pages = PIECE_BYTES / PAGE_BYTES;
        let starts = self.spread(most / PIECE_BYTES).filter_map(|at| usize::try_from(at).ok());
        starts.flat_map(|at| all.iter().skip(at * pages).take(pages)).copied().collect()
    }

    /// So many of the partitions that it has, evenly spread.
    fn spread(&self, parts: usize) -> impl Iterator<Item = u64> {
        let all = u128::from(self.len() / PIECE_BYTES as u64);
        (0..parts as u128).filter_map(move |number| u64::try_from(number * all / parts as u128).ok())
    }

    /// Reads from the place that follows so many bytes of the ranges.
    fn read_at(&self, mut skip: u64, mut to: &mut [u8]) -> io::Result<()> {
        for range in &self.ranges {
            let len = range.end - range.start;
            if skip >= len {
                skip -= len;
                continue;
            }
            let part = usize::try_from(len - skip).unwrap_or(usize::MAX).min(to.len());
            let (now, later) = to.split_at_mut(part);
            self.file.read_exact_at(now, range.start + skip)?;
            to = later;
            skip = 0;
            if to.is_empty() {
                return Ok(());
            }
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Whether each page holds one word again and again: such pages are stored nowhere.
pub fn is_words(memory: &[u8]) -> bool {
    memory.chunks_exact(PAGE_BYTES).all(|page| page[8..] == page[..PAGE_BYTES - 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    /// A file of pages that hold their numbers.
    fn numbered(pages: u64) -> File {
        let dir = testdir::TempDir::new();
        let file =
            File::options().read(true).write(true).create_new(true).open(dir.path().join("f")).unwrap();
        for number in 0..pages {
            let page: Vec<u8> = number.to_le_bytes().repeat(PAGE_BYTES / 8);
            file.write_all_at(&page, number * PAGE).unwrap();
        }
        file
    }

    fn whole(pages: u64) -> Vec<Range<u64>> {
        std::iter::once(0..pages * PAGE).collect()
    }

    fn numbers(memory: &[u8]) -> Vec<u64> {
        memory.chunks_exact(PAGE_BYTES).map(|page| u64::from_le_bytes(*page.first_chunk().unwrap())).collect()
    }

    #[test]
    fn all_pages_come_in_order_from_wherever_they_lie() {
        let source = Source {
            file: numbered(40),
            ranges: vec![PAGE..3 * PAGE, 10 * PAGE..11 * PAGE, 39 * PAGE..40 * PAGE],
            first: PAGE,
        };
        assert_eq!(source.len(), 4 * PAGE);
        assert_eq!(numbers(&source.read(MOST_BYTES).unwrap()), [1, 2, 10, 39]);
        assert_eq!(source.numbers(MOST_BYTES), [0, 1, 9, 38]);
    }

    #[test]
    fn of_more_it_takes_partitions_from_everywhere() {
        let source = Source { file: numbered(16 * 40), ranges: whole(16 * 40), first: 0 };
        let taken = numbers(&source.read(4 * PIECE_BYTES + 100).unwrap());
        let first: Vec<u64> = taken.iter().copied().step_by(16).collect();
        assert_eq!((first, taken.len()), (vec![0, 160, 320, 480], 64));
        assert_eq!(taken[17], 161);
        let numbers: Vec<u64> = source.numbers(4 * PIECE_BYTES + 100).into_iter().map(u64::from).collect();
        assert_eq!(numbers, taken);
    }

    #[test]
    fn a_file_that_has_shrunk_is_an_error() {
        let source = Source { file: numbered(2), ranges: whole(3), first: 0 };
        assert_eq!(source.read(MOST_BYTES).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
