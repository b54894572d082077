//! The location of each page, at most four bytes a page; and the slots of a file that are in use, one bit and a
//! checksum each.

use crate::page::PageId;

/// The location of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLocation {
    /// One word repeated, zero mostly; not in any file.
    Word,
    /// Slot of the swap file.
    Swap(u32),
    /// Slot of the REAP file.
    Reap(u32),
}

const WORD: u32 = 1;
const SWAP: u32 = 1 << 30;
const REAP: u32 = 1 << 31;
/// Most slots of a file: 4 TiB.
pub const SLOTS_MAX: u32 = 1 << 30;

impl PageLocation {
    fn encode(self) -> u32 {
        match self {
            Self::Word => WORD,
            Self::Swap(slot) => SWAP | slot,
            Self::Reap(slot) => REAP | slot,
        }
    }

    fn decode(code: u32) -> Option<Self> {
        match code {
            0 => None,
            code if code & REAP != 0 => Some(Self::Reap(code & !REAP)),
            code if code & SWAP != 0 => Some(Self::Swap(code & !SWAP)),
            _ => Some(Self::Word),
        }
    }
}

const CHUNK: usize = 1024;
type Codes = [u32; CHUNK];

/// The locations of the pages of one block of 1024.
#[derive(Debug)]
enum Chunk {
    /// A code for each.
    Open(Box<Codes>),
    /// `(first page, its code)` of runs of pages that follow each other in a file, or are all alike.
    Packed(Box<[(u16, u32)]>),
}

impl Chunk {
    fn code(&self, at: usize) -> u32 {
        match self {
            Self::Open(codes) => codes[at],
            Self::Packed(runs) => {
                let after = runs.partition_point(|(first, _)| usize::from(*first) <= at);
                let (first, code) = runs[after - 1];
                follows(code, at - usize::from(first))
            }
        }
    }

    fn open(&mut self) -> &mut Codes {
        if let Self::Packed(_) = self {
            let mut codes = Box::new([0; CHUNK]);
            codes.iter_mut().enumerate().for_each(|(at, code)| *code = self.code(at));
            *self = Self::Open(codes);
        }
        match self {
            Self::Open(codes) => codes,
            Self::Packed(_) => unreachable!("it was opened above"),
        }
    }

    /// Takes up less memory, if the locations of the pages allow it.
    fn pack(&mut self) {
        let Self::Open(codes) = self else { return };
        let begins = |at: usize| at == 0 || codes[at] != follows(codes[at - 1], 1);
        let runs: Vec<(u16, u32)> = (0..CHUNK)
            .filter(|at| begins(*at))
            .map(|at| (u16::try_from(at).unwrap_or(0), codes[at]))
            .collect();
        if size_of_val(&runs[..]) <= size_of::<Codes>() / 2 {
            *self = Self::Packed(runs.into());
        }
    }
}

/// The code that continues a run `pages` on.
fn follows(code: u32, pages: usize) -> u32 {
    let step = u32::from(code & (SWAP | REAP) != 0);
    code.wrapping_add(step * u32::try_from(pages).unwrap_or(0))
}

/// Locations by page number. Memory goes by the blocks of 1024 pages that hold any.
#[derive(Debug, Default)]
pub struct PageLocations {
    chunks: Vec<Option<Chunk>>,
}

impl PageLocations {
    pub fn get(&self, id: PageId) -> Option<PageLocation> {
        let (chunk, at) = split(id);
        PageLocation::decode(self.chunks.get(chunk)?.as_ref()?.code(at))
    }

    /// Sets a location; the former one is returned.
    pub fn set(&mut self, id: PageId, place: PageLocation) -> Option<PageLocation> {
        let (chunk, at) = split(id);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let chunk = self.chunks[chunk].get_or_insert_with(|| Chunk::Open(Box::new([0; CHUNK])));
        PageLocation::decode(std::mem::replace(&mut chunk.open()[at], place.encode()))
    }

    /// Drops the pages that are not `kept`, and passes on their locations.
    pub fn retain(
        &mut self,
        kept: &mut dyn FnMut(PageId) -> bool,
        dropped: &mut dyn FnMut(PageId, PageLocation),
    ) {
        for (index, slot) in self.chunks.iter_mut().enumerate() {
            let Some(chunk) = slot else { continue };
            let mut used = false;
            for at in 0..CHUNK {
                let Some(place) = PageLocation::decode(chunk.code(at)) else { continue };
                let id = PageId::try_from(index * CHUNK + at).unwrap_or(PageId::MAX);
                if kept(id) {
                    used = true;
                } else {
                    chunk.open()[at] = 0;
                    dropped(id, place);
                }
            }
            if !used {
                *slot = None;
            }
        }
    }

    /// Takes up as little memory as it can until the next change.
    pub fn trim(&mut self) {
        self.chunks.iter_mut().flatten().for_each(Chunk::pack);
        self.chunks.shrink_to_fit();
    }
}

fn split(id: PageId) -> (usize, usize) {
    (id as usize / CHUNK, id as usize % CHUNK)
}

/// Slots of one file.
#[derive(Debug, Default)]
pub struct Slots {
    used: Vec<u64>,
    sums: Vec<u32>,
    count: u32,
}

impl Slots {
    /// Slots in use.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The slot behind the last one that was ever in use since all were free.
    pub fn end(&self) -> u32 {
        u32::try_from(self.sums.len()).unwrap_or(u32::MAX)
    }

    pub fn sum(&self, slot: u32) -> u32 {
        self.sums.get(slot as usize).copied().unwrap_or(0)
    }

    pub fn is_used(&self, slot: u32) -> bool {
        self.used.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 != 0)
    }

    /// Takes a slot that was found free for a page with this checksum.
    pub fn take(&mut self, slot: u32, sum: u32) {
        let at = slot as usize;
        if at >= self.sums.len() {
            self.sums.resize(at + 1, 0);
            self.used.resize(at / 64 + 1, 0);
        }
        self.sums[at] = sum;
        if !self.is_used(slot) {
            self.used[at / 64] |= 1 << (slot % 64);
            self.count += 1;
        }
    }

    pub fn free(&mut self, slot: u32) {
        if self.is_used(slot) {
            self.used[slot as usize / 64] &= !(1 << (slot % 64));
            self.count -= 1;
        }
        if self.count == 0 {
            // A file without used slots begins again at the front, and is written sequentially.
            self.used.clear();
            self.sums.clear();
        }
    }

    /// Frees the memory that the tables took to grow.
    pub fn trim(&mut self) {
        self.used.shrink_to_fit();
        self.sums.shrink_to_fit();
    }

    /// Free runs `(first, length)` for `wanted` slots, none shorter than `shortest` (but for the last, behind the end).
    pub fn find(&self, wanted: u32, shortest: u32) -> Option<Vec<(u32, u32)>> {
        let end = self.end();
        let (mut runs, mut left, mut at) = (Vec::new(), wanted, 0);
        while left > 0 && at < end {
            if at % 64 == 0 && self.used[at as usize / 64] == u64::MAX {
                at += 64;
                continue;
            }
            if self.is_used(at) {
                at += 1;
                continue;
            }
            let first = at;
            while at < end && at - first < left && !self.is_used(at) {
                at += 1;
            }
            let len = at - first;
            if at < end && (len >= shortest || len == left) {
                runs.push((first, len));
                left -= len;
            } else if at == end {
                // The last run is open to the end of the file: slots still missing go behind it.
                runs.push((first, left));
                left = 0;
            }
        }
        if left > 0 {
            runs.push((end, left));
        }
        let fits =
            runs.iter().all(|(first, len)| first.checked_add(*len).is_some_and(|end| end <= SLOTS_MAX));
        fits.then_some(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_and_go() {
        let mut places = PageLocations::default();
        assert_eq!(places.set(5, PageLocation::Swap(0)), None);
        assert_eq!(places.set(5, PageLocation::Reap(7)), Some(PageLocation::Swap(0)));
        places.set(70_000, PageLocation::Word);
        assert_eq!(
            (places.get(5), places.get(70_000), places.get(6)),
            (Some(PageLocation::Reap(7)), Some(PageLocation::Word), None)
        );
        let mut dropped = Vec::new();
        places.retain(&mut |id| id != 5, &mut |id, place| dropped.push((id, place)));
        assert_eq!(dropped, [(5, PageLocation::Reap(7))]);
        assert_eq!(places.get(5), None);
    }

    #[test]
    fn packed_places_are_the_same_ones() {
        let of = |id: PageId| match id {
            0..40 => Some(PageLocation::Swap(7 + id)),
            40..90 => Some(PageLocation::Word),
            100..1500 => Some(PageLocation::Reap(2000 + id)),
            2048..3072 if id.is_multiple_of(2) => Some(PageLocation::Swap(id * 5)),
            _ => None,
        };
        let mut places = PageLocations::default();
        let ids = || 0..3072;
        for id in ids() {
            of(id).map(|place| places.set(id, place));
        }
        places.trim();
        assert!(matches!(&places.chunks[0], Some(Chunk::Packed(runs)) if runs.len() == 4));
        assert!(matches!(&places.chunks[2], Some(Chunk::Open(_))));
        assert!(ids().all(|id| places.get(id) == of(id)));
        assert_eq!(places.set(1200, PageLocation::Word), of(1200));
        assert!(ids().all(|id| places.get(id) == if id == 1200 { Some(PageLocation::Word) } else { of(id) }));
        places.trim();
        let mut dropped = Vec::new();
        places.retain(&mut |id| id != 30, &mut |id, place| dropped.push((id, place)));
        assert_eq!(
            (dropped, places.get(30), places.get(31)),
            (vec![(30, PageLocation::Swap(37))], None, of(31))
        );
    }

    #[test]
    fn free_runs_are_found() {
        let mut slots = Slots::default();
        assert_eq!(slots.find(3, 1), Some(vec![(0, 3)]));
        (0..200).for_each(|slot| slots.take(slot, slot));
        (10..20).chain(64..140).for_each(|slot| slots.free(slot));
        assert_eq!(slots.find(5, 5), Some(vec![(10, 5)]));
        assert_eq!(slots.find(80, 16), Some(vec![(64, 76), (200, 4)]));
        assert_eq!(slots.find(300, 300), Some(vec![(200, 300)]));
        slots.free(199);
        assert_eq!(slots.find(300, 300), Some(vec![(199, 300)]));
        assert_eq!((slots.count(), slots.sum(150)), (113, 150));
        (0..200).for_each(|slot| slots.free(slot));
        assert_eq!(slots.find(1, 1), Some(vec![(0, 1)]));
    }
}
