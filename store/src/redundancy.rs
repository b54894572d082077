//! How much of memory is there more than once, by region and bytes of a chunk ("SnapStore", section 3.4 and Figure 4), before any of it is
//! stored.
//!
//! Chunks are told apart by hashes of 64 bits, and those of larger chunks are made of those of their halves, so that each byte is hashed once.
//! Memory has a bound: of a table with too many chunks every second one is forgotten, by its hash, and those that are left stand for all.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;

use crate::dblock::ENTRY_BYTES;
use crate::recipe::RUN_BYTES;
use crate::region::{CHUNK_MAX, CHUNK_MIN, Region};

/// Bytes of a chunk that are compared.
pub const CHUNK_SIZES: [u32; SIZES] = [64, 128, 256, 512, 1024, 2048, 4096];
const SIZES: usize = 7;
const REGIONS: usize = Region::ALL.len();
const _: () = assert!(CHUNK_SIZES[0] == CHUNK_MIN && CHUNK_SIZES[SIZES - 1] == CHUNK_MAX);
const LEAST: usize = CHUNK_MIN as usize;
const MOST: usize = CHUNK_MAX as usize;
/// Chunks of [`LEAST`] bytes in one of [`MOST`].
const PARTS: usize = MOST / LEAST;
/// Most chunks that a table knows: 18 MiB for each of 35 tables.
const KNOWN_MAX: usize = (1 << 20) / 8 * 7;
/// The hash of a chunk of zeros, and of what comes before the first chunk.
const NONE: u64 = 0;
/// Bytes of the index for each chunk: eight, four fifths full.
const INDEXED_BYTES: u64 = 10;

/// The outcome for one region in chunks of one size. An estimate, once there are more than 900,000 different chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes that were looked at.
    pub bytes: u64,
    /// Of them in chunks of zeros, which are kept nowhere.
    pub zero_bytes: u64,
    /// Different chunks, each of which is kept once.
    pub chunks: u64,
    /// Runs of chunks that follow each other where they are kept as well.
    pub runs: u64,
}

impl Estimate {
    /// Bytes in chunks that are not of zeros.
    #[must_use]
    pub const fn filled_bytes(&self) -> u64 {
        self.bytes - self.zero_bytes
    }

    /// Bytes of the different chunks.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        (self.chunks * u64::from(self.chunk_bytes)).min(self.filled_bytes())
    }

    /// Bytes in chunks that are equal to one that was seen earlier, zeros apart.
    #[must_use]
    pub fn repeated_bytes(&self) -> u64 {
        self.filled_bytes() - self.kept_bytes()
    }

    /// Bytes of the index of chunks, of their entries in dblocks, and of recipes.
    #[must_use]
    pub const fn metadata_bytes(&self) -> [u64; 3] {
        [self.chunks * INDEXED_BYTES, self.chunks * ENTRY_BYTES as u64, self.runs * RUN_BYTES as u64]
    }

    /// Bytes of all that a store would have: chunks that are not packed, and metadata.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.kept_bytes() + self.metadata_bytes().iter().sum::<u64>()
    }
}

/// The chunks of one size in one region.
#[derive(Debug, Default)]
struct Table {
    /// Hashes of chunks, each with a part of the hash of the one that it follows where it is kept.
    known: HashMap<u64, u32>,
    /// One of so many chunks is known, as a power of two.
    thinned: u32,
    newest: u64,
    chunks: u64,
    zeros: u64,
    starts: u64,
}

/// A part of a hash that is not 0.
fn part_of(hash: u64) -> u32 {
    u32::try_from(hash & u64::from(u32::MAX)).unwrap_or_default() | 1
}

impl Table {
    fn knows_such(&self, hash: u64) -> bool {
        hash.leading_zeros() >= self.thinned
    }

    /// Adds a chunk; `before`: the one directly before it.
    fn add(&mut self, before: u64, hash: u64, most: usize) {
        self.chunks += 1;
        if hash == NONE {
            self.zeros += 1;
            return;
        }
        if !self.knows_such(hash) {
            return;
        }
        let follows = match self.known.entry(hash) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(room) => {
                let follows = if before != NONE && before == self.newest { part_of(before) } else { 0 };
                self.newest = hash;
                *room.insert(follows)
            }
        };
        if before == NONE {
            self.starts += 1 << self.thinned;
        } else if self.knows_such(before) && follows != part_of(before) {
            // Both are known of so few pairs.
            self.starts += 1 << (2 * self.thinned);
        }
        if self.known.len() > most {
            self.thinned += 1;
            let least = self.thinned;
            self.known.retain(|hash, _| hash.leading_zeros() >= least);
        }
    }

    fn estimate(&self, chunk_bytes: u32) -> Estimate {
        let size = u64::from(chunk_bytes);
        let filled = self.chunks - self.zeros;
        Estimate {
            chunk_bytes,
            bytes: self.chunks * size,
            zero_bytes: self.zeros * size,
            chunks: ((self.known.len() as u64) << self.thinned).min(filled),
            runs: self.starts.min(filled),
        }
    }
}

/// Counts chunks that are equal. See the module.
#[derive(Debug)]
pub struct Redundancy {
    key: RandomState,
    tables: [[Table; SIZES]; REGIONS],
    known_max: usize,
    /// The region and the end of what was added last, and its last chunk of each size.
    last: Option<(Region, u64)>,
    before: [u64; SIZES],
}

impl Default for Redundancy {
    fn default() -> Self {
        Self::with_room(KNOWN_MAX)
    }
}

impl Redundancy {
    fn with_room(known_max: usize) -> Self {
        Self {
            key: RandomState::new(),
            tables: Default::default(),
            known_max,
            last: None,
            before: [NONE; SIZES],
        }
    }

    /// Begins another file, whose chunks go to dblocks of their own.
    pub fn begin_file(&mut self) {
        self.last = None;
        self.tables.iter_mut().flatten().for_each(|table| table.newest = NONE);
    }

    /// Adds bytes of a file, which begin at a multiple of 4096. What is missing of the last 4096 is zeros.
    pub fn add(&mut self, region: Region, at: u64, bytes: &[u8]) {
        if self.last != Some((region, at)) {
            self.before = [NONE; SIZES];
        }
        let mut room = [0; MOST];
        for page in bytes.chunks(MOST) {
            room[..page.len()].copy_from_slice(page);
            room[page.len()..].fill(0);
            self.add_page(region, &room);
        }
        self.last = Some((region, at + bytes.len() as u64));
    }

    fn add_page(&mut self, region: Region, page: &[u8; MOST]) {
        let mut hashes = [NONE; PARTS];
        for (hash, part) in hashes.iter_mut().zip(page.as_chunks::<LEAST>().0) {
            if *part != [0; LEAST] {
                *hash = self.key.hash_one(part).max(1);
            }
        }
        let mut count = PARTS;
        let tables = &mut self.tables[usize::from(region.number())];
        for (table, before) in tables.iter_mut().zip(&mut self.before) {
            for hash in &hashes[..count] {
                table.add(*before, *hash, self.known_max);
                *before = *hash;
            }
            count /= 2;
            for number in 0..count {
                let halves = (hashes[2 * number], hashes[2 * number + 1]);
                hashes[number] = if halves == (NONE, NONE) { NONE } else { self.key.hash_one(halves).max(1) };
            }
        }
    }

    /// The outcome for a region, by [`CHUNK_SIZES`].
    #[must_use]
    pub fn estimates(&self, region: Region) -> [Estimate; SIZES] {
        let tables = &self.tables[usize::from(region.number())];
        std::array::from_fn(|number| tables[number].estimate(CHUNK_SIZES[number]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages without any two equal parts.
    fn pages(seed: u64, count: u64) -> Vec<u8> {
        let mut words = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
        let mut bytes = vec![0; usize::try_from(count).unwrap() * MOST];
        words.fill(&mut bytes);
        bytes
    }

    #[test]
    fn what_comes_twice_is_counted_at_every_size() {
        let (mut redundancy, first) = (Redundancy::default(), pages(1, 8));
        redundancy.add(Region::File, 0, &first);
        redundancy.add(Region::File, 1 << 20, &first);
        redundancy.add(Region::Kernel, 0, &first);
        for (estimate, size) in redundancy.estimates(Region::File).into_iter().zip(CHUNK_SIZES) {
            let bytes = first.len() as u64;
            assert_eq!((estimate.chunk_bytes, estimate.bytes, estimate.zero_bytes), (size, 2 * bytes, 0));
            assert_eq!((estimate.repeated_bytes(), estimate.runs), (bytes, 2), "{size}");
            let chunks = bytes / u64::from(size);
            assert_eq!(estimate.metadata_bytes(), [chunks * 10, chunks * 14, 2 * 18]);
        }
        assert!(redundancy.estimates(Region::Kernel).iter().all(|kernel| kernel.repeated_bytes() == 0));
        assert_eq!(redundancy.estimates(Region::Memory)[0].total_bytes(), 0);
    }

    #[test]
    fn small_chunks_find_what_large_ones_do_not() {
        let (mut redundancy, mut page) = (Redundancy::default(), pages(2, 1));
        redundancy.add(Region::Anonymous, 0, &page);
        page[1000] ^= 1;
        redundancy.add(Region::Anonymous, 4096, &page);
        page[..2048].fill(0);
        redundancy.add(Region::Anonymous, 8192, &page[..4000]);
        let estimates = redundancy.estimates(Region::Anonymous);
        // The third page's second half is cut in its last 96 bytes, which are of two parts.
        assert_eq!(estimates[0].repeated_bytes(), 4096 - 64 + 2048 - 128);
        assert_eq!(estimates[0].zero_bytes, 2048 + 64);
        assert_eq!(estimates[6].repeated_bytes(), 0);
        assert_eq!(estimates[5].repeated_bytes(), 2048);
    }

    #[test]
    fn runs_are_those_that_a_recipe_would_have() {
        let (mut redundancy, page) = (Redundancy::default(), pages(3, 4));
        let mut add = |at: u64, order: &[usize]| {
            let bytes: Vec<u8> =
                order.iter().flat_map(|number| page[number * MOST..][..MOST].to_vec()).collect();
            redundancy.begin_file();
            redundancy.add(Region::File, at, &bytes);
            redundancy.estimates(Region::File)[6].runs
        };
        assert_eq!(add(0, &[0, 1, 2]), 1);
        assert_eq!(add(0, &[0, 1, 2]), 2);
        // One that is new, and then one that lies elsewhere.
        assert_eq!(add(0, &[1, 2, 3, 0]), 2 + 3);
        assert_eq!(add(0, &[2, 3]), 5 + 2);
    }

    #[test]
    fn a_table_that_is_full_stands_for_more() {
        let (mut small, mut large) = (Redundancy::with_room(1 << 12), Redundancy::default());
        let mut chance = 7_u64;
        let distinct: Vec<Vec<u8>> = (0..32).map(|number| pages(100 + number, 32)).collect();
        for number in 0..64 {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bytes = &distinct[usize::try_from(chance >> 59).unwrap()];
            for redundancy in [&mut small, &mut large] {
                redundancy.add(Region::Executable, number << 20, bytes);
            }
        }
        let (small, large) = (small.estimates(Region::Executable), large.estimates(Region::Executable));
        let is_near = |one: u64, other: u64, percent: u64| one.abs_diff(other) * 100 <= other * percent;
        assert_eq!(small[0].bytes, large[0].bytes);
        assert!(is_near(small[0].chunks, large[0].chunks, 10), "{small:?} {large:?}");
        assert_eq!(small[6], large[6]);
        assert_eq!(large[0].runs, 64);
    }
}
