//! Where each page is, four bytes a page; and which slots of a file are in use, one bit and a checksum each.

use crate::PageId;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
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

impl Place {
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

/// Places by page number. Memory goes by the blocks of 1024 pages that hold any.
#[derive(Debug, Default)]
pub struct Places {
    chunks: Vec<Option<Box<[u32; CHUNK]>>>,
}

impl Places {
    pub fn get(&self, id: PageId) -> Option<Place> {
        let (chunk, at) = split(id);
        Place::decode(self.chunks.get(chunk)?.as_ref()?[at])
    }

    /// Sets a place; the former one is returned.
    pub fn set(&mut self, id: PageId, place: Place) -> Option<Place> {
        let (chunk, at) = split(id);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let chunk = self.chunks[chunk].get_or_insert_with(|| Box::new([0; CHUNK]));
        Place::decode(std::mem::replace(&mut chunk[at], place.encode()))
    }

    /// Drops the pages that are not `kept`, telling where they were.
    pub fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool, dropped: &mut dyn FnMut(PageId, Place)) {
        for (index, slot) in self.chunks.iter_mut().enumerate() {
            let Some(chunk) = slot else { continue };
            let mut used = false;
            for (at, code) in chunk.iter_mut().enumerate() {
                let Some(place) = Place::decode(*code) else { continue };
                let id = PageId::try_from(index * CHUNK + at).unwrap_or(PageId::MAX);
                if kept(id) {
                    used = true;
                } else {
                    *code = 0;
                    dropped(id, place);
                }
            }
            if !used {
                *slot = None;
            }
        }
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

    /// Behind the last slot that was ever in use since all were free.
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
            // Whoever begins anew begins at the front, and sequentially.
            self.used.clear();
            self.sums.clear();
        }
    }

    /// Gives back what the tables took to grow.
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
                // Open to the end: what is missing goes behind it.
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
        let mut places = Places::default();
        assert_eq!(places.set(5, Place::Swap(0)), None);
        assert_eq!(places.set(5, Place::Reap(7)), Some(Place::Swap(0)));
        places.set(70_000, Place::Word);
        assert_eq!(
            (places.get(5), places.get(70_000), places.get(6)),
            (Some(Place::Reap(7)), Some(Place::Word), None)
        );
        let mut dropped = Vec::new();
        places.retain(&mut |id| id != 5, &mut |id, place| dropped.push((id, place)));
        assert_eq!(dropped, [(5, Place::Reap(7))]);
        assert_eq!(places.get(5), None);
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
