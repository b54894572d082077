//! The location of each page, at most four bytes a page.

use crate::page::{Class, PageId};
use crate::slots::{PLACE_BITS, SLOTS_MAX};

/// The location of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLocation {
    /// One word repeated, zero mostly; not in any file.
    Word,
    /// Slot of the swap file.
    Swap(u32),
    /// Slot of the REAP file.
    Reap(u32),
    /// Set of the packed file, and place in it.
    Packed(u32),
}

/// The location and the class of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    pub place: PageLocation,
    pub class: Class,
}

const WORD: u32 = 1;
const CLASS_SHIFT: u32 = SLOTS_MAX.ilog2();
const SWAP: u32 = 1 << 30;
const REAP: u32 = 1 << 31;
const PACKED: u32 = SWAP | REAP;

impl Located {
    fn encode(self) -> u32 {
        let place = match self.place {
            PageLocation::Word => WORD,
            PageLocation::Swap(slot) => SWAP | slot,
            PageLocation::Reap(slot) => REAP | slot,
            PageLocation::Packed(slot) => PACKED | slot,
        };
        place | u32::from(self.class.number()) << CLASS_SHIFT
    }

    fn decode(code: u32) -> Option<Self> {
        let slot = code % SLOTS_MAX;
        let class = Class::ALL[(code >> CLASS_SHIFT & 3) as usize];
        let place = match code {
            0 => return None,
            code if code & PACKED == PACKED => PageLocation::Packed(slot),
            code if code & REAP != 0 => PageLocation::Reap(slot),
            code if code & SWAP != 0 => PageLocation::Swap(slot),
            _ => PageLocation::Word,
        };
        Some(Self { place, class })
    }
}

/// Pages that follow each other in a file, or are all words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: PageId,
    pub pages: u32,
    /// Of the first page; those of the others follow.
    pub at: Located,
}

/// Whether it is the first place of a set of the packed file.
fn begins_set(code: u32) -> bool {
    code & PACKED == PACKED && (code % SLOTS_MAX).is_multiple_of(1 << PLACE_BITS)
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
    let step = u32::from(code & PACKED != 0);
    code.wrapping_add(step * u32::try_from(pages).unwrap_or(0))
}

/// Locations by page number. Memory goes by the blocks of 1024 pages that hold any.
#[derive(Debug, Default)]
pub struct PageLocations {
    chunks: Vec<Option<Chunk>>,
}

impl PageLocations {
    pub fn get(&self, id: PageId) -> Option<PageLocation> {
        self.located(id).map(|found| found.place)
    }

    pub fn located(&self, id: PageId) -> Option<Located> {
        Located::decode(self.code(id))
    }

    fn code(&self, id: PageId) -> u32 {
        let (chunk, at) = split(id);
        self.chunks.get(chunk).and_then(Option::as_ref).map_or(0, |chunk| chunk.code(at))
    }

    /// Sets a location; the former one is returned.
    pub fn set(&mut self, id: PageId, to: Located) -> Option<Located> {
        let (chunk, at) = split(id);
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        let chunk = self.chunks[chunk].get_or_insert_with(|| Chunk::Open(Box::new([0; CHUNK])));
        Located::decode(std::mem::replace(&mut chunk.open()[at], to.encode()))
    }

    /// Takes a page out; its location is returned.
    pub fn remove(&mut self, id: PageId) -> Option<Located> {
        let (chunk, at) = split(id);
        let chunk = self.chunks.get_mut(chunk)?.as_mut()?;
        let found = Located::decode(chunk.code(at))?;
        chunk.open()[at] = 0;
        Some(found)
    }

    /// The locations of all pages, in the order of their numbers.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut last = 0;
        let ids = (0..self.chunks.len()).filter(|chunk| self.chunks[*chunk].is_some());
        for id in ids.flat_map(|chunk| chunk * CHUNK..(chunk + 1) * CHUNK) {
            let id = PageId::try_from(id).unwrap_or(PageId::MAX);
            let code = self.code(id);
            let Some(at) = Located::decode(code) else { continue };
            let next = |run: &&mut Run| run.first + run.pages == id && run.at.class == at.class;
            match runs.last_mut().filter(next) {
                // A set is a file of its own.
                Some(run) if code == follows(last, 1) && !begins_set(code) => run.pages += 1,
                _ => runs.push(Run { first: id, pages: 1, at }),
            }
            last = code;
        }
        runs
    }

    /// Drops the pages that are not `kept`, and passes on their locations.
    pub fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool, dropped: &mut dyn FnMut(PageId, Located)) {
        for (index, slot) in self.chunks.iter_mut().enumerate() {
            let Some(chunk) = slot else { continue };
            let mut used = false;
            for at in 0..CHUNK {
                let Some(found) = Located::decode(chunk.code(at)) else { continue };
                let id = PageId::try_from(index * CHUNK + at).unwrap_or(PageId::MAX);
                if kept(id) {
                    used = true;
                } else {
                    chunk.open()[at] = 0;
                    dropped(id, found);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(place: PageLocation) -> Located {
        Located { place, class: Class::Store }
    }

    #[test]
    fn places_come_back_and_go() {
        let mut places = PageLocations::default();
        assert_eq!(places.set(5, at(PageLocation::Swap(0))), None);
        assert_eq!(places.set(5, at(PageLocation::Reap(7))), Some(at(PageLocation::Swap(0))));
        places.set(70_000, at(PageLocation::Word));
        assert_eq!(
            (places.get(5), places.get(70_000), places.get(6)),
            (Some(PageLocation::Reap(7)), Some(PageLocation::Word), None)
        );
        let mut dropped = Vec::new();
        places.retain(&mut |id| id != 5, &mut |id, place| dropped.push((id, place)));
        assert_eq!(dropped, [(5, at(PageLocation::Reap(7)))]);
        assert_eq!(places.get(5), None);
    }

    #[test]
    fn packed_places_are_the_same_ones() {
        let of = |id: PageId| match id {
            0..40 => Some(PageLocation::Swap(7 + id)),
            40..90 => Some(PageLocation::Word),
            90..95 => Some(PageLocation::Packed(3 << 20 | id)),
            100..1500 => Some(PageLocation::Reap(2000 + id)),
            2048..3072 if id.is_multiple_of(2) => Some(PageLocation::Swap(id * 5)),
            _ => None,
        };
        let mut places = PageLocations::default();
        let ids = || 0..3072;
        for id in ids() {
            of(id).map(|place| places.set(id, at(place)));
        }
        places.trim();
        assert!(matches!(&places.chunks[0], Some(Chunk::Packed(runs)) if runs.len() == 5));
        assert!(matches!(&places.chunks[2], Some(Chunk::Open(_))));
        assert!(ids().all(|id| places.get(id) == of(id)));
        assert_eq!(places.set(1200, at(PageLocation::Word)), of(1200).map(at));
        assert!(ids().all(|id| places.get(id) == if id == 1200 { Some(PageLocation::Word) } else { of(id) }));
        places.trim();
        let mut dropped = Vec::new();
        places.retain(&mut |id| id != 30, &mut |id, place| dropped.push((id, place)));
        assert_eq!(
            (dropped, places.get(30), places.get(31)),
            (vec![(30, at(PageLocation::Swap(37)))], None, of(31))
        );
    }

    #[test]
    fn runs_tell_all_locations() {
        let mut places = PageLocations::default();
        let all = [
            (1000..1100, PageLocation::Swap(40), Class::File),
            (1100..1200, PageLocation::Swap(140), Class::Anonymous),
            (1200..1210, PageLocation::Word, Class::Kernel),
            (1300..1400, PageLocation::Packed(SLOTS_MAX - 100), Class::Store),
            (5000..5001, PageLocation::Reap(SLOTS_MAX - 1), Class::File),
            (5001..5002, PageLocation::Reap(0), Class::Anonymous),
        ];
        for (ids, place, class) in all.clone() {
            for (on, id) in (0..).zip(ids) {
                let place = match place {
                    PageLocation::Swap(slot) => PageLocation::Swap(slot + on),
                    PageLocation::Packed(slot) => PageLocation::Packed(slot + on),
                    place => place,
                };
                places.set(id, Located { place, class });
            }
        }
        let expected = all.map(|(ids, place, class)| {
            let pages = ids.end - ids.start;
            Run { first: ids.start, pages, at: Located { place, class } }
        });
        assert_eq!(places.runs(), expected);
        places.trim();
        assert_eq!(places.runs(), expected);
    }
}
