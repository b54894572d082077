//! The page allocator for user memory (Hibernate Container, section 3.3).
//!
//! User memory is one physical range, cut into blocks of 4 MiB. Each block has a control page with a
//! two-level bitmap of its frames and a 16-bit reference count for each; the block's own first frame is never
//! handed out, whether the control page lies in it (kvm) or in kernel memory (systrap), so that both
//! platforms lay memory out alike. Nothing is ever stored in a free frame: hibernation gives all of them back
//! to the host.
//!
//! References are counted without a lock; frames are handed out and taken back under one global lock. A
//! control page is first touched when its block is first used.

mod blocks;
mod control;
#[cfg(all(test, loom))]
mod loom_tests;
mod reclaim;
#[cfg(all(test, not(loom)))]
mod tests;

use core::fmt;
use core::ops::Range;

pub use control::{
    BLOCK_BYTES, BLOCK_FRAMES, ControlPage, ControlPages, FRAME_BYTES, StridedControl, USABLE_FRAMES,
};

use self::blocks::{Locked, State};
use crate::lock::{Lock, RawLock, SpinLock};
use crate::sync::{AtomicU16, AtomicUsize, Ordering};

/// The most frames one [`BitmapAllocator::alloc_run`] returns.
pub const MAX_RUN_FRAMES: usize = 512;

/// Frames that [`BitmapAllocator::dec_refs`] gathers before it takes the lock to free them.
const FREE_BATCH_FRAMES: usize = 64;

/// The physical address of a 4 KiB frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Frame(u64);

impl Frame {
    /// The frame at physical address `addr`. An address that no frame starts at is refused where the frame is
    /// used.
    pub const fn new(addr: u64) -> Self {
        Self(addr)
    }

    /// The frame that contains physical address `addr`.
    pub const fn containing(addr: u64) -> Self {
        Self(addr & !(FRAME_BYTES - 1))
    }

    /// Its physical address, in bytes.
    pub const fn addr(self) -> u64 {
        self.0
    }

    /// The frame `frames` further up.
    pub const fn add(self, frames: usize) -> Self {
        Self(self.0.wrapping_add(frames as u64 * FRAME_BYTES))
    }
}

/// Physically contiguous frames, all equally clean, each with one reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first frame.
    pub start: Frame,
    /// How many, at least 1.
    pub frames: usize,
    /// All of them hold zeros; otherwise each may hold anything.
    pub clean: bool,
}

/// Why a reference could not be added or dropped. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefError {
    /// The count is at its maximum, 65535; copy the frame instead of sharing it.
    Overflow,
    /// The frame is free: freed twice, or never allocated.
    Free,
    /// The address is not that of a frame of user memory.
    OutOfRange,
}

impl fmt::Display for RefError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overflow => "the frame has 65535 references already",
            Self::Free => "the frame is free",
            Self::OutOfRange => "the address is not that of a frame of user memory",
        })
    }
}

impl core::error::Error for RefError {}

/// The outcome of [`BitmapAllocator::dec_refs`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    /// Frames that lost their last reference and are free now.
    pub freed: usize,
    /// Frames that were refused: free already, or out of range. Always a bug of the caller.
    pub refused: usize,
}

/// Sizes of an allocator, all in frames or blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BitmapStats {
    /// Frames allocated.
    pub frames_in_use: usize,
    /// The most frames that were ever allocated at a time.
    pub frames_peak: usize,
    /// The most frames that may be allocated.
    pub limit_frames: usize,
    /// Free frames that may hold host memory: [`BitmapAllocator::reclaim`] can give back these and no others.
    pub dirty_free_frames: usize,
    /// Blocks with at least one allocated frame.
    pub blocks_in_use: usize,
    /// Blocks whose control page was touched.
    pub blocks_opened: usize,
    /// All blocks of user memory.
    pub blocks: usize,
}

/// The allocator of user frames. `C` finds control pages, `L` is the global lock.
pub struct BitmapAllocator<C, L = SpinLock> {
    base: u64,
    blocks: usize,
    control: C,
    state: Lock<L, State>,
    /// Blocks `0..opened` have a valid control page. Written under the lock.
    opened: AtomicUsize,
    /// Frames allocated. Written under the lock.
    in_use: AtomicUsize,
    /// Free frames that may hold host memory, and frames whose memory goes back right now. Written under the lock.
    dirty_free: AtomicUsize,
    set_aside: AtomicUsize,
}

impl<C: ControlPages, L: RawLock> BitmapAllocator<C, L> {
    /// Makes an allocator of the user memory `base..base + len`, both in bytes; a tail of less than a block
    /// is left out. At most `limit_frames` frames are allocated at a time. No memory is touched yet.
    ///
    /// # Safety
    /// - `base` is a multiple of 4 MiB, and `base + len` does not overflow.
    /// - For each block, `control.page(block)` is valid for reads and writes for the allocator's whole life,
    ///   distinct from all others, 4 KiB-aligned and zero-filled, and nothing else ever writes to it. (A
    ///   closed block's page may be released to the host and come back as zeros; see
    ///   [`BitmapAllocator::close_top_blocks`].)
    /// - The frames hold zeros.
    #[cfg(not(loom))]
    pub const unsafe fn new(base: u64, len: u64, limit_frames: usize, control: C, lock: L) -> Self {
        debug_assert!(base.is_multiple_of(BLOCK_BYTES));
        Self {
            base,
            blocks: (len / BLOCK_BYTES) as usize,
            control,
            state: Lock::new(lock, State::new(limit_frames)),
            opened: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
            dirty_free: AtomicUsize::new(0),
            set_aside: AtomicUsize::new(0),
        }
    }

    /// Makes an allocator as the `new` without loom does, but not at compile time: loom's atomics do not allow that.
    ///
    /// # Safety
    /// The caller keeps the promises that the `new` without loom asks for.
    #[cfg(loom)]
    pub unsafe fn new(base: u64, len: u64, limit_frames: usize, control: C, lock: L) -> Self {
        Self {
            base,
            blocks: (len / BLOCK_BYTES) as usize,
            control,
            state: Lock::new(lock, State::new(limit_frames)),
            opened: AtomicUsize::new(0),
            in_use: AtomicUsize::new(0),
            dirty_free: AtomicUsize::new(0),
            set_aside: AtomicUsize::new(0),
        }
    }

    /// Allocates a frame with one reference, and says whether it holds zeros. `None`: the limit is reached,
    /// or memory is full.
    pub fn alloc(&self) -> Option<(Frame, bool)> {
        self.locked(|l| {
            l.room().checked_sub(1)?;
            let block = l.pick_block()?;
            let index = l.with(block, |maps| maps.first_free())?;
            let clean = l.take(block, index, 1) == 0;
            Some((self.frame(block, index), clean))
        })
    }

    /// Allocates up to `max` (1 to [`MAX_RUN_FRAMES`]) physically contiguous, equally clean frames.
    ///
    /// The run starts at `near` if that frame is free; pass the frame that follows the previous run, and
    /// consecutive faults get consecutive frames. The run may be shorter than asked for, never empty. `None`:
    /// as in [`BitmapAllocator::alloc`], or `max` is 0.
    pub fn alloc_run(&self, max: usize, near: Option<Frame>) -> Option<Run> {
        self.locked(|l| {
            let max = max.min(MAX_RUN_FRAMES).min(l.room());
            if max == 0 {
                return None;
            }
            let near = near.and_then(|frame| self.locate(frame).ok());
            let (block, index, frames) = match near.filter(|&(block, index)| l.is_free(block, index)) {
                Some((block, index)) => (block, index, l.with(block, |maps| maps.run_at(index, max))),
                None => l.find_run(max)?,
            };
            let clean = l.take(block, index, frames) == 0;
            Some(Run { start: self.frame(block, index), frames, clean })
        })
    }

    /// Adds a reference and returns how many there are now. Lock-free; a full count is left as it is.
    pub fn inc_ref(&self, frame: Frame) -> Result<u16, RefError> {
        let count = self.count(frame)?;
        let mut now = count.load(Ordering::Relaxed);
        loop {
            let next = match now {
                0 => return Err(RefError::Free),
                _ => now.checked_add(1).ok_or(RefError::Overflow)?,
            };
            match count.compare_exchange_weak(now, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(next),
                Err(seen) => now = seen,
            }
        }
    }

    /// Drops a reference; true if it was the last, and the frame is free now. Takes the lock only then.
    pub fn dec_ref(&self, frame: Frame) -> Result<bool, RefError> {
        self.dec_ref_with(frame, |_| {})
    }

    /// Drops a reference as [`Self::dec_ref`] does; `last` is called with a frame that lost its last reference, right
    /// before it is free, with the lock held.
    pub fn dec_ref_with(&self, frame: Frame, mut last: impl FnMut(Frame)) -> Result<bool, RefError> {
        let is_last = self.drop_ref(frame)?;
        if is_last {
            self.free(&[frame], &mut last);
        }
        Ok(is_last)
    }

    /// Drops a reference to each of `frames`, and takes the lock once for every 64 that are freed.
    pub fn dec_refs(&self, frames: impl IntoIterator<Item = Frame>) -> Dropped {
        self.dec_refs_with(frames, |_| {})
    }

    /// Drops references as [`Self::dec_refs`] does; `last` is called with each frame that lost its last reference,
    /// right before it is free, with the lock held.
    pub fn dec_refs_with(
        &self,
        frames: impl IntoIterator<Item = Frame>,
        mut last: impl FnMut(Frame),
    ) -> Dropped {
        let mut dropped = Dropped::default();
        let mut batch = [Frame(0); FREE_BATCH_FRAMES];
        let mut waiting = 0;
        for frame in frames {
            match self.drop_ref(frame) {
                Ok(true) => {
                    batch[waiting] = frame;
                    waiting += 1;
                    dropped.freed += 1;
                }
                Ok(false) => {}
                Err(_) => dropped.refused += 1,
            }
            if waiting == FREE_BATCH_FRAMES {
                self.free(&batch, &mut last);
                waiting = 0;
            }
        }
        self.free(&batch[..waiting], &mut last);
        dropped
    }

    /// References to a frame, 0 if it is free. Only a caller that holds one of them can rely on the answer: 1
    /// then means that the frame is the caller's alone.
    pub fn ref_count(&self, frame: Frame) -> Result<u16, RefError> {
        match self.count(frame) {
            Ok(count) => Ok(count.load(Ordering::Acquire)),
            Err(RefError::Free) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Frames allocated now. One atomic load.
    pub fn frames_in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Free frames that may hold host memory. One atomic load.
    pub fn dirty_free_frames(&self) -> usize {
        self.dirty_free.load(Ordering::Relaxed)
    }

    /// Frames whose memory goes back right now: an allocation that finds nothing may find them soon. One atomic load.
    pub fn set_aside_frames(&self) -> usize {
        self.set_aside.load(Ordering::Relaxed)
    }

    /// The fewest free frames with host memory there were at a time since this was asked last: so many were not needed
    /// since. And how many frames without were allocated so far.
    pub fn take_watermark(&self) -> (usize, u64) {
        self.locked(|l| {
            let low = core::mem::replace(&mut l.state.dirty_low, l.state.dirty_free);
            (low, l.state.clean_taken)
        })
    }

    /// The most frames that may be allocated at a time.
    pub fn limit_frames(&self) -> usize {
        self.locked(|l| l.state.limit)
    }

    /// Changes the limit. A limit below the number in use takes effect as frames are freed.
    pub fn set_limit_frames(&self, limit_frames: usize) {
        self.locked(|l| l.state.limit = limit_frames);
    }

    /// Sizes, all taken at one moment.
    pub fn stats(&self) -> BitmapStats {
        self.locked(|l| BitmapStats {
            frames_in_use: l.state.in_use,
            frames_peak: l.state.peak,
            limit_frames: l.state.limit,
            dirty_free_frames: l.state.dirty_free,
            blocks_in_use: l.state.blocks_in_use,
            blocks_opened: l.state.opened,
            blocks: self.blocks,
        })
    }

    /// The physical addresses that are managed, in bytes.
    pub fn range(&self) -> Range<u64> {
        self.base..self.base + self.blocks as u64 * BLOCK_BYTES
    }

    /// Runs `f`, which neither takes nor gives back frames, while nobody else does.
    pub fn exclusively<R>(&self, f: impl FnOnce() -> R) -> R {
        self.locked(|_| f())
    }

    /// Runs `f` with the lock held, and publishes the numbers that are read without it.
    fn locked<R>(&self, f: impl FnOnce(&mut Locked<'_, C>) -> R) -> R {
        self.state.with(|state| {
            let mut locked = Locked { control: &self.control, state, blocks: self.blocks };
            let result = f(&mut locked);
            self.opened.store(locked.state.opened, Ordering::Release);
            self.in_use.store(locked.state.in_use, Ordering::Relaxed);
            self.dirty_free.store(locked.state.dirty_free, Ordering::Relaxed);
            self.set_aside.store(locked.state.set_aside, Ordering::Relaxed);
            result
        })
    }

    fn frame(&self, block: usize, index: usize) -> Frame {
        Frame(self.base + block as u64 * BLOCK_BYTES + index as u64 * FRAME_BYTES)
    }

    /// The block of a frame, and its index in it.
    fn locate(&self, frame: Frame) -> Result<(usize, usize), RefError> {
        let offset = frame.0.checked_sub(self.base).ok_or(RefError::OutOfRange)?;
        let block = (offset / BLOCK_BYTES) as usize;
        if block >= self.blocks || !offset.is_multiple_of(FRAME_BYTES) {
            return Err(RefError::OutOfRange);
        }
        Ok((block, (offset % BLOCK_BYTES / FRAME_BYTES) as usize))
    }

    /// The reference count of a frame, found by a mask and an add.
    fn count(&self, frame: Frame) -> Result<&AtomicU16, RefError> {
        let (block, index) = self.locate(frame)?;
        if block >= self.opened.load(Ordering::Acquire) {
            return Err(RefError::Free);
        }
        // SAFETY: `block` is one of the allocator's, so its page is valid and shared, by the contract of
        // `new`; only the atomic part of it is used.
        Ok(unsafe { &(*self.control.page(block).as_ptr()).refs[index] })
    }

    /// Drops a reference without freeing; true if it was the last. The caller must then free the frame.
    fn drop_ref(&self, frame: Frame) -> Result<bool, RefError> {
        let count = self.count(frame)?;
        let mut now = count.load(Ordering::Relaxed);
        loop {
            let next = now.checked_sub(1).ok_or(RefError::Free)?;
            // Release and Acquire: what any holder did to the frame comes before what its next owner does.
            match count.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(next == 0),
                Err(seen) => now = seen,
            }
        }
    }

    /// Returns frames whose count this thread has just brought to zero.
    fn free(&self, frames: &[Frame], last: &mut impl FnMut(Frame)) {
        if frames.is_empty() {
            return;
        }
        self.locked(|l| {
            for frame in frames {
                if let Ok((block, index)) = self.locate(*frame) {
                    last(*frame);
                    l.free(block, index);
                }
            }
        });
    }
}
