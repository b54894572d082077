//! The part that runs under the global lock: block lists, and taking and giving frames.

use super::control::{BLOCK_FRAMES, Bits, ControlPages, Maps, USABLE_FRAMES, WORDS, word_masks};
use crate::sync::Ordering;

/// Blocks with free frames that are looked at for a long run before a shorter one is taken.
const RUN_PROBE_BLOCKS: usize = 4;

/// The lists a block can be on. A block without a free frame is on none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    /// The paper's free list: some frames are taken, some are free.
    Partial,
    /// Returned blocks: all frames are free.
    Empty,
    /// Those of them that hold none of the host's memory: to be used last.
    Clean,
}

impl List {
    fn of(maps: &Maps) -> Option<Self> {
        match maps.taken {
            0 if maps.is_all_clean() => Some(Self::Clean),
            0 => Some(Self::Empty),
            USABLE_FRAMES => None,
            _ => Some(Self::Partial),
        }
    }
}

/// Where a block stands, before and after a change.
type Standing = (usize, Option<List>);

fn standing(maps: &Maps) -> Standing {
    (maps.taken, List::of(maps))
}

/// The state that the lock guards, apart from the maps in the control pages.
pub(super) struct State {
    /// Head of each list: a block plus one, or zero.
    heads: [u32; 3],
    /// Blocks `0..opened` have been used.
    pub(super) opened: usize,
    pub(super) limit: usize,
    pub(super) in_use: usize,
    pub(super) peak: usize,
    pub(super) dirty_free: usize,
    /// The fewest there were of them since somebody asked.
    pub(super) dirty_low: usize,
    /// Frames that were clean when they were allocated, so far.
    pub(super) clean_taken: u64,
    /// Frames that are neither free nor allocated while their memory goes back.
    pub(super) set_aside: usize,
    pub(super) blocks_in_use: usize,
}

impl State {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            heads: [0; 3],
            opened: 0,
            limit,
            in_use: 0,
            peak: 0,
            dirty_free: 0,
            dirty_low: 0,
            clean_taken: 0,
            set_aside: 0,
            blocks_in_use: 0,
        }
    }
}

/// The allocator's state while the lock is held.
pub(super) struct Locked<'a, C> {
    pub(super) control: &'a C,
    pub(super) state: &'a mut State,
    pub(super) blocks: usize,
}

impl<C: ControlPages> Locked<'_, C> {
    /// Frames that may still be allocated under the limit.
    pub(super) fn room(&self) -> usize {
        self.state.limit.saturating_sub(self.state.in_use)
    }

    /// Runs `f` on the maps of a block.
    pub(super) fn with<R>(&mut self, block: usize, f: impl FnOnce(&mut Maps) -> R) -> R {
        debug_assert!(block < self.blocks);
        let page = self.control.page(block).as_ptr();
        // SAFETY: the page is valid and shared, by the contract of `new`, and only the maps' cell is used.
        let maps = unsafe { &(*page).maps };
        // SAFETY: the lock is held, and `&mut self` lets no second `with` in, so this is the only reference.
        maps.with_mut(|maps| f(unsafe { &mut *maps }))
    }

    pub(super) fn is_free(&mut self, block: usize, index: usize) -> bool {
        block < self.state.opened && self.with(block, |maps| maps.is_free(index))
    }

    /// A block with a free frame: one in use, else one that was returned, the host's memory first, else one never used.
    pub(super) fn pick_block(&mut self) -> Option<usize> {
        for list in [List::Partial, List::Empty, List::Clean] {
            if let Some(block) = self.head(list) {
                return Some(block);
            }
        }
        self.open_block()
    }

    /// Where to take a run of up to `max` frames from: block, index and frames.
    pub(super) fn find_run(&mut self, max: usize) -> Option<(usize, usize, usize)> {
        let mut best: Option<(usize, usize, usize)> = None;
        let mut next = self.head(List::Partial);
        for _ in 0..RUN_PROBE_BLOCKS {
            let Some(block) = next else { break };
            let (found, after) = self.with(block, |maps| (maps.best_run(max), maps.next));
            if let Some((index, frames)) = found
                && best.is_none_or(|(_, _, most)| frames > most)
            {
                best = Some((block, index, frames));
            }
            if best.is_some_and(|(_, _, most)| most >= max) {
                return best;
            }
            next = (after as usize).checked_sub(1);
        }
        if best.is_some() {
            return best;
        }
        let block = self.pick_block()?;
        let (index, frames) = self.with(block, |maps| maps.best_run(max))?;
        Some((block, index, frames))
    }

    /// Allocates free frames, one reference each; returns how many of them are dirty.
    pub(super) fn take(&mut self, block: usize, start: usize, frames: usize) -> usize {
        let dirty = self.claim(block, word_masks(start, frames));
        self.state.clean_taken += (frames - dirty) as u64;
        self.state.in_use += frames;
        self.state.peak = self.state.peak.max(self.state.in_use);
        // SAFETY: as in `with`; only the atomic part of the page is used.
        let refs = unsafe { &(*self.control.page(block).as_ptr()).refs };
        for count in &refs[start..(start + frames).min(BLOCK_FRAMES)] {
            count.store(1, Ordering::Relaxed);
        }
        dirty
    }

    /// Frees an allocated frame whose count is zero. It counts as dirty.
    pub(super) fn free(&mut self, block: usize, index: usize) {
        self.unclaim(block, word_masks(index, 1).map(|(word, mask)| (word, mask, 0)));
        self.state.in_use -= 1;
    }

    /// Makes free frames unavailable, without allocating them; returns how many of them are dirty.
    pub(super) fn claim(&mut self, block: usize, masks: impl Iterator<Item = (usize, u64)>) -> usize {
        let (before, after, dirty) = self.with(block, |maps| {
            let before = standing(maps);
            let dirty: usize = masks.map(|(word, mask)| maps.take(word, mask)).sum();
            (before, standing(maps), dirty)
        });
        self.state.dirty_free -= dirty;
        self.state.dirty_low = self.state.dirty_low.min(self.state.dirty_free);
        self.relist(block, before, after);
        dirty
    }

    /// Makes frames available again: word, frames in it, and which of these hold zeros.
    pub(super) fn unclaim(&mut self, block: usize, masks: impl Iterator<Item = (usize, u64, u64)>) {
        let (before, after, dirty) = self.with(block, |maps| {
            let before = standing(maps);
            let dirty = masks
                .map(|(word, mask, clean)| {
                    maps.give(word, mask, clean);
                    (mask & !clean).count_ones() as usize
                })
                .sum::<usize>();
            (before, standing(maps), dirty)
        });
        self.state.dirty_free += dirty;
        self.relist(block, before, after);
    }

    /// Marks the free ones among some frames of a block as clean.
    pub(super) fn mark_clean(&mut self, block: usize, start: usize, frames: usize) {
        let masks = word_masks(start, frames);
        let (before, after, washed) = self.with(block, |maps| {
            let before = standing(maps);
            let washed = masks.map(|(word, mask)| maps.clean(word, mask)).sum::<usize>();
            (before, standing(maps), washed)
        });
        self.state.dirty_free -= washed;
        self.state.dirty_low = self.state.dirty_low.min(self.state.dirty_free);
        self.relist(block, before, after);
    }

    /// The free frames of an opened block that may hold something else than zeros.
    pub(super) fn dirty_free(&mut self, block: usize) -> Bits {
        if block < self.state.opened { self.with(block, |maps| maps.dirty_free()) } else { [0; WORDS] }
    }

    /// Closes the last opened block if it is empty and clean; its control page is all zeros then.
    pub(super) fn close_top_block(&mut self) -> Option<usize> {
        let block = self.state.opened.checked_sub(1)?;
        if !self.with(block, |maps| maps.taken == 0 && maps.is_all_clean()) {
            return None;
        }
        self.unlink(block, List::Clean);
        self.with(block, Maps::close);
        self.state.opened = block;
        Some(block)
    }

    fn open_block(&mut self) -> Option<usize> {
        let block = self.state.opened;
        if block >= self.blocks {
            return None;
        }
        self.with(block, Maps::open);
        self.state.opened += 1;
        self.link(block, List::Clean);
        Some(block)
    }

    /// Moves a block that has changed to the list where it belongs.
    fn relist(&mut self, block: usize, (before, old): Standing, (after, new): Standing) {
        match (before, after) {
            (0, 1..) => self.state.blocks_in_use += 1,
            (1.., 0) => self.state.blocks_in_use -= 1,
            _ => {}
        }
        if old == new {
            return;
        }
        if let Some(list) = old {
            self.unlink(block, list);
        }
        if let Some(list) = new {
            self.link(block, list);
        }
    }

    fn head(&self, list: List) -> Option<usize> {
        (self.state.heads[list as usize] as usize).checked_sub(1)
    }

    /// Puts a block at the head of a list.
    fn link(&mut self, block: usize, list: List) {
        let next = self.state.heads[list as usize];
        #[expect(clippy::cast_possible_truncation, reason = "memory is far from u32::MAX blocks of 4 MiB")]
        let me = block as u32 + 1;
        self.with(block, |maps| (maps.next, maps.prev) = (next, 0));
        if let Some(next) = (next as usize).checked_sub(1) {
            self.with(next, |maps| maps.prev = me);
        }
        self.state.heads[list as usize] = me;
    }

    fn unlink(&mut self, block: usize, list: List) {
        let (prev, next) = self.with(block, |maps| (maps.prev, maps.next));
        match (prev as usize).checked_sub(1) {
            Some(prev) => self.with(prev, |maps| maps.next = next),
            None => self.state.heads[list as usize] = next,
        }
        if let Some(next) = (next as usize).checked_sub(1) {
            self.with(next, |maps| maps.prev = prev);
        }
    }
}
