//! Giving free frames back to the host (Hibernate Container, section 3.3, last paragraph).

use super::blocks::Locked;
use super::control::{BLOCK_FRAMES, Bits, ControlPages, FRAME_BYTES, WORDS, next_set, ones_at, word_masks};
use super::{BitmapAllocator, RefError};
use crate::lock::RawLock;

impl<C: ControlPages, L: RawLock> BitmapAllocator<C, L> {
    /// Gives all free frames that may hold host memory to `release`, range by range: physical address and
    /// length, both in bytes. Where `release` returns true the range must now read as zeros and counts as
    /// clean.
    ///
    /// The lock is not held during `release`: the frames of the block at hand are set aside meanwhile, so
    /// nobody can allocate what is being released, and an allocation that finds nothing else fails. Returns
    /// the bytes released.
    pub fn reclaim(&self, mut release: impl FnMut(u64, u64) -> bool) -> u64 {
        let mut released = 0;
        for block in 0..self.blocks {
            let Some(dirty) = self.locked(|l| {
                if block >= l.state.opened {
                    return None;
                }
                let dirty = l.dirty_free(block);
                l.set_aside(block, &dirty);
                Some(dirty)
            }) else {
                break;
            };
            released += self.release_aside(block, &dirty, &mut release);
        }
        released
    }

    /// One step of [`BitmapAllocator::reclaim`], for while others run: releases up to `most` frames of the highest block
    /// below `below` that has a run of at least `least` such frames, and shorter runs stay. Returns the block, below which
    /// the next step goes on, and the frames released; `None`: there is no such block. A step that looked at many blocks in
    /// vain returns the last one.
    pub fn reclaim_step(
        &self,
        below: usize,
        least: usize,
        most: usize,
        mut release: impl FnMut(u64, u64) -> bool,
    ) -> Option<(usize, usize)> {
        let (block, chosen) = self.locked(|l| {
            let top = below.min(l.state.opened);
            let mut last = top.checked_sub(1)?;
            for block in (top.saturating_sub(STEP_BLOCKS)..top).rev() {
                last = block;
                let chosen = choose(&l.dirty_free(block), least, most);
                if chosen != [0; WORDS] {
                    l.set_aside(block, &chosen);
                    return Some((block, chosen));
                }
            }
            Some((last, [0; WORDS]))
        })?;
        let bytes = self.release_aside(block, &chosen, &mut release);
        Some((block, (bytes / FRAME_BYTES) as usize))
    }

    /// Releases frames of a block that are set aside, without the lock, and makes them free again; the bytes released.
    fn release_aside(&self, block: usize, aside: &Bits, release: &mut impl FnMut(u64, u64) -> bool) -> u64 {
        if *aside == [0; WORDS] {
            return 0;
        }
        let mut released = 0;
        let mut clean = [0; WORDS];
        for (start, frames) in runs(aside) {
            let len = frames as u64 * FRAME_BYTES;
            if release(self.frame(block, start).addr(), len) {
                released += len;
                word_masks(start, frames).for_each(|(word, mask)| clean[word] |= mask);
            }
        }
        self.locked(|l| l.bring_back(block, aside, &clean));
        released
    }

    /// Shows all free frames that may hold host memory, range by range: physical address and length, both in
    /// bytes.
    ///
    /// The lock is held throughout, so `f` must not call the allocator. A range that was shown may be allocated right
    /// after; to release memory while others run use [`BitmapAllocator::reclaim`].
    pub fn for_each_free_range(&self, mut f: impl FnMut(u64, u64)) {
        self.locked(|l| {
            for block in 0..l.state.opened {
                for (start, frames) in runs(&l.dirty_free(block)) {
                    f(self.frame(block, start).addr(), frames as u64 * FRAME_BYTES);
                }
            }
        });
    }

    /// Says that the free frames of `addr..addr + len` (bytes, whole frames) hold zeros now. Allocated frames
    /// in the range are passed over. The caller has seen to it that none was allocated since the range was
    /// released.
    pub fn mark_clean(&self, addr: u64, len: u64) -> Result<(), RefError> {
        let range = self.range();
        let end = addr.checked_add(len).filter(|&end| end <= range.end).ok_or(RefError::OutOfRange)?;
        if addr < range.start || !(addr | len).is_multiple_of(FRAME_BYTES) {
            return Err(RefError::OutOfRange);
        }
        self.locked(|l| {
            let first = ((addr - range.start) / FRAME_BYTES) as usize;
            let last = ((end - range.start) / FRAME_BYTES) as usize;
            let mut at = first;
            while at < last && at / BLOCK_FRAMES < l.state.opened {
                let (block, index) = (at / BLOCK_FRAMES, at % BLOCK_FRAMES);
                let frames = (last - at).min(BLOCK_FRAMES - index);
                l.mark_clean(block, index, frames);
                at += frames;
            }
        });
        Ok(())
    }

    /// Forgets the blocks at the top of those ever used that are empty and clean, and tells `closed` each of their
    /// numbers: their control pages are all zeros now and may be released too. Call it after
    /// [`BitmapAllocator::reclaim`]. The lock is held throughout, so `closed` must not call the allocator.
    pub fn close_top_blocks(&self, mut closed: impl FnMut(usize)) {
        self.locked(|l| {
            while let Some(block) = l.close_top_block() {
                closed(block);
            }
        });
    }
}

impl<C: ControlPages> Locked<'_, C> {
    fn set_aside(&mut self, block: usize, frames: &Bits) {
        if *frames != [0; WORDS] {
            self.claim(block, words(frames));
            self.state.set_aside += count(frames);
        }
    }

    fn bring_back(&mut self, block: usize, frames: &Bits, clean: &Bits) {
        self.unclaim(block, words(frames).map(|(word, mask)| (word, mask, clean[word])));
        self.state.set_aside -= count(frames);
    }
}

/// Blocks that one step looks at.
const STEP_BLOCKS: usize = 64;

/// The runs of at least `least` set bits in a map, `most` bits of them at most.
fn choose(bits: &Bits, least: usize, most: usize) -> Bits {
    let mut chosen = [0; WORDS];
    let mut left = most;
    for (start, frames) in runs(bits).filter(|&(_, frames)| frames >= least) {
        let take = frames.min(left);
        if take > 0 {
            word_masks(start, take).for_each(|(word, mask)| chosen[word] |= mask);
        }
        left -= take;
    }
    chosen
}

fn count(bits: &Bits) -> usize {
    bits.iter().map(|word| word.count_ones() as usize).sum()
}

/// The words of a map that are not zero.
fn words(bits: &Bits) -> impl Iterator<Item = (usize, u64)> + use<> {
    (*bits).into_iter().enumerate().filter(|&(_, mask)| mask != 0)
}

/// The runs of set bits in a map: start and length.
fn runs(bits: &Bits) -> impl Iterator<Item = (usize, usize)> {
    let mut from = 0;
    core::iter::from_fn(move || {
        let start = next_set(|word| bits[word], from)?;
        let frames = ones_at(|word| bits[word], start, BLOCK_FRAMES);
        from = start + frames;
        Some((start, frames))
    })
}
