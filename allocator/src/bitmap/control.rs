//! The control page of a 4 MiB block (Hibernate Container, section 3.3, figure 4).

use core::ptr::NonNull;

use crate::sync::{AtomicU16, UnsafeCell};

/// Bytes in a frame.
pub const FRAME_BYTES: u64 = 4096;

/// Frames in a block, the first of which is never handed out.
#[cfg(not(loom))]
pub const BLOCK_FRAMES: usize = 1024;
/// Frames in a block; few, so that the model checker gets through.
#[cfg(loom)]
pub const BLOCK_FRAMES: usize = 4;

/// Bytes in a block.
pub const BLOCK_BYTES: u64 = BLOCK_FRAMES as u64 * FRAME_BYTES;

/// Frames of a block that can be handed out: all but the first.
pub const USABLE_FRAMES: usize = BLOCK_FRAMES - 1;

/// Words in a level-2 bitmap.
pub(super) const WORDS: usize = BLOCK_FRAMES.div_ceil(64);

/// Bits of word 0 that stand for no usable frame: the control page, and whatever a small block lacks.
const RESERVED: u64 = if BLOCK_FRAMES >= 64 { 1 } else { !0 << BLOCK_FRAMES | 1 };

/// One bit a frame of a block.
pub(super) type Bits = [u64; WORDS];

/// The bookkeeping of one block, exactly one 4 KiB page. All zeros is a valid value: a block that was never
/// used.
#[repr(C, align(4096))]
pub struct ControlPage {
    /// Reached only under the allocator's lock.
    pub(super) maps: UnsafeCell<Maps>,
    /// References to each frame; zero while it is free. Changed without a lock.
    pub(super) refs: [AtomicU16; BLOCK_FRAMES],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<ControlPage>() == 4096);

// SAFETY: `refs` is atomic; `maps` is reached only under the lock of the allocator that owns the page.
unsafe impl Sync for ControlPage {}

impl ControlPage {
    /// Makes the page of an unused block. Zero-filled memory is the same.
    pub fn new() -> Self {
        Self { maps: UnsafeCell::new(Maps::new()), refs: core::array::from_fn(|_| AtomicU16::new(0)) }
    }
}

impl Default for ControlPage {
    fn default() -> Self {
        Self::new()
    }
}

/// Finds the control page of a block.
///
/// [`super::BitmapAllocator::new`] states the rules for the pages, since its caller promises to keep them.
pub trait ControlPages {
    /// The control page of block `block`, always the same for the same block.
    fn page(&self, block: usize) -> NonNull<ControlPage>;
}

impl<F: Fn(usize) -> NonNull<ControlPage>> ControlPages for F {
    fn page(&self, block: usize) -> NonNull<ControlPage> {
        self(block)
    }
}

/// Control pages at a fixed distance from one another: in the blocks themselves, or packed in kernel memory.
#[derive(Clone, Copy, Debug)]
pub struct StridedControl {
    first: NonNull<ControlPage>,
    stride_bytes: usize,
}

// SAFETY: it is an address and a number; what it points at is shared under the rules of
// `BitmapAllocator::new`.
unsafe impl Send for StridedControl {}
// SAFETY: as for `Send`.
unsafe impl Sync for StridedControl {}

impl StridedControl {
    /// Control pages that open each block; `linear` is where the kernel sees the first block (kvm).
    pub const fn in_blocks(linear: NonNull<u8>) -> Self {
        Self { first: linear.cast(), stride_bytes: BLOCK_FRAMES * size_of::<ControlPage>() }
    }

    /// Control pages side by side, 4 KiB each, in memory of their own; `table` is the first (systrap).
    pub const fn in_table(table: NonNull<u8>) -> Self {
        Self { first: table.cast(), stride_bytes: size_of::<ControlPage>() }
    }
}

impl ControlPages for StridedControl {
    fn page(&self, block: usize) -> NonNull<ControlPage> {
        let page = self.first.as_ptr().wrapping_byte_add(block.wrapping_mul(self.stride_bytes));
        NonNull::new(page).unwrap_or(self.first)
    }
}

/// The part of a control page that the allocator's lock guards. A zero bit is a free, or a clean, frame.
#[repr(C)]
pub(super) struct Maps {
    /// The next block of the list this one is on, plus one; zero at the end.
    pub(super) next: u32,
    /// The block before, plus one; zero at the head.
    pub(super) prev: u32,
    /// Frames taken, 0 to [`USABLE_FRAMES`].
    pub(super) taken: usize,
    /// Level 1: bit `w` is set when word `w` of `used` is full.
    full: u64,
    /// Level 2: frames taken.
    used: Bits,
    /// Frames whose backing may hold something else than zeros. Says nothing of a taken frame.
    dirty: Bits,
}

impl Maps {
    const fn new() -> Self {
        Self { next: 0, prev: 0, taken: 0, full: 0, used: [0; WORDS], dirty: [0; WORDS] }
    }

    /// Takes the block into use: from now on the first frame counts as taken.
    pub(super) fn open(&mut self) {
        self.used[0] |= RESERVED;
    }

    /// Returns the page of an empty, clean block to the state before [`Maps::open`].
    pub(super) fn close(&mut self) {
        debug_assert!(self.taken == 0 && self.dirty == [0; WORDS]);
        *self = Self::new();
    }

    pub(super) fn is_free(&self, index: usize) -> bool {
        self.used[index / 64] & (1 << (index % 64)) == 0
    }

    pub(super) fn is_all_clean(&self) -> bool {
        self.dirty == [0; WORDS]
    }

    /// The free frames that may hold something else than zeros.
    pub(super) fn dirty_free(&self) -> Bits {
        core::array::from_fn(|w| self.dirty[w] & !self.used[w])
    }

    /// Marks the free frames `mask` of word `word` as taken; returns how many of them are dirty.
    pub(super) fn take(&mut self, word: usize, mask: u64) -> usize {
        debug_assert!(self.used[word] & mask == 0);
        self.used[word] |= mask;
        if self.used[word] == !0 {
            self.full |= 1 << word;
        }
        self.taken += mask.count_ones() as usize;
        (self.dirty[word] & mask).count_ones() as usize
    }

    /// Marks the taken frames `mask` of word `word` as free; those in `clean` hold zeros, the others
    /// anything.
    pub(super) fn give(&mut self, word: usize, mask: u64, clean: u64) {
        debug_assert!(self.used[word] & mask == mask);
        self.used[word] &= !mask;
        self.full &= !(1 << word);
        self.taken -= mask.count_ones() as usize;
        self.dirty[word] = (self.dirty[word] & !mask) | (mask & !clean);
    }

    /// Marks the free frames among `mask` of word `word` as clean; returns how many were not.
    pub(super) fn clean(&mut self, word: usize, mask: u64) -> usize {
        let washed = self.dirty[word] & !self.used[word] & mask;
        self.dirty[word] &= !washed;
        washed.count_ones() as usize
    }

    /// The first free frame: one word of level 1, one of level 2.
    pub(super) fn first_free(&self) -> Option<usize> {
        let word = self.full.trailing_ones() as usize;
        (word < WORDS).then(|| word * 64 + self.used[word].trailing_ones() as usize)
    }

    /// The first free frame at or after `from`.
    fn next_free(&self, from: usize) -> Option<usize> {
        next_set(|word| !self.used[word], from)
    }

    /// How many frames from the free frame `index` on are free and equally clean, at most `max`.
    pub(super) fn run_at(&self, index: usize, max: usize) -> usize {
        let flip = if self.dirty[index / 64] & (1 << (index % 64)) == 0 { !0 } else { 0 };
        ones_at(|word| !self.used[word] & (self.dirty[word] ^ flip), index, max)
    }

    /// The first run of `max` equally clean free frames, else the longest shorter one: its start and length.
    pub(super) fn best_run(&self, max: usize) -> Option<(usize, usize)> {
        let mut best = None;
        let mut longest = 0;
        let mut from = 0;
        while let Some(start) = self.next_free(from) {
            let count = self.run_at(start, max);
            if count > longest {
                (best, longest) = (Some((start, count)), count);
            }
            if longest >= max {
                break;
            }
            from = start + count;
        }
        best
    }
}

/// The first set bit at or after `from` in a map, of which `word` gives the words.
pub(super) fn next_set(word: impl Fn(usize) -> u64, from: usize) -> Option<usize> {
    let first = from / 64;
    let masked = |at: usize| word(at) & if at == first { !0 << (from % 64) } else { !0 };
    let at = (first..WORDS).find(|&at| masked(at) != 0)?;
    Some(at * 64 + masked(at).trailing_zeros() as usize)
}

/// How many bits from `from` on are set without a gap, at most `max`; `word` gives the words of the map.
pub(super) fn ones_at(word: impl Fn(usize) -> u64, from: usize, max: usize) -> usize {
    let mut count = 0;
    while count < max && (from + count) / 64 < WORDS {
        let at = from + count;
        let here = (word(at / 64) >> (at % 64)).trailing_ones() as usize;
        count += here;
        if here < 64 - at % 64 {
            break;
        }
    }
    count.min(max)
}

/// The words, and the bits in each, that frames `start..start + count` of a block occupy.
pub(super) fn word_masks(start: usize, count: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = (start + count).min(WORDS * 64);
    (start / 64..end.div_ceil(64)).map(move |word| {
        let low = start.max(word * 64) - word * 64;
        let high = end.min(word * 64 + 64) - word * 64;
        (word, (!0u64 >> (64 - (high - low))) << low)
    })
}
