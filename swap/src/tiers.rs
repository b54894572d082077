//! A home in memory over one on the disk: pages go to where they are wanted, come from where they are, and move from one to the other while
//! the sandbox sleeps.

use std::io::Write;
use std::os::fd::BorrowedFd;

use crate::bits::Bits;
use crate::bounce::Bounces;
use crate::diff::MemoryHome;
use crate::disk::SwapHome;
use crate::error::{SwapError, TablesError};
use crate::home::{Home, Stat, Stored};
use crate::page::{Class, PAGE_BYTES, Page, PageId};

/// More pages than these go to the disk first, which takes less time than packing them, and move from there: 32 MiB.
const AT_ONCE_PAGES: usize = 8192;
/// Pages that move at a time: 2 MiB.
pub const MOVED_PAGES: usize = 512;

/// Where pages are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// On the disk
    #[default]
    Disk,
    /// In memory
    Memory,
}

/// See the module.
pub struct TieredHome {
    /// Where pages go that are stored from now on.
    goes_to: Tier,
    at_once: usize,
    /// `None`: there is none, and all goes to the disk.
    memory: Option<MemoryHome>,
    disk: SwapHome,
}

/// Pages on their way to a tier.
#[derive(Debug)]
pub struct Moves {
    to: Tier,
    pages: Vec<(PageId, Class)>,
    /// So many of them are of the working set.
    of_set: usize,
    /// So many have moved, or were not there any more.
    at: usize,
}

impl From<SwapHome> for TieredHome {
    fn from(disk: SwapHome) -> Self {
        Self { goes_to: Tier::Disk, at_once: AT_ONCE_PAGES, memory: None, disk }
    }
}

impl TieredHome {
    /// With a home in memory, which is empty, and to which pages go from now on.
    #[must_use]
    pub fn with_memory(self, memory: MemoryHome, goes_to: Tier) -> Self {
        Self { memory: Some(memory), goes_to, ..self }
    }

    /// The home on the disk.
    #[must_use]
    pub fn disk(&self) -> &SwapHome {
        &self.disk
    }

    /// The home on the disk, to take over what was packed of it.
    pub fn disk_mut(&mut self) -> &mut SwapHome {
        &mut self.disk
    }

    /// The home in memory.
    #[must_use]
    pub fn memory(&self) -> Option<&MemoryHome> {
        self.memory.as_ref()
    }

    /// The home in memory, if it has pages.
    #[must_use]
    pub fn occupied(&self) -> Option<&MemoryHome> {
        self.memory.as_ref().filter(|memory| !memory.is_empty())
    }

    /// The home in memory, to be changed.
    pub fn memory_mut(&mut self) -> Option<&mut MemoryHome> {
        self.memory.as_mut()
    }

    /// Where pages go that are stored from now on.
    #[must_use]
    pub fn goes_to(&self) -> Tier {
        self.goes_to
    }

    /// Sends pages that are stored from now on somewhere else. False: there is no home there.
    pub fn send_to(&mut self, tier: Tier) -> bool {
        let is_there = tier == Tier::Disk || self.memory.is_some();
        if is_there {
            self.goes_to = tier;
        }
        is_there
    }

    /// Whether all pages are where they are sent.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        match self.goes_to {
            Tier::Disk => self.occupied().is_none(),
            Tier::Memory => self.disk.is_empty(),
        }
    }

    /// The pages that have to move for all to be in a tier, those of the last working set first.
    #[must_use]
    pub fn moves(&self, to: Tier) -> Moves {
        let (pages, of_set) = match (to, &self.memory) {
            (_, None) => (Vec::new(), 0),
            (Tier::Disk, Some(memory)) => memory.listed(),
            (Tier::Memory, Some(_)) => self.disk.listed(),
        };
        Moves { to, pages, of_set, at: 0 }
    }

    /// Moves the next pages, as far as they are still elsewhere. After an error all pages are where they were, or there. Result: how many
    /// have moved; `None`: there are no more.
    pub fn move_next(&mut self, moves: &mut Moves, most: usize) -> Result<Option<usize>, SwapError> {
        let left = moves.pages.get(moves.at..).unwrap_or_default();
        // The working set is one piece in its file.
        let most = if moves.to == Tier::Disk && self.disk.is_short_of((left.len() * PAGE_BYTES) as u64) {
            // Each batch becomes a packed set, and many small ones are packed anew.
            most.max(AT_ONCE_PAGES)
        } else {
            most
        };
        let most = if moves.at < moves.of_set { most.min(moves.of_set - moves.at) } else { most };
        let next = &left[..left.len().min(most)];
        let Some(memory) = self.memory.as_mut().filter(|_| !next.is_empty()) else { return Ok(None) };
        let disk = &mut self.disk;
        let is_there = |(id, _): &&(PageId, Class)| match moves.to {
            Tier::Disk => memory.has(*id),
            Tier::Memory => disk.has(*id),
        };
        let wanted: Vec<(PageId, Class)> = next.iter().filter(is_there).copied().collect();
        let of_set = if moves.at < moves.of_set { wanted.len() } else { 0 };
        moved(&wanted, |pages| {
            let (set, rest) = pages.split_at(of_set);
            match moves.to {
                Tier::Disk => memory.fetch(pages).and_then(|_| disk.store(set, rest)).map(drop),
                Tier::Memory => disk.fetch(pages).and_then(|_| memory.add(set, rest)),
            }
        })?;
        let ids: Vec<PageId> = wanted.iter().map(|(id, _)| *id).collect();
        match moves.to {
            Tier::Disk => memory.forget(&ids),
            Tier::Memory => disk.remove(&ids),
        }
        moves.at += next.len();
        Ok(Some(wanted.len()))
    }

    /// Moves all pages to a tier.
    pub fn move_all(&mut self, to: Tier) -> Result<(), SwapError> {
        let mut moves = self.moves(to);
        while self.move_next(&mut moves, MOVED_PAGES)?.is_some() {}
        Ok(())
    }

    fn store_on_disk(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError> {
        let stored = self.disk.store(working_set, rest)?;
        if let Some(memory) = self.occupied() {
            memory.forget(&numbers(working_set, rest));
        }
        Ok(stored)
    }

    fn store_in_memory(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError> {
        let memory = self.memory.as_mut().ok_or(SwapError::NoMemory)?;
        let stored = memory.store(working_set, rest)?;
        if !self.disk.is_empty() {
            self.disk.remove(&numbers(working_set, rest));
        }
        Ok(stored)
    }
}

fn numbers(working_set: &[Page], rest: &[Page]) -> Vec<PageId> {
    working_set.iter().chain(rest).map(|page| page.id).collect()
}

/// Has `move_them` move pages, with room for their content.
fn moved(
    wanted: &[(PageId, Class)],
    move_them: impl FnOnce(&[Page]) -> Result<(), SwapError>,
) -> Result<(), SwapError> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut room = Bounces::new(wanted.len()).take().ok_or(SwapError::NoMemory)?;
    let ids: Vec<PageId> = wanted.iter().map(|(id, _)| *id).collect();
    let pages: Vec<Page> =
        room.pages(&ids).into_iter().zip(wanted).map(|(page, (_, class))| page.with_class(*class)).collect();
    move_them(&pages)
}

impl Home for TieredHome {
    fn store(&mut self, working_set: &[Page], rest: &[Page]) -> Result<Stored, SwapError> {
        if self.goes_to == Tier::Disk || self.memory.is_none() {
            return self.store_on_disk(working_set, rest);
        }
        let is_much = working_set.len() + rest.len() > self.at_once;
        if is_much && let Ok(stored) = self.store_on_disk(working_set, rest) {
            return Ok(Stored { is_to_lift: true, ..stored });
        }
        match self.store_in_memory(working_set, rest) {
            Err(SwapError::Limit { .. }) => {
                let stored = self.store_on_disk(working_set, rest)?;
                Ok(Stored { fell_to_disk: true, ..stored })
            }
            stored => stored,
        }
    }

    fn fetch(&self, pages: &[Page]) -> Result<u64, SwapError> {
        let Some(memory) = self.occupied() else { return self.disk.fetch(pages) };
        let (here, there) = memory.split(pages);
        memory.fetch(&here)?;
        if there.is_empty() { Ok(0) } else { self.disk.fetch(&there) }
    }

    fn fetch_around(&self, pages: &mut Vec<Page>) -> Result<u64, SwapError> {
        let Some(first) = pages.first().map(|page| page.id) else { return Ok(0) };
        match self.occupied() {
            Some(memory) if memory.has(first) => memory.fetch_around(pages),
            Some(memory) => {
                *pages = memory.split(pages).1;
                self.disk.fetch_around(pages)
            }
            None => self.disk.fetch_around(pages),
        }
    }

    fn forget(&self, pages: &[PageId]) {
        // The disk's room is found again at the next store.
        self.occupied().iter().for_each(|memory| memory.forget(pages));
    }

    fn retain(&mut self, kept: &mut dyn FnMut(PageId) -> bool) {
        self.memory.iter_mut().for_each(|memory| memory.retain(kept));
        self.disk.retain(kept);
    }

    fn rest(&self) {
        self.memory.iter().for_each(MemoryHome::rest);
        self.disk.rest();
    }

    fn pages(&self) -> Bits {
        let mut pages = self.disk.pages();
        if let Some(memory) = self.occupied() {
            memory.pages().ids().for_each(|id| pages.set(id));
        }
        pages
    }

    fn stored_bytes(&self) -> u64 {
        self.disk.stored_bytes() + self.memory.as_ref().map_or(0, MemoryHome::stored_bytes)
    }

    fn stats(&self) -> Vec<Stat> {
        let memory = self.memory.as_ref().map_or_else(Vec::new, MemoryHome::stats);
        [self.disk.stats(), memory].concat()
    }

    fn persist(&self, to: &mut dyn Write) -> Result<(), TablesError> {
        if self.occupied().is_some() {
            return Err(TablesError::InMemory);
        }
        self.disk.persist(to)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.disk.descriptors()
    }
}

#[cfg(test)]
#[path = "tiers_tests.rs"]
mod tests;
