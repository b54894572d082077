//! Homes of pages, and the first one: the swap file and the REAP file.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::bounce::{Bounce, Bounces};
use crate::error::SwapError;
use crate::io::{Device, Direction, transfer};
use crate::page::{PAGE_BYTES, Page, PageId};
use crate::pool;
use crate::table::{PageLocation, PageLocations, Slots};

/// A place for pages. Calls are made by one thread at a time.
pub trait Home: Send {
    /// Stores pages: `working_set` to come back together, in this order, and `rest` to come back one by one. Replaces
    /// the pages stored under the same numbers. After an error nothing has changed.
    fn store(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError>;
    /// Brings pages back, one or a whole set, in any order; neighbours in the file are read together. The pages stay
    /// stored. After an error the content of the pages is undefined. Result: bytes read.
    fn fetch(&mut self, pages: &mut [Page]) -> Result<u64, SwapError>;
    /// Brings the first of `pages` back, and those of the others that lie next to it in the file: reading them along costs
    /// next to nothing. Others are left out of `pages`, whose order changes. Otherwise as [`Self::fetch`].
    fn fetch_around(&mut self, pages: &mut Vec<Page>) -> Result<u64, SwapError>;
    /// Forgets pages that are not `kept`.
    fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool);
    /// Bytes of disk in use.
    fn stored_bytes(&self) -> u64;
}

const SWAP_FILE: &str = "swap file";
const REAP_FILE: &str = "REAP file";
/// Shorter free runs of the swap file are passed over: writes stay large.
const SHORTEST_RUN: u32 = 64;
/// Most unwanted slots between two wanted ones that are read rather than skipped.
const GAP_MAX: u32 = 4;
/// Pages that one thread writes or reads at a time: 4 MiB and 512 KiB.
const WRITE_PAGES: usize = 1024;
/// A store of at least so many writes gathers the pages of each in one piece first; less does not pay for the memory.
const BOUNCED_PARTS: usize = 16;
const READ_PAGES: usize = 128;
/// How far from a touched page's slot others are read along.
const AROUND_SLOTS: u32 = 32;

/// The outcome of a [`Home::store`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Pages written to the swap file and to the REAP file.
    pub swap_pages: u64,
    pub reap_pages: u64,
    /// Pages of one repeated word, which were only recorded.
    pub word_pages: u64,
}

struct PageFile {
    name: &'static str,
    device: Box<dyn Device>,
    slots: Slots,
    /// Its length, as far as this object has set it.
    len: AtomicU64,
}

impl PageFile {
    fn new(name: &'static str, device: Box<dyn Device>) -> Self {
        Self { name, device, slots: Slots::default(), len: AtomicU64::new(0) }
    }

    /// Makes the file long enough for slots up to `end`.
    fn lengthen(&self, end: u32) {
        let len = offset_of(end);
        if self.len.fetch_max(len, Ordering::Relaxed) < len {
            self.device.lengthen(len);
        }
    }

    fn write(&self, addrs: &[*mut u8], slot: u32) -> Result<(), SwapError> {
        transfer(&*self.device, Direction::Write, addrs, offset_of(slot))
            .map_err(|source| SwapError::Write { file: self.name, source })
    }

    fn read(&self, addrs: &[*mut u8], slot: u32) -> Result<(), SwapError> {
        transfer(&*self.device, Direction::Read, addrs, offset_of(slot))
            .map_err(|source| SwapError::Read { file: self.name, source })
    }

    fn check(&self, page: &Page, slot: u32) -> Result<(), SwapError> {
        let (stored, found) = (self.slots.sum(slot), crc32c::crc32c(page.bytes()));
        if stored == found {
            return Ok(());
        }
        Err(SwapError::Damaged { file: self.name, id: page.id, stored, found })
    }

    /// Gives back the blocks behind the last slot in use.
    fn drop_tail(&self) {
        let from = offset_of(self.slots.end());
        self.device.discard(from, (u64::MAX >> 1) - from);
    }

    fn free(&mut self, slot: u32) {
        self.slots.free(slot);
        if self.slots.count() == 0 {
            self.device.discard(0, u64::MAX >> 1);
        }
    }
}

fn offset_of(slot: u32) -> u64 {
    u64::from(slot) * PAGE_BYTES as u64
}

/// The home of *Hibernate Container*: two files of a sandbox's own.
pub struct SwapHome {
    swap: PageFile,
    reap: PageFile,
    places: PageLocations,
    /// Words of the pages that are one repeated word, unless it is zero.
    words: HashMap<PageId, u64>,
    limit_bytes: u64,
    /// The place that slots are read to which are read only because they lie between others.
    scratch: Box<AlignedPage>,
}

#[repr(align(4096))]
struct AlignedPage([u8; PAGE_BYTES]);

/// A page on its way into a file.
#[derive(Clone, Copy)]
struct Staged {
    page: Page,
    sum: u32,
}

/// Pages that were written, by free runs of slots in their order, and those that are a word.
#[derive(Default)]
struct Put {
    runs: Vec<(u32, u32)>,
    staged: Vec<Staged>,
    words: Vec<(PageId, u64)>,
}

impl Put {
    /// The pages with their slots.
    fn placed(&self) -> impl Iterator<Item = (u32, &Staged)> {
        let slots = self.runs.iter().flat_map(|&(first, len)| first..first + len);
        slots.zip(&self.staged)
    }
}

/// Free slots that a store found, given out from the front, and how many pages it may write in all.
struct Room<'a> {
    runs: Mutex<Vec<(u32, u32)>>,
    budget: &'a AtomicU64,
}

impl<'a> Room<'a> {
    fn new(mut runs: Vec<(u32, u32)>, budget: &'a AtomicU64) -> Self {
        runs.reverse();
        Self { runs: Mutex::new(runs), budget }
    }

    /// Runs for `count` pages; `None`: there is no room.
    fn take(&self, count: u32) -> Option<Vec<(u32, u32)>> {
        let less = |left: u64| left.checked_sub(count.into());
        self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, mut missing) = (Vec::new(), count);
        while missing > 0 {
            let (first, len) = runs.pop()?;
            let part = len.min(missing);
            taken.push((first, part));
            missing -= part;
            if part < len {
                runs.push((first + part, len - part));
            }
        }
        Some(taken)
    }
}

impl SwapHome {
    /// A home in two files, which may hold `limit_bytes` together.
    #[must_use]
    pub fn new(swap: Box<dyn Device>, reap: Box<dyn Device>, limit_bytes: u64) -> Self {
        Self {
            swap: PageFile::new(SWAP_FILE, swap),
            reap: PageFile::new(REAP_FILE, reap),
            places: PageLocations::default(),
            words: HashMap::new(),
            limit_bytes,
            scratch: Box::new(AlignedPage([0; PAGE_BYTES])),
        }
    }

    /// Bytes in use in the swap file and in the REAP file.
    #[must_use]
    pub fn file_bytes(&self) -> [u64; 2] {
        [&self.swap, &self.reap].map(|file| u64::from(file.slots.count()) * PAGE_BYTES as u64)
    }

    /// Writes pages to free slots of a file, in about their order; one part is checked while another one is written.
    fn put_all(
        &self,
        file: &PageFile,
        pages: &[Page],
        shortest: u32,
        budget: &AtomicU64,
    ) -> Result<Vec<Put>, SwapError> {
        let full = || SwapError::Limit { limit_bytes: self.limit_bytes };
        let wanted = u32::try_from(pages.len()).map_err(|_| full())?;
        let runs = file.slots.find(wanted, shortest).ok_or_else(full)?;
        file.lengthen(runs.iter().map(|(first, len)| first + len).max().unwrap_or(0));
        let room = Room::new(runs, budget);
        let parts: Vec<&[Page]> = pages.chunks(WRITE_PAGES).collect();
        let bounces = Bounces::new(WRITE_PAGES);
        let put = pool::map(&parts, |part| {
            let mut bounce = if parts.len() >= BOUNCED_PARTS { bounces.take() } else { None };
            let (mut put, addrs) = stage(part, bounce.as_mut());
            put.runs = room.take(u32::try_from(put.staged.len()).unwrap_or(u32::MAX)).ok_or_else(full)?;
            let mut rest = addrs.as_slice();
            for &(first, len) in &put.runs {
                let (run, later) = rest.split_at(rest.len().min(len as usize));
                file.write(run, first)?;
                rest = later;
            }
            bounce.into_iter().for_each(|bounce| bounces.give_back(bounce));
            Ok(put)
        });
        put.into_iter().collect()
    }

    /// Writes everything; nothing else changes.
    fn put(&self, working_set: &[Page], rest: &[Page]) -> Result<[Vec<Put>; 2], SwapError> {
        // The slots of replaced pages are freed only afterwards.
        let free = self.limit_bytes.saturating_sub(self.stored_bytes());
        let budget = AtomicU64::new(free / PAGE_BYTES as u64);
        // The working set in one piece, so that it comes back by few large reads.
        let reap = self.put_all(&self.reap, working_set, u32::MAX, &budget)?;
        let swap = self.put_all(&self.swap, rest, SHORTEST_RUN, &budget)?;
        Ok([reap, swap])
    }

    fn settle(&mut self, id: PageId, place: PageLocation) {
        if let Some(old) = self.places.set(id, place) {
            self.free(id, old, place == PageLocation::Word);
        }
    }

    fn free(&mut self, id: PageId, place: PageLocation, keep_word: bool) {
        match place {
            PageLocation::Swap(slot) => self.swap.free(slot),
            PageLocation::Reap(slot) => self.reap.free(slot),
            PageLocation::Word if keep_word => {}
            PageLocation::Word => {
                self.words.remove(&id);
            }
        }
    }

    fn fill(&self, page: &mut Page) {
        let word = self.words.get(&page.id).copied().unwrap_or(0).to_ne_bytes();
        page.bytes_mut().as_chunks_mut().0.fill(word);
    }

    /// Reads pages that lie in one file; sorts them by slot. Result: bytes read.
    fn fetch_from(file: &PageFile, found: &mut [(u32, Page)], scratch: Page) -> Result<u64, SwapError> {
        found.sort_unstable_by_key(|(slot, _)| *slot);
        let runs = found.chunk_by(|(a, _), (b, _)| b - a <= 1 + GAP_MAX);
        let pieces: Vec<&[(u32, Page)]> = runs.flat_map(|run| run.chunks(READ_PAGES)).collect();
        let read = pool::map(&pieces, |piece| Self::read_piece(file, piece, scratch));
        read.into_iter().sum()
    }

    /// Reads pages whose slots are next to each other, but for small gaps.
    fn read_piece(file: &PageFile, piece: &[(u32, Page)], scratch: Page) -> Result<u64, SwapError> {
        let Some((first, _)) = piece.first() else { return Ok(0) };
        let mut addrs: Vec<*mut u8> = Vec::with_capacity(piece.len());
        for (slot, page) in piece {
            addrs.resize((slot - first) as usize, scratch.addr());
            addrs.push(page.addr());
        }
        file.read(&addrs, *first)?;
        for (slot, page) in piece {
            file.check(page, *slot)?;
        }
        Ok((addrs.len() * PAGE_BYTES) as u64)
    }

    /// The page that receives unwanted slots; nobody reads it.
    fn scratch(&mut self) -> Page {
        // SAFETY: the box lives as long as the home, whose calls are over before it goes; its content means nothing.
        unsafe { Page::new(PageId::MAX, NonNull::from(&mut self.scratch.0).cast()) }
    }
}

/// The word that the page repeats.
fn repeated_word(page: &Page) -> Option<u64> {
    let (words, _) = page.bytes().as_chunks::<8>();
    let first = words.first()?;
    words.iter().all(|word| word == first).then(|| u64::from_ne_bytes(*first))
}

/// Looks at pages: returns those that are one repeated word, the others with their checksums, and the addresses from
/// which the others are to be written.
fn stage(pages: &[Page], mut bounce: Option<&mut Bounce>) -> (Put, Vec<*mut u8>) {
    let mut put = Put { staged: Vec::with_capacity(pages.len()), ..Put::default() };
    let mut addrs = Vec::with_capacity(pages.len());
    for &page in pages {
        match repeated_word(&page) {
            Some(word) => put.words.push((page.id, word)),
            None => {
                let copy = bounce.as_mut().and_then(|bounce| bounce.put(put.staged.len(), &page));
                addrs.push(copy.unwrap_or(page.addr()));
                put.staged.push(Staged { page, sum: crc32c::crc32c(page.bytes()) });
            }
        }
    }
    (put, addrs)
}

impl Home for SwapHome {
    fn store(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError> {
        let [reap, swap] = self.put(working_set, rest).inspect_err(|_| {
            // Pages that were written in vain take no room.
            self.reap.drop_tail();
            self.swap.drop_tail();
        })?;
        // All is written: from here on nothing can fail.
        let mut stored = Stored::default();
        for (slot, staged) in reap.iter().flat_map(Put::placed) {
            self.reap.slots.take(slot, staged.sum);
            self.settle(staged.page.id, PageLocation::Reap(slot));
            stored.reap_pages += 1;
        }
        for (slot, staged) in swap.iter().flat_map(Put::placed) {
            self.swap.slots.take(slot, staged.sum);
            self.settle(staged.page.id, PageLocation::Swap(slot));
            stored.swap_pages += 1;
        }
        for &(id, word) in reap.iter().chain(&swap).flat_map(|put| &put.words) {
            match word {
                0 => self.words.remove(&id),
                word => self.words.insert(id, word),
            };
            self.settle(id, PageLocation::Word);
            stored.word_pages += 1;
        }
        self.places.trim();
        self.swap.slots.trim();
        self.reap.slots.trim();
        Ok(stored)
    }

    fn fetch(&mut self, pages: &mut [Page]) -> Result<u64, SwapError> {
        let (mut swap, mut reap) = (Vec::new(), Vec::new());
        for page in pages.iter_mut() {
            match self.places.get(page.id) {
                Some(PageLocation::Word) => self.fill(page),
                Some(PageLocation::Swap(slot)) => swap.push((slot, *page)),
                Some(PageLocation::Reap(slot)) => reap.push((slot, *page)),
                None => return Err(SwapError::Unknown { id: page.id }),
            }
        }
        let scratch = self.scratch();
        Ok(Self::fetch_from(&self.reap, &mut reap, scratch)?
            + Self::fetch_from(&self.swap, &mut swap, scratch)?)
    }

    fn fetch_around(&mut self, pages: &mut Vec<Page>) -> Result<u64, SwapError> {
        let Some(first) = pages.first().map(|page| page.id) else { return Ok(0) };
        let near = match self.places.get(first) {
            Some(PageLocation::Swap(slot)) => Some((slot, false)),
            Some(PageLocation::Reap(slot)) => Some((slot, true)),
            Some(PageLocation::Word) | None => None,
        };
        let is_near = |slot: u32, reap: bool| {
            near.is_some_and(|(at, is_reap)| is_reap == reap && at.abs_diff(slot) <= AROUND_SLOTS)
        };
        pages.retain(|page| match self.places.get(page.id) {
            Some(PageLocation::Word) => true,
            Some(PageLocation::Swap(slot)) => is_near(slot, false),
            Some(PageLocation::Reap(slot)) => is_near(slot, true),
            None => page.id == first,
        });
        self.fetch(pages)
    }

    fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool) {
        let mut dropped = Vec::new();
        self.places.retain(kept, &mut |id, place| dropped.push((id, place)));
        for (id, place) in dropped {
            self.free(id, place, false);
        }
    }

    fn stored_bytes(&self) -> u64 {
        u64::from(self.swap.slots.count() + self.reap.slots.count()) * PAGE_BYTES as u64
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
