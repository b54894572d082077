//! The home of *Hibernate Container*: the swap file and the REAP file. With a file of packed pages beside them (*Sabre*) they
//! are where pages lie until there is time to pack them (`packing.rs`).

mod repack;

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use codec::Engine;

use crate::arena::{self, Arena, PART_PAGES, SharedArena};
use crate::bits::Bits;
use crate::error::{SwapError, TablesError};
use crate::home::{Home, Stat, Stored};
use crate::io::{Device, Piece};
use crate::packed::{PackedFile, slot_of};
use crate::packing::{Packing, Progress, WrittenSet};
use crate::page::{Class, PAGE_BYTES, Page, PageBytes, PageId};
use crate::page_file::{PageFile, gap};
use crate::persist::{self, Said};
use crate::pool;
use crate::staging::{Put, put_all};
use crate::table::{Located, PageLocation, PageLocations, Run};

const SWAP_FILE: &str = "swap file";
const REAP_FILE: &str = "REAP file";
const PACKED_FILE: &str = "packed file";
/// Shorter free runs of the swap file are passed over: writes stay large.
const SHORTEST_RUN: u32 = 64;
/// Most unwanted slots between two wanted ones that are read rather than skipped.
const GAP_MAX: u32 = 4;
/// How far from a touched page's slot others are read along.
const AROUND_SLOTS: u32 = 32;

/// Two files of a sandbox's own.
pub struct SwapHome {
    swap: PageFile,
    reap: PageFile,
    /// Packed pages; `None`: none ever are.
    packed: Option<PackedFile>,
    packing: Packing,
    progress: Progress,
    places: PageLocations,
    /// Words of the pages that are one repeated word, unless it is zero.
    words: HashMap<PageId, u64>,
    /// Pages by class.
    pages: [u64; Class::ALL.len()],
    limit_bytes: u64,
    arena: SharedArena,
}

impl SwapHome {
    /// A home in two files, which may hold `limit_bytes` together.
    #[must_use]
    pub fn new(swap: Box<dyn Device>, reap: Box<dyn Device>, limit_bytes: u64) -> Self {
        Self::of(PageFile::new(SWAP_FILE, swap), PageFile::new(REAP_FILE, reap), limit_bytes)
    }

    fn of(swap: PageFile, reap: PageFile, limit_bytes: u64) -> Self {
        Self {
            swap,
            reap,
            packed: None,
            packing: Packing::default(),
            progress: Progress::default(),
            places: PageLocations::default(),
            words: HashMap::new(),
            pages: Default::default(),
            limit_bytes,
            arena: SharedArena::default(),
        }
    }

    /// Adds a file for packed pages to the home; it is empty yet.
    #[must_use]
    pub fn with_packing(self, file: Box<dyn Device>, packing: Packing) -> Self {
        let packed = PackedFile::new(PageFile::new(PACKED_FILE, file), packing.encrypt);
        Self { packed: Some(packed), packing, ..self }
    }

    /// Adds an engine, which packs and unpacks the home's pages if the codec is [`Codec::Iaa`](crate::Codec::Iaa).
    /// Without one the processor does.
    #[must_use]
    pub fn with_engine(mut self, engine: Arc<dyn Engine>) -> Self {
        self.packed = self.packed.map(|packed| packed.with_engine(engine));
        self
    }

    /// The home that had these files, its packed one last, and wrote down `tables` ([`Home::persist`]). Its pages have numbers
    /// below `end`. The tables may come from anybody: what contradicts itself or the files is refused.
    pub fn reopen(
        [swap, reap, packed]: [Box<dyn Device>; 3],
        packing: Packing,
        tables: &[u8],
        end: PageId,
        limit_bytes: u64,
    ) -> Result<Self, TablesError> {
        let open = |name, device| {
            PageFile::existing(name, device).map_err(|source| TablesError::Length { file: name, source })
        };
        let mut packed = PackedFile::new(open(PACKED_FILE, packed)?, packing.encrypt);
        let mut home = Self::of(open(SWAP_FILE, swap)?, open(REAP_FILE, reap)?, limit_bytes);
        let room = [home.swap.room(), home.reap.room(), packed.room()];
        persist::read(tables, end, room, &mut |said| match said {
            Said::Set(number, set) => packed.restore(number, set),
            Said::Page(entry) => {
                match entry.at.place {
                    PageLocation::Swap(slot) => home.swap.slots.take(slot, entry.sum),
                    PageLocation::Reap(slot) => home.reap.slots.take(slot, entry.sum),
                    PageLocation::Packed(slot) => packed.take(slot, entry.sum),
                    PageLocation::Word => home.set_word(entry.id, entry.word),
                }
                home.settle(entry.id, entry.at);
            }
        })?;
        packed.drop_unused();
        (home.packed, home.packing) = (Some(packed), packing);
        home.trim();
        Ok(home)
    }

    /// Writes everything; nothing else changes.
    fn put(&self, working_set: &[Page], rest: &[Page]) -> Result<[Vec<Put>; 2], SwapError> {
        // The slots of replaced pages are freed only afterwards.
        let free = self.limit_bytes.saturating_sub(self.stored_bytes());
        let budget = AtomicU64::new(free / PAGE_BYTES as u64);
        let full = || SwapError::Limit { limit_bytes: self.limit_bytes };
        // The working set in one piece, so that it comes back by few large reads.
        let reap = put_all(&self.reap, working_set, u32::MAX, &budget)?.ok_or_else(full)?;
        let swap = put_all(&self.swap, rest, SHORTEST_RUN, &budget)?.ok_or_else(full)?;
        Ok([reap, swap])
    }

    fn settle(&mut self, id: PageId, to: Located) {
        self.pages[usize::from(to.class.number())] += 1;
        if let Some(old) = self.places.set(id, to) {
            self.free(id, old, to.place == PageLocation::Word);
        }
    }

    fn free(&mut self, id: PageId, from: Located, keep_word: bool) {
        self.pages[usize::from(from.class.number())] -= 1;
        match from.place {
            PageLocation::Packed(slot) => {
                if let Some(packed) = &mut self.packed {
                    packed.free(slot);
                }
            }
            PageLocation::Swap(slot) => self.swap.free(slot),
            PageLocation::Reap(slot) => self.reap.free(slot),
            PageLocation::Word if keep_word => {}
            PageLocation::Word => {
                self.words.remove(&id);
            }
        }
    }

    /// Whether it has no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.iter().all(|pages| *pages == 0)
    }

    /// Whether it has a page.
    #[must_use]
    pub fn has(&self, id: PageId) -> bool {
        self.places.get(id).is_some()
    }

    /// Forgets pages, and takes up as little memory as it can.
    pub fn remove(&mut self, ids: &[PageId]) {
        self.progress.change();
        for id in ids {
            if let Some(old) = self.places.remove(*id) {
                self.free(*id, old, false);
            }
        }
        if self.is_empty() {
            self.places = PageLocations::default();
        }
        self.trim();
    }

    /// Its pages with their classes, those of the REAP file first, in its order; and how many of them are of that.
    #[must_use]
    pub fn listed(&self) -> (Vec<(PageId, Class)>, usize) {
        let mut runs = self.places.runs();
        let slot = |run: &Run| match run.at.place {
            PageLocation::Reap(slot) => slot,
            _ => u32::MAX,
        };
        runs.sort_by_key(slot);
        let of_set = runs.partition_point(|run| matches!(run.at.place, PageLocation::Reap(_)));
        let pages = |run: &Run| {
            let class = run.at.class;
            (run.first..run.first + run.pages).map(move |id| (id, class))
        };
        let of_set: usize = runs[..of_set].iter().map(|run| run.pages as usize).sum();
        (runs.iter().flat_map(pages).collect(), of_set)
    }

    fn word(&self, id: PageId) -> u64 {
        self.words.get(&id).copied().unwrap_or(0)
    }

    fn set_word(&mut self, id: PageId, word: u64) {
        match word {
            0 => self.words.remove(&id),
            word => self.words.insert(id, word),
        };
    }

    /// Brings pages back. Result: bytes read, and whether none of the pages is packed.
    fn fetch_all(&self, pages: &[Page]) -> Result<(u64, bool), SwapError> {
        let (mut swap, mut reap, mut packed) = (Vec::new(), Vec::new(), Vec::new());
        for page in pages {
            match self.places.get(page.id) {
                Some(PageLocation::Word) => page.piece().fill(self.word(page.id)),
                Some(PageLocation::Swap(slot)) => swap.push((slot, *page)),
                Some(PageLocation::Packed(slot)) => packed.push((slot, *page)),
                Some(PageLocation::Reap(slot)) => reap.push((slot, *page)),
                None => return Err(SwapError::Unknown { id: page.id }),
            }
        }
        let arena = self.arena.get(reap.len().max(swap.len()).max(packed.len()));
        let fetch = |file, found| fetch_from(file, found, arena.as_deref());
        let raw = fetch(&self.reap, &mut reap)? + fetch(&self.swap, &mut swap)?;
        match &self.packed {
            Some(file) if !packed.is_empty() => Ok((raw + file.fetch(&mut packed, arena.as_deref())?, false)),
            _ => Ok((raw, true)),
        }
    }

    /// Takes over a set and its pages, and frees the places where they were.
    fn take_set(&mut self, written: WrittenSet) {
        let Some(packed) = &mut self.packed else { return };
        let number = packed.add(written.set);
        for (place, (id, class)) in (0..).zip(written.pages) {
            let place = PageLocation::Packed(slot_of(number, place));
            self.settle(id, Located { place, class });
        }
    }

    /// Takes up as little memory as it can until the next change.
    fn trim(&mut self) {
        self.arena.trim();
        self.places.trim();
        if let Some(packed) = &mut self.packed {
            packed.trim();
        }
        self.swap.slots.trim();
        self.reap.slots.trim();
    }
}

/// Reads pages that lie in one file; sorts them by slot. Result: bytes read.
fn fetch_from(file: &PageFile, found: &mut [(u32, Page)], arena: Option<&Arena>) -> Result<u64, SwapError> {
    found.sort_unstable_by_key(|(slot, _)| *slot);
    let read = pool::map(&parts(found), |part| match arena.and_then(Arena::take) {
        Some(room) => read_through(file, part, room),
        None => read_part(file, part),
    });
    read.into_iter().sum()
}

/// Parts whose slots are next to each other, but for small gaps, and that one read takes.
fn parts(found: &[(u32, Page)]) -> Vec<&[(u32, Page)]> {
    let (mut parts, mut rest) = (Vec::new(), found);
    while let Some((first, _)) = rest.first() {
        let goes_on = |pair: &[(u32, Page)]| {
            pair[1].0 - pair[0].0 <= 1 + GAP_MAX && ((pair[1].0 - first) as usize) < PART_PAGES
        };
        let (part, later) = rest.split_at(1 + rest.windows(2).take_while(|pair| goes_on(pair)).count());
        parts.push(part);
        rest = later;
    }
    parts
}

/// Reads a part to its pages.
fn read_part(file: &PageFile, part: &[(u32, Page)]) -> Result<u64, SwapError> {
    let Some((first, _)) = part.first() else { return Ok(0) };
    let mut pieces: Vec<Piece<'_>> = Vec::with_capacity(part.len());
    for (slot, page) in part {
        pieces.resize((slot - first) as usize, gap());
        pieces.push(page.piece());
    }
    file.read(&pieces, *first)?;
    let mut copy: PageBytes = [0; PAGE_BYTES];
    for (slot, page) in part {
        page.copy_out(&mut copy);
        file.check(page.id, &copy, *slot)?;
    }
    Ok((pieces.len() * PAGE_BYTES) as u64)
}

/// Reads a part to one place, and copies its pages from there.
fn read_through(file: &PageFile, part: &[(u32, Page)], mut room: arena::Part<'_>) -> Result<u64, SwapError> {
    let (Some((first, _)), Some((last, _))) = (part.first(), part.last()) else { return Ok(0) };
    let slots = (last - first) as usize + 1;
    file.read(&[room.piece(slots)], *first)?;
    for (slot, page) in part {
        let content = &room.pages()[(slot - first) as usize];
        file.check(page.id, content, *slot)?;
        page.copy_in(content);
    }
    Ok((slots * PAGE_BYTES) as u64)
}

impl Home for SwapHome {
    fn store(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError> {
        self.progress.change();
        if self.stores_packed() {
            return self.store_packed(working_set, rest, false);
        }
        if self.is_short_of((working_set.len() + rest.len()) as u64 * PAGE_BYTES as u64) {
            match self.store_packed(working_set, rest, true) {
                Err(SwapError::Limit { .. }) => {}
                result => return result,
            }
        }
        let [reap, swap] = self.put(working_set, rest).inspect_err(|_| {
            // Pages that were written in vain take no room.
            self.reap.drop_tail();
            self.swap.drop_tail();
        })?;
        // All is written: from here on nothing can fail. The new slots are all taken before any old one is freed: a file of
        // which none is in use is emptied.
        for (file, put) in [(&mut self.reap, &reap), (&mut self.swap, &swap)] {
            put.iter().flat_map(Put::placed).for_each(|(slot, staged)| file.slots.take(slot, staged.sum));
        }
        let mut stored = Stored::default();
        for (slot, staged) in reap.iter().flat_map(Put::placed) {
            let place = PageLocation::Reap(slot);
            self.settle(staged.page.id, Located { place, class: staged.page.class });
            stored.reap_pages += 1;
        }
        for (slot, staged) in swap.iter().flat_map(Put::placed) {
            let place = PageLocation::Swap(slot);
            self.settle(staged.page.id, Located { place, class: staged.page.class });
            stored.swap_pages += 1;
        }
        for &(page, word) in reap.iter().chain(&swap).flat_map(|put| &put.words) {
            self.set_word(page.id, word);
            self.settle(page.id, Located { place: PageLocation::Word, class: page.class });
            stored.word_pages += 1;
        }
        self.trim();
        Ok(stored)
    }

    fn fetch(&self, pages: &[Page]) -> Result<u64, SwapError> {
        let start = Instant::now();
        let (bytes, is_raw) = self.fetch_all(pages)?;
        if is_raw {
            self.progress.read(bytes, start.elapsed());
        }
        Ok(bytes)
    }

    fn fetch_around(&self, pages: &mut Vec<Page>) -> Result<u64, SwapError> {
        let Some(first) = pages.first().map(|page| page.id) else { return Ok(0) };
        let near = match self.places.get(first) {
            Some(PageLocation::Word) | None => None,
            place => place,
        };
        let is_near = |place: PageLocation| match (near, place) {
            (_, PageLocation::Word) => true,
            (Some(PageLocation::Swap(at)), PageLocation::Swap(slot))
            | (Some(PageLocation::Reap(at)), PageLocation::Reap(slot))
            | (Some(PageLocation::Packed(at)), PageLocation::Packed(slot)) => {
                at.abs_diff(slot) <= AROUND_SLOTS
            }
            _ => false,
        };
        pages.retain(|page| self.places.get(page.id).map_or(page.id == first, is_near));
        self.fetch(pages)
    }

    fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool) {
        self.progress.change();
        let mut dropped = Vec::new();
        self.places.retain(kept, &mut |id, from| dropped.push((id, from)));
        for (id, from) in dropped {
            self.free(id, from, false);
        }
    }

    fn rest(&self) {
        self.arena.trim();
        if let Some(packed) = &self.packed {
            packed.rest();
        }
    }

    fn pages(&self) -> Bits {
        self.places.runs().iter().flat_map(|run| run.first..run.first + run.pages).collect()
    }

    fn stored_bytes(&self) -> u64 {
        let packed = self.packed.as_ref().map_or(0, PackedFile::used_bytes);
        self.swap.used_bytes() + self.reap.used_bytes() + packed
    }

    fn stats(&self) -> Vec<Stat> {
        let stat = |name, value| Stat { name, value };
        let [file, anonymous, store, kernel] = self.pages;
        [
            stat("swap_file_bytes", self.swap.used_bytes()),
            stat("reap_file_bytes", self.reap.used_bytes()),
            stat("file_pages", file),
            stat("anonymous_pages", anonymous),
            stat("store_pages", store),
            stat("kernel_pages", kernel),
        ]
        .into_iter()
        .chain(self.packing_stats())
        .collect()
    }

    fn persist(&self, to: &mut dyn Write) -> Result<(), TablesError> {
        if self.stores_packed() {
            return Err(TablesError::Sealed);
        }
        let runs = self.places.runs();
        let words = |id| self.word(id);
        let slots = [&self.swap.slots, &self.reap.slots];
        let tables = persist::tables(&runs, slots, self.packed.as_ref(), words)?;
        to.write_all(&tables).map_err(TablesError::from)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let packed = self.packed.as_ref().and_then(PackedFile::descriptor);
        [self.swap.descriptor(), self.reap.descriptor(), packed].into_iter().flatten().collect()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
