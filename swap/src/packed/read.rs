//! Reading pages of sets: large reads, several at once, and one is unpacked while another comes from the disk.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use codec::{Corrupt, Engine, PIECE_BYTES, Style, TableSet, Unpacker, Work};

use super::set::{PackedSet, Partition};
use super::{PackedFile, split};
use crate::aligned::AlignedPage;
use crate::arena::{Arena, PART_PAGES};
use crate::error::SwapError;
use crate::page::{PAGE_BYTES, Page, PageId};
use crate::pool;

/// Shortest and longest read of many, in bytes: with several of them all threads have work.
const SHORT_READ: u64 = 128 << 10;
const LONG_READ: u64 = ((PART_PAGES - 1) * PAGE_BYTES) as u64;
/// Most unwanted bytes between two partitions that are read rather than skipped.
const GAP_MAX: u64 = 16 << 10;
/// So many reads are wanted at least, if there is enough to read.
const READS: u64 = 8;
/// Most benches that are kept for later: each takes some 200 KB.
const BENCHES_MAX: usize = 8;

/// A coder and room for a partition, which one thread after the other uses: to make them takes as long as to unpack some
/// pages.
pub struct Bench {
    style: Style,
    tables: Option<Arc<TableSet>>,
    unpacker: Unpacker,
    room: Vec<u8>,
}

impl Bench {
    fn new(set: &PackedSet) -> Self {
        let (style, tables) = (set.layout.style, set.tables.clone());
        let unpacker = Unpacker::new(style, tables.clone());
        Self { style, tables, unpacker, room: vec![0; PIECE_BYTES] }
    }

    fn fits(&self, set: &PackedSet) -> bool {
        let has_its_tables = match (&self.tables, &set.tables) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        self.style == set.layout.style && has_its_tables
    }
}

/// A partition of which pages are wanted.
struct Wanted<'a> {
    set: &'a PackedSet,
    number: u32,
    partition: Partition,
    pages: &'a [(u32, Page)],
}

impl Wanted<'_> {
    /// A page for errors to name.
    fn id(&self) -> PageId {
        self.pages.first().map_or(0, |(_, page)| page.id)
    }

    /// Bytes of its pages.
    fn len(&self) -> usize {
        self.partition.places.len() * PAGE_BYTES
    }

    /// Where it is unpacked to, if it is packed.
    fn room(&self) -> Vec<u8> {
        vec![0; if self.partition.is_packed { self.len() } else { 0 }]
    }
}

impl PackedFile {
    /// Reads pages to their places; sorts them by slot. Result: bytes read.
    pub fn fetch(&self, found: &mut [(u32, Page)], arena: Option<&Arena>) -> Result<u64, SwapError> {
        found.sort_unstable_by_key(|(slot, _)| *slot);
        let wanted = self.wanted(found)?;
        let read = pool::map(&reads(&wanted), |read| self.read(read, arena));
        read.into_iter().sum()
    }

    fn wanted<'a>(&'a self, found: &'a [(u32, Page)]) -> Result<Vec<Wanted<'a>>, SwapError> {
        let key = |slot: u32| {
            let (set, place) = split(slot);
            (set, self.set(set).map_or(0, |set| set.partition_of(place)))
        };
        let of = |pages: &'a [(u32, Page)]| {
            let (slot, page) = pages.first()?;
            let (number, place) = split(*slot);
            let set =
                self.set(number).filter(|set| place < set.pages()).ok_or(SwapError::Unknown { id: page.id });
            Some(set.map(|set| {
                let number = set.partition_of(place);
                Wanted { set, number, partition: set.partition(number), pages }
            }))
        };
        found.chunk_by(|a, b| key(a.0) == key(b.0)).filter_map(of).collect()
    }

    fn read(&self, wanted: &[Wanted<'_>], arena: Option<&Arena>) -> Result<u64, SwapError> {
        let range = span(wanted);
        let (first, end) = (range.start / PAGE_BYTES as u64, range.end.div_ceil(PAGE_BYTES as u64));
        let pages = usize::try_from(end - first).unwrap_or(usize::MAX);
        let at = u32::try_from(first).unwrap_or(u32::MAX);
        match arena.and_then(Arena::take).filter(|_| pages <= PART_PAGES) {
            Some(mut room) => {
                self.file.read(&[room.piece(pages)], at)?;
                self.unpack(wanted, first, room.pages_mut().as_flattened_mut())?;
            }
            None => {
                let mut room = vec![AlignedPage::ZERO; pages];
                self.file.read(&[AlignedPage::piece(&mut room)], at)?;
                self.unpack(wanted, first, AlignedPage::bytes_mut(&mut room))?;
            }
        }
        Ok((pages * PAGE_BYTES) as u64)
    }

    /// Returns a bench that unpacks this set's partitions: an idle one that fits, or a new one.
    fn bench(&self, set: &PackedSet) -> Bench {
        let mut benches = self.benches.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = benches.iter().position(|bench| bench.fits(set)).map(|at| benches.remove(at));
        drop(benches);
        idle.unwrap_or_else(|| Bench::new(set))
    }

    /// Unpacks partitions from `bytes`, which begin with page `first` of the file.
    fn unpack(&self, wanted: &[Wanted<'_>], first: u64, bytes: &mut [u8]) -> Result<(), SwapError> {
        let start = Instant::now();
        let begin = first * PAGE_BYTES as u64;
        let engine = wanted.first().and_then(|one| self.engine_for(&one.set.layout));
        match engine {
            Some(engine) => self.unpack_by(engine, wanted, begin, bytes)?,
            None => {
                let mut bench = None;
                for one in wanted {
                    let stored = self.open(one, begin, bytes)?;
                    self.unpack_one(one, stored, &mut bench)?;
                }
                self.give_back(bench);
            }
        }
        let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.unpack_ns.fetch_add(took, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the stored bytes of a partition without its seal, which is checked. `bytes` begin at `begin` of the
    /// file.
    fn open<'a>(&self, one: &Wanted<'_>, begin: u64, bytes: &'a mut [u8]) -> Result<&'a [u8], SwapError> {
        let at = |offset: u64| usize::try_from(offset - begin).unwrap_or(usize::MAX);
        let stored = &mut bytes[at(one.partition.bytes.start)..at(one.partition.bytes.end)];
        let (Some(key), Some(set)) = (self.key()?, one.set.seal) else { return Ok(stored) };
        let forged = SwapError::Forged { file: self.file.name, id: one.id() };
        key.open(set, one.number, stored).ok_or(forged)
    }

    /// Unpacks a partition. `bench`: what unpacked the last one.
    fn unpack_one(
        &self,
        one: &Wanted<'_>,
        stored: &[u8],
        bench: &mut Option<Bench>,
    ) -> Result<(), SwapError> {
        if !one.partition.is_packed {
            return self.deliver(one, stored);
        }
        let fitting = bench.take().filter(|bench| bench.fits(one.set));
        let Bench { unpacker, room, .. } = bench.insert(fitting.unwrap_or_else(|| self.bench(one.set)));
        let room = &mut room[..one.len()];
        unpacker.unpack(stored, room).map_err(|source| self.damaged(one, source))?;
        self.deliver(one, room)
    }

    /// Has an engine unpack partitions of one set, all together. What it unpacks wrongly the processor does, and it is counted.
    fn unpack_by(
        &self,
        engine: &dyn Engine,
        wanted: &[Wanted<'_>],
        begin: u64,
        bytes: &mut [u8],
    ) -> Result<(), SwapError> {
        let mut rest = bytes;
        let mut begin = begin;
        let mut stored: Vec<&[u8]> = Vec::with_capacity(wanted.len());
        for one in wanted {
            let end = usize::try_from(one.partition.bytes.end - begin).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at_mut(end);
            stored.push(self.open(one, begin, now)?);
            (rest, begin) = (later, one.partition.bytes.end);
        }
        let mut rooms: Vec<Vec<u8>> = wanted.iter().map(Wanted::room).collect();
        let is_packed = |one: &&Wanted<'_>| one.partition.is_packed;
        let packed: Vec<&Wanted<'_>> = wanted.iter().filter(is_packed).collect();
        let mut work: Vec<Work<'_>> = wanted
            .iter()
            .zip(&stored)
            .zip(&mut rooms)
            .filter(|((one, _), _)| one.partition.is_packed)
            .map(|((_, packed), out)| Work::Unpack { packed, out })
            .collect();
        if let Some(table) = wanted.first().and_then(|one| one.set.sole_table()) {
            engine.run(table, &mut work).map_err(|(at, source)| self.damaged(packed[at], source))?;
        }
        let mut bench = None;
        for ((one, stored), room) in wanted.iter().zip(stored).zip(&rooms) {
            if !one.partition.is_packed || self.deliver(one, room).is_err() {
                self.redone.fetch_add(one.partition.is_packed.into(), Ordering::Relaxed);
                self.unpack_one(one, stored, &mut bench)?;
            }
        }
        self.give_back(bench);
        Ok(())
    }

    fn damaged(&self, one: &Wanted<'_>, source: Corrupt) -> SwapError {
        SwapError::Unpack { file: self.file.name, id: one.id(), source }
    }

    /// Copies pages of a partition to where they are wanted, if they are what they were.
    fn deliver(&self, one: &Wanted<'_>, content: &[u8]) -> Result<(), SwapError> {
        let (pages, _) = content.as_chunks::<PAGE_BYTES>();
        for (slot, page) in one.pages {
            let (_, place) = split(*slot);
            let content = &pages[(place - one.partition.places.start) as usize];
            let (stored, found) = (one.set.sum(place), crc32c::crc32c(content));
            if stored != found {
                return Err(SwapError::Damaged { file: self.file.name, id: page.id, stored, found });
            }
            page.copy_in(content);
        }
        Ok(())
    }

    fn give_back(&self, bench: Option<Bench>) {
        let mut benches = self.benches.lock().unwrap_or_else(PoisonError::into_inner);
        benches.extend(bench);
        // The first ones were not used for longest.
        let surplus = benches.len().saturating_sub(BENCHES_MAX);
        let surplus: Vec<Bench> = benches.drain(..surplus).collect();
        drop(benches);
        drop(surplus);
    }
}

/// The bytes of the file from the first partition to the last.
fn span(wanted: &[Wanted<'_>]) -> Range<u64> {
    match (wanted.first(), wanted.last()) {
        (Some(first), Some(last)) => first.partition.bytes.start..last.partition.bytes.end,
        _ => 0..0,
    }
}

/// Partitions that one read brings: next to each other, but for small gaps.
fn reads<'a, 'b>(wanted: &'a [Wanted<'b>]) -> Vec<&'a [Wanted<'b>]> {
    let len = |one: &Wanted<'_>| one.partition.bytes.end - one.partition.bytes.start;
    let most = (wanted.iter().map(len).sum::<u64>() / READS).clamp(SHORT_READ, LONG_READ);
    let (mut reads, mut rest) = (Vec::new(), wanted);
    while let Some(first) = rest.first() {
        let goes_on = |pair: &[Wanted<'_>]| {
            let gap = pair[1].partition.bytes.start.checked_sub(pair[0].partition.bytes.end);
            std::ptr::eq(pair[0].set, pair[1].set)
                && gap.is_some_and(|gap| gap <= GAP_MAX)
                && pair[1].partition.bytes.end - first.partition.bytes.start <= most
        };
        let (read, later) = rest.split_at(1 + rest.windows(2).take_while(|pair| goes_on(pair)).count());
        reads.push(read);
        rest = later;
    }
    reads
}

#[cfg(test)]
mod tests {
    use std::thread;

    use codec::{Packer, Statistics};

    use super::*;
    use crate::packed::{Layout, Outcome, SetPlan, Source, slot_of, write_set};
    use crate::page_file::PageFile;
    use crate::testing::{Faulty, Handle, Memory};

    struct Text;

    impl Source for Text {
        fn read(&mut self, pages: Range<usize>, into: &mut [AlignedPage]) -> Result<(), SwapError> {
            let mut memory = Memory::new(1);
            for (page, to) in pages.zip(into) {
                memory.set_text(0, page as u64);
                to.0.copy_from_slice(&memory.0[0].0);
            }
            Ok(())
        }
    }

    /// Each set has tables of its own.
    #[test]
    fn many_sets_leave_few_coders_behind() {
        let mut file = PackedFile::new(PageFile::new("file", Box::new(Handle(Faulty::good()))), false);
        let style = Style::DeflateCanned;
        let layout =
            Layout { style, partition_pages: 1, is_working: false, is_settled: true, for_engine: false };
        let mut memory = Memory::new(20);
        for number in 0..3 * BENCHES_MAX {
            let (budget, goes_on) = (u64::MAX, &|| true);
            let plan = SetPlan { layout, pages: 20, budget, in_parallel: false, beside: &[], goes_on };
            let Outcome::Done(set) = write_set(&file, &plan, &mut Text).unwrap() else { panic!("no room") };
            assert_eq!(file.add(set), number);
            let mut found = [(slot_of(number, 7), memory.page(7))];
            file.fetch(&mut found, None).unwrap();
            assert!(memory.0[7].0.starts_with(b"7 "));
            memory.wipe(7);
        }
        assert_eq!(file.benches.lock().unwrap().len(), BENCHES_MAX);
    }

    /// Threads that pack and unpack have [`pool::STACK_BYTES`]; half of that is enough.
    #[test]
    fn coders_need_little_stack() {
        let work = |style: Style| {
            let piece: Vec<u8> = (0..PIECE_BYTES).map(|at| b"sleep, dormouse"[at * at % 15]).collect();
            let mut statistics = Statistics::new();
            let other: Vec<u8> = (0..PIECE_BYTES).map(|at| at.to_be_bytes()[at % 8]).collect();
            for piece in [&piece, &other, &piece, &other] {
                statistics.add(piece);
            }
            let tables = Arc::new(statistics.tables(TableSet::MOST));
            let mut packed = vec![0; PIECE_BYTES];
            let len = Packer::new(style, Some(tables.clone())).pack(&piece, &mut packed).unwrap();
            let mut back = vec![0; PIECE_BYTES];
            Unpacker::new(style, Some(tables)).unpack(&packed[..len], &mut back).unwrap();
            assert!(piece == back);
        };
        for style in Style::ALL {
            let thread = thread::Builder::new().stack_size(pool::STACK_BYTES / 2);
            thread.spawn(move || work(style)).unwrap().join().unwrap();
        }
    }
}
