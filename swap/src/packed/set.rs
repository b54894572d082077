//! Pages that were packed together, in partitions of a few pages each.

use std::ops::Range;
use std::sync::Arc;

use codec::{Style, Table, TableSet};

use super::seal::TAG_BYTES;
use crate::bits::Bits;
use crate::page::PAGE_BYTES;

/// Partitions between those whose start is remembered; the others' follows from the lengths.
const STRIDE: usize = 64;

/// How a set is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub style: Style,
    /// Pages of each partition but the last.
    pub partition_pages: u32,
    /// Whether it is a working set, or a part of one.
    pub is_working: bool,
    /// Whether its style was chosen for good.
    pub is_settled: bool,
    /// Whether it is packed so that a [`codec::Engine`] can unpack it.
    pub for_engine: bool,
}

impl Layout {
    /// How far back DEFLATE goes.
    pub fn window_bytes(&self) -> usize {
        if self.for_engine { codec::ENGINE_WINDOW_BYTES } else { codec::WINDOW_BYTES }
    }

    /// How many tables of canned codes it may have. A [`codec::Engine`] works by one.
    pub fn tables_max(&self) -> usize {
        match self.style {
            Style::DeflateCanned if self.for_engine => 1,
            Style::DeflateCanned => TableSet::MOST,
            _ => 0,
        }
    }
}

/// Pages by the order in which they were packed: their *places*.
pub struct PackedSet {
    pub layout: Layout,
    /// Those of canned codes.
    pub tables: Option<Arc<TableSet>>,
    /// Its number for the seal, if it is sealed.
    pub seal: Option<u64>,
    /// Its first page of the file.
    pub first: u32,
    /// Bytes of the partitions, one behind the other.
    bytes: u64,
    /// Packed bytes by partition, without the seal; 0: it stays as it is.
    lens: Vec<u16>,
    starts: Vec<u64>,
    /// Checksums of the pages.
    sums: Vec<u32>,
    /// Places that are in use, and how many they are.
    used: Bits,
    live: u32,
}

/// A partition in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Bytes of the file, the seal included.
    pub bytes: Range<u64>,
    pub is_packed: bool,
    /// Its pages' places.
    pub places: Range<u32>,
}

impl PackedSet {
    /// A set without pages, from a page of the file on.
    pub fn new(layout: Layout, tables: Option<Arc<TableSet>>, seal: Option<u64>, first: u32) -> Self {
        Self {
            layout,
            tables,
            seal,
            first,
            bytes: 0,
            lens: Vec::new(),
            starts: Vec::new(),
            sums: Vec::new(),
            used: Bits::default(),
            live: 0,
        }
    }

    /// Adds a partition of pages with these checksums; all but the last one are full. `packed`: its bytes, if it is packed.
    pub fn push(&mut self, packed: Option<u16>, sums: &[u32]) {
        if self.lens.len().is_multiple_of(STRIDE) {
            self.starts.push(self.bytes);
        }
        self.lens.push(packed.unwrap_or(0));
        self.bytes += self.stored(packed.unwrap_or(0), sums.len());
        for sum in sums {
            self.used.set(self.pages());
            self.sums.push(*sum);
            self.live += 1;
        }
    }

    /// Its table, if it has one and no other.
    pub fn sole_table(&self) -> Option<&Arc<Table>> {
        self.tables.as_ref().and_then(|tables| tables.sole())
    }

    /// Pages that were packed.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.sums.len()).unwrap_or(u32::MAX)
    }

    /// Pages that are in use.
    pub fn live(&self) -> u32 {
        self.live
    }

    pub fn sum(&self, place: u32) -> u32 {
        self.sums.get(place as usize).copied().unwrap_or(0)
    }

    /// Bytes of its partitions.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The pages of the file that it takes.
    pub fn region(&self) -> Range<u32> {
        let pages = self.bytes.div_ceil(PAGE_BYTES as u64);
        self.first..self.first.saturating_add(u32::try_from(pages).unwrap_or(u32::MAX))
    }

    /// Bytes of these pages.
    pub fn region_bytes(&self) -> u64 {
        self.region().len() as u64 * PAGE_BYTES as u64
    }

    /// Lengths of its partitions, as [`Self::push`] took them.
    pub fn lens(&self) -> &[u16] {
        &self.lens
    }

    /// How many partitions stay as they are.
    pub fn raw_partitions(&self) -> u64 {
        self.lens.iter().filter(|len| **len == 0).count() as u64
    }

    pub fn free(&mut self, place: u32) {
        if self.used.has(place) {
            self.used.clear(place);
            self.live -= 1;
        }
    }

    /// Only what is said later is in use.
    pub fn free_all(&mut self) {
        (self.used, self.live) = (Bits::default(), 0);
    }

    /// Takes a place that is free for the page with this checksum.
    pub fn take(&mut self, place: u32, sum: u32) {
        if let Some(at) = self.sums.get_mut(place as usize).filter(|_| !self.used.has(place)) {
            *at = sum;
            self.used.set(place);
            self.live += 1;
        }
    }

    /// The number of the partition that a place is in.
    pub fn partition_of(&self, place: u32) -> u32 {
        place / self.layout.partition_pages
    }

    /// The partition of this number; there is one.
    pub fn partition(&self, number: u32) -> Partition {
        let at = number as usize;
        let pages = self.layout.partition_pages;
        let places = |at: usize| {
            let first = u32::try_from(at).unwrap_or(u32::MAX).saturating_mul(pages);
            first..first.saturating_add(pages).min(self.pages())
        };
        let stored = |at: usize| self.stored(self.lens[at], places(at).len());
        let group = at / STRIDE;
        let before: u64 = (group * STRIDE..at).map(stored).sum();
        let start = u64::from(self.first) * PAGE_BYTES as u64 + self.starts[group] + before;
        Partition { bytes: start..start + stored(at), is_packed: self.lens[at] != 0, places: places(at) }
    }

    fn stored(&self, len: u16, pages: usize) -> u64 {
        let content = if len == 0 { pages * PAGE_BYTES } else { usize::from(len) };
        (content + self.tag_bytes()) as u64
    }

    /// Bytes that the seal adds to each partition.
    pub fn tag_bytes(&self) -> usize {
        if self.seal.is_some() { TAG_BYTES } else { 0 }
    }

    /// Frees the memory that the tables took to grow.
    pub fn trim(&mut self) {
        self.lens.shrink_to_fit();
        self.starts.shrink_to_fit();
        self.sums.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_follow_each_other() {
        let (style, partition_pages) = (Style::Lz4, 4);
        let layout = Layout { style, partition_pages, is_working: true, is_settled: true, for_engine: false };
        for seal in [None, Some(1)] {
            let tag = if seal.is_some() { 16 } else { 0 };
            let mut set = PackedSet::new(layout, None, seal, 10);
            let mut next = 10 * 4096;
            for at in 0..200_u32 {
                let len = (at % 3 != 0).then(|| u16::try_from(at + 1).unwrap());
                set.push(len, &[at; 4]);
            }
            set.push(Some(5), &[7, 8]);
            for at in 0..200_u32 {
                let part = set.partition(at);
                assert_eq!(part.bytes.start, next);
                let len = if at % 3 == 0 { 4 * 4096 } else { u64::from(at) + 1 };
                assert_eq!(part.bytes.end - part.bytes.start, len + tag);
                assert_eq!((part.is_packed, part.places), (at % 3 != 0, 4 * at..4 * at + 4));
                next = part.bytes.end;
            }
            assert_eq!(set.partition(200).places, 800..802);
            assert_eq!((set.pages(), set.live(), set.partition_of(801)), (802, 802, 200));
            assert_eq!(u64::from(set.region().end), (set.partition(200).bytes.end).div_ceil(4096));
            set.free(801);
            set.free(801);
            assert!(set.live() == 801 && !set.used.has(801) && set.used.has(800) && set.sum(800) == 7);
        }
    }
}
