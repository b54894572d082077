//! Memory for records of a few hundred bytes each: chunks that are filled from the front. A small page of the host's goes back as soon as
//! no record has a part in it.

use super::record::{HEAD_BYTES, Head};
use crate::large::{LARGE_BYTES, Large};
use crate::page::PAGE_BYTES;

/// Bytes of a chunk, and the unit of places in it.
const CHUNK: usize = LARGE_BYTES;
const UNIT: usize = 16;
const PAGES: usize = CHUNK / PAGE_BYTES;
/// So many pages that are free are given back at once.
const FREE_PAGES: usize = 64;

/// Where a record is: units from the front of the first chunk. Below 2²⁸.
pub type Place = u32;
const CHUNKS_MAX: usize = (1 << 28) / (CHUNK / UNIT);

/// See the module.
#[derive(Default)]
pub struct Chunks {
    chunks: Vec<Option<Chunk>>,
    /// The one that is being filled.
    last: Option<usize>,
    /// Pages of the host's in which no record has a part any more, by chunk.
    free: Vec<(usize, usize)>,
    live_bytes: u64,
    /// Pages of the host's that are in use.
    pages: u64,
}

struct Chunk {
    memory: Large,
    used: usize,
    /// Bytes of the records that there are.
    live: usize,
    /// How many records have a part in each page.
    records: Box<[u16; PAGES]>,
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is this value's own, and written only by who has it to change.
        unsafe { std::slice::from_raw_parts(self.memory.first().cast(), self.used) }
    }
}

fn pages_of(start: usize, len: usize) -> std::ops::RangeInclusive<usize> {
    start / PAGE_BYTES..=(start + len.max(1) - 1) / PAGE_BYTES
}

const fn rounded(len: usize) -> usize {
    len.next_multiple_of(UNIT)
}

impl Chunks {
    /// Bytes of the records that there are.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of a record with this head, as it lies in memory.
    pub fn bytes_of(head: &Head) -> u64 {
        rounded(HEAD_BYTES + usize::from(head.len)) as u64
    }

    /// Bytes of the host's memory that they take.
    pub fn held_bytes(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }

    /// Adds a record. `None`: there is no memory for it.
    pub fn put(&mut self, head: &Head, bytes: &[u8]) -> Option<Place> {
        let len = rounded(HEAD_BYTES + bytes.len());
        let number = self.with_room(len)?;
        let chunk = self.chunks.get_mut(number)?.as_mut()?;
        let start = chunk.used;
        // SAFETY: there is so much room behind what is used, and nobody has a reference to it.
        let to = unsafe {
            std::slice::from_raw_parts_mut(
                chunk.memory.first().cast::<u8>().add(start),
                HEAD_BYTES + bytes.len(),
            )
        };
        to[..HEAD_BYTES].copy_from_slice(&head.bytes());
        to[HEAD_BYTES..].copy_from_slice(bytes);
        chunk.used += len;
        chunk.live += len;
        for page in pages_of(start, len) {
            self.pages += u64::from(chunk.records[page] == 0);
            chunk.records[page] += 1;
        }
        self.live_bytes += len as u64;
        Place::try_from((number * CHUNK + start) / UNIT).ok()
    }

    /// A chunk that has room for so many bytes.
    fn with_room(&mut self, len: usize) -> Option<usize> {
        let has_room = |number: &usize| {
            self.chunks.get(*number).and_then(Option::as_ref).is_some_and(|chunk| CHUNK - chunk.used >= len)
        };
        if let Some(number) = self.last.filter(has_room) {
            return Some(number);
        }
        let number = self.chunks.iter().position(Option::is_none).unwrap_or(self.chunks.len());
        if number >= CHUNKS_MAX {
            return None;
        }
        let chunk = Chunk { memory: Large::small(PAGES)?, used: 0, live: 0, records: Box::new([0; PAGES]) };
        match self.chunks.get_mut(number) {
            Some(place) => *place = Some(chunk),
            None => self.chunks.push(Some(chunk)),
        }
        self.last = Some(number);
        Some(number)
    }

    /// Whether two records are in one chunk.
    pub fn are_together(a: Place, b: Place) -> bool {
        a as usize * UNIT / CHUNK == b as usize * UNIT / CHUNK
    }

    /// Nothing more comes to the chunk of a record, which is to be moved. False: too little is lost in it for that.
    pub fn leave(&mut self, place: Place) -> bool {
        let number = place as usize * UNIT / CHUNK;
        let Some(Some(chunk)) = self.chunks.get(number) else { return false };
        let is_loose = chunk.live < chunk.used / 4 * 3;
        if is_loose {
            self.last = self.last.filter(|last| *last != number);
        }
        is_loose
    }

    /// The record at a place.
    pub fn get(&self, place: Place) -> Option<(Head, &[u8])> {
        let at = place as usize * UNIT;
        let chunk = self.chunks.get(at / CHUNK)?.as_ref()?;
        Head::read(chunk.bytes().get(at % CHUNK..)?)
    }

    /// Takes the record at a place out.
    pub fn free(&mut self, place: Place) {
        let Some((head, _)) = self.get(place) else { return };
        let (number, start) = (place as usize * UNIT / CHUNK, place as usize * UNIT % CHUNK);
        let len = rounded(HEAD_BYTES + usize::from(head.len));
        let Some(Some(chunk)) = self.chunks.get_mut(number) else { return };
        let filled = if self.last == Some(number) { chunk.used / PAGE_BYTES } else { PAGES };
        for page in pages_of(start, len) {
            chunk.records[page] = chunk.records[page].saturating_sub(1);
            if chunk.records[page] == 0 {
                self.pages -= 1;
                // More comes to the last one.
                if page < filled {
                    self.free.push((number, page));
                }
            }
        }
        chunk.live -= len;
        self.live_bytes -= len as u64;
        if self.free.len() >= FREE_PAGES {
            self.give_back();
        }
    }

    /// Gives the memory of what was taken out back to the host.
    pub fn give_back(&mut self) {
        self.free.sort_unstable();
        for run in self.free.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 == b.1) {
            let Some(&(number, first)) = run.first() else { continue };
            if let Some(Some(chunk)) = self.chunks.get_mut(number) {
                chunk.memory.give_back(first, run.len());
            }
        }
        self.free.clear();
        for (number, place) in self.chunks.iter_mut().enumerate() {
            if place.as_ref().is_some_and(|chunk| chunk.records.iter().all(|records| *records == 0)) {
                *place = None;
                self.last = self.last.filter(|last| *last != number);
            }
        }
        while self.chunks.last().is_some_and(Option::is_none) {
            self.chunks.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Kind;
    use super::*;
    use crate::page::Class;

    fn head(len: usize) -> Head {
        Head { kind: Kind::Xor, class: Class::File, len: u16::try_from(len).unwrap(), base: 5, sum: 6 }
    }

    #[test]
    fn records_come_and_go_and_memory_goes_with_them() {
        let mut chunks = Chunks::default();
        let len = |number: usize| 1 + number * 37 % 4088;
        let filled = |number: usize| vec![u8::try_from(number % 251).unwrap(); len(number)];
        let places: Vec<Place> =
            (0..3000).map(|number| chunks.put(&head(len(number)), &filled(number)).unwrap()).collect();
        let all = (chunks.live_bytes(), chunks.held_bytes());
        assert!(chunks.chunks.len() > 1 && all.1 >= all.0 && all.1 - all.0 < all.0 / 50, "{all:?}");
        for (number, place) in places.iter().enumerate() {
            let (found, bytes) = chunks.get(*place).unwrap();
            assert_eq!((found, bytes), (head(len(number)), &filled(number)[..]));
        }
        for place in &places[..2000] {
            chunks.free(*place);
        }
        for (number, place) in places.iter().enumerate().skip(2000) {
            assert_eq!(chunks.get(*place).unwrap().1, filled(number));
        }
        assert!(chunks.held_bytes() < all.1 / 2);
        for place in &places[2000..] {
            chunks.free(*place);
        }
        chunks.give_back();
        assert_eq!((chunks.live_bytes(), chunks.held_bytes(), chunks.chunks.len()), (0, 0, 0));
        let place = chunks.put(&head(3), &[1, 2, 3]).unwrap();
        assert_eq!(chunks.get(place).unwrap().1, [1, 2, 3]);
        assert!(chunks.get(place + 1).is_none() && chunks.get(Place::MAX).is_none());
    }
}
