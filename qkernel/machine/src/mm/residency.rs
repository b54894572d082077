//! Which user frames have their content in the sandbox's home of pages instead of in memory (Hibernate Container,
//! section 3.4). The frame stays allocated meanwhile, with all its references; so a shared page comes back once, for all.
//!
//! Bits are set while nothing else runs ([`mark`]), and cleared under one lock together with the content's return: an
//! entry that is made present finds its frame's content there, and content never comes back over a newer one.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::hostcall as hc;
use abi::hostcall::SwapIn;

use super::frames::{self, Frame};
use super::touches;
use crate::errno::{Errno, Result};
use crate::heap;
use crate::platform;
use crate::rank::Rank;
use crate::spin::{Once, SpinLock};

/// Most frames one call brings in.
pub const BRING_MAX: usize = 64;

static RESIDENCY: Residency = Residency::new();
/// Frames the kernel reaches by their address alone; they never leave memory.
static PINNED: SpinLock<Vec<Frame>> = SpinLock::new(Rank::WorkingSet, Vec::new());

struct Residency {
    /// One bit a frame: its content is elsewhere.
    absent: Once<Box<[AtomicU64]>>,
    /// One bit a frame: its content was stored, and has not been reached since but by entries.
    untouched: Once<Box<[AtomicU64]>>,
    /// Held while content comes back.
    bringing: SpinLock<()>,
    /// How many frames are absent.
    count: AtomicU64,
}

impl Residency {
    const fn new() -> Self {
        Self {
            absent: Once::new(),
            untouched: Once::new(),
            bringing: SpinLock::new(Rank::Bringing, ()),
            count: AtomicU64::new(0),
        }
    }

    /// Makes room for the bits of `frames` frames.
    fn prepare(&self, frames: usize) -> Result<()> {
        for place in [&self.untouched, &self.absent] {
            if place.get().is_none() {
                let bits = heap::zeroed(frames.div_ceil(64))?;
                place.call_once(|| bits.into_boxed_slice());
            }
        }
        Ok(())
    }

    fn is_absent(&self, index: u32) -> bool {
        is_set(&self.absent, index)
    }

    /// True once for each frame after it was stored.
    fn touch(&self, index: u32) -> bool {
        is_set(&self.untouched, index) && clear(&self.untouched, index)
    }

    /// Has `fetch` bring in the first of `wanted` if it is absent, and those others that it likes of the absent ones: it
    /// says which, by a bit each. How many came.
    fn bring_in(&self, wanted: &[u32], fetch: impl FnOnce(&[u32]) -> Result<u64>) -> Result<usize> {
        if !wanted.first().is_some_and(|index| self.is_absent(*index)) {
            return Ok(0);
        }
        let _bringing = self.bringing.lock();
        let mut absent = [0; BRING_MAX];
        let mut count = 0;
        for index in wanted.iter().copied().filter(|index| self.is_absent(*index)) {
            let Some(slot) = absent.get_mut(count) else { return Err(Errno::EINVAL) };
            *slot = index;
            count += 1;
        }
        // It may have come meanwhile.
        if absent[..count].first() != wanted.first() {
            return Ok(0);
        }
        let came = fetch(&absent[..count])? | 1;
        let came = absent[..count].iter().enumerate().filter(|(at, _)| came >> at & 1 != 0);
        Ok(came.map(|(_, index)| self.is_back(*index)).count())
    }

    /// A frame gets new content: what was stored of it doesn't count any more.
    fn forget(&self, index: u32) {
        self.touch(index);
        if self.is_absent(index) {
            // The task that brings content in has looked at the bits already; afterwards the frame is its new owner's.
            let _bringing = self.bringing.lock();
            self.is_back(index);
        }
    }

    fn is_back(&self, index: u32) {
        if clear(&self.absent, index) {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The same for a list of any length, which is cut down to those that came.
    fn bring_list(&self, list: &mut Vec<u32>, fetch: impl FnOnce(&[u32]) -> Result<()>) -> Result<()> {
        let _bringing = self.bringing.lock();
        list.retain(|index| self.is_absent(*index));
        if !list.is_empty() {
            fetch(list)?;
            list.iter().for_each(|index| self.is_back(*index));
        }
        Ok(())
    }

    /// The absent frames are those of `bits`, and no others. Nothing else runs.
    fn replace(&self, bits: impl Iterator<Item = u64>) {
        let (Some(absent), Some(untouched)) = (self.absent.get(), self.untouched.get()) else { return };
        let words = absent.iter().zip(untouched.iter());
        let mut count = 0;
        for ((absent, untouched), bits) in words.zip(bits.chain(core::iter::repeat(0))) {
            // Most are 0 and stay so; written they would take up memory.
            for word in [untouched, absent] {
                if word.load(Ordering::Relaxed) != bits {
                    word.store(bits, Ordering::Release);
                }
            }
            count += u64::from(bits.count_ones());
        }
        self.count.store(count, Ordering::Relaxed);
    }
}

fn word_of(bits: &Once<Box<[AtomicU64]>>, index: u32) -> Option<&AtomicU64> {
    bits.get()?.get(index as usize / 64)
}

fn is_set(bits: &Once<Box<[AtomicU64]>>, index: u32) -> bool {
    word_of(bits, index).is_some_and(|word| word.load(Ordering::Acquire) & bit(index) != 0)
}

/// Whether it was set before.
fn clear(bits: &Once<Box<[AtomicU64]>>, index: u32) -> bool {
    let word = word_of(bits, index);
    word.is_some_and(|word| word.fetch_and(!bit(index), Ordering::AcqRel) & bit(index) != 0)
}

const fn bit(index: u32) -> u64 {
    1 << (index % 64)
}

/// How many frames have their content elsewhere.
pub fn swapped() -> u64 {
    RESIDENCY.count.load(Ordering::Relaxed)
}

/// Whether the frame's content is elsewhere.
pub fn is_swapped(frame: Frame) -> bool {
    frames::index(frame).is_some_and(|index| RESIDENCY.is_absent(index))
}

/// Brings the frame's content back if it is elsewhere. The caller holds a reference to the frame. There is no error in
/// practice: a page that cannot come back ends the sandbox.
pub fn ensure(frame: Frame) -> Result<()> {
    bring_in(&[frame])?;
    if let Some(index) = frames::index(frame).filter(|index| RESIDENCY.touch(*index)) {
        touches::touched_in_store(index);
    }
    Ok(())
}

/// The same for the first of up to [`BRING_MAX`] frames; those of the others come along that the host finds next to it. None
/// counts as touched.
pub fn bring_in(wanted: &[Frame]) -> Result<()> {
    if RESIDENCY.absent.get().is_none() {
        return Ok(());
    }
    let mut list = [0; BRING_MAX];
    let mut count = 0;
    for index in wanted.iter().take(BRING_MAX).filter_map(|frame| frames::index(*frame)) {
        list[count] = index;
        count += 1;
    }
    RESIDENCY.bring_in(&list[..count], swap_in_around).map(drop)
}

/// The allocator gives the frame to somebody new.
pub fn forget(frame: Frame) {
    if RESIDENCY.absent.get().is_some()
        && let Some(index) = frames::index(frame)
    {
        RESIDENCY.forget(index);
    }
}

/// Brings those of a part of the working set back that are absent, with one call to the host. Each frame is there once.
pub fn bring_set(mut list: Vec<u32>) -> Result<()> {
    RESIDENCY.bring_list(&mut list, |list| swap_in(list.as_ptr(), list.len(), hc::SWAP_IN_SET))
}

/// Says by a bit each which frames came.
fn swap_in_around(list: &[u32]) -> Result<u64> {
    let mut numbers = [hc::NO_FRAME; BRING_MAX];
    let numbers = numbers.get_mut(..list.len()).ok_or(Errno::EINVAL)?;
    numbers.copy_from_slice(list);
    swap_in(numbers.as_mut_ptr(), numbers.len(), hc::SWAP_IN_AROUND)?;
    let came = numbers.iter().enumerate().filter(|(_, number)| **number != hc::NO_FRAME);
    Ok(came.map(|(at, _)| 1 << at).sum())
}

fn swap_in(frames: *const u32, count: usize, how: u64) -> Result<()> {
    let request = SwapIn { frames: platform::phys_of(frames), count: count as u64, how, pad: 0 };
    platform::call(hc::SWAP_IN, [platform::phys_of(&raw const request), 0, 0, 0, 0, 0]).map(drop)
}

/// Makes room for the bits; before the first [`mark`].
pub fn prepare() -> Result<()> {
    RESIDENCY.prepare(frames::total())
}

/// From now on the content of exactly the frames in `bits` is elsewhere. Nothing else runs, and every entry of theirs is
/// marked.
pub fn mark(bits: impl Iterator<Item = u64>) {
    RESIDENCY.replace(bits);
}

/// Keeps a frame in memory for good.
pub fn pin(frame: Frame) {
    PINNED.lock().push(frame);
}

/// The frames that stay in memory.
pub fn pinned() -> Vec<Frame> {
    PINNED.lock().clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent(words: &[u64]) -> Residency {
        let residency = Residency::new();
        residency.prepare(words.len() * 64).unwrap();
        residency.replace(words.iter().copied());
        residency
    }

    #[test]
    fn only_what_is_absent_is_fetched_and_only_once() {
        let residency = absent(&[0b1010, 1]);
        let mut fetched = Vec::new();
        let mut bring = |wanted: &[u32]| {
            residency.bring_in(wanted, |list| {
                fetched.extend_from_slice(list);
                Ok(1)
            })
        };
        assert_eq!(bring(&[0, 1, 64]), Ok(0));
        assert_eq!(bring(&[1, 2, 64]), Ok(1));
        assert_eq!(bring(&[1, 64]), Ok(0));
        assert_eq!(bring(&[3, 500]), Ok(1));
        assert_eq!(fetched, [1, 64, 3]);
        assert!(residency.is_absent(64));
        assert_eq!(residency.bring_in(&[64, 2], |_| Ok(0b11)), Ok(1));
        assert!(!residency.is_absent(64));
    }

    #[test]
    fn a_failed_fetch_leaves_the_frames_absent() {
        let residency = absent(&[2]);
        assert_eq!(residency.bring_in(&[1], |_| Err(Errno::EIO)), Err(Errno::EIO));
        assert!(residency.is_absent(1));
    }

    #[test]
    fn a_frame_that_is_allocated_anew_is_not_fetched() {
        let residency = absent(&[6]);
        residency.forget(1);
        assert_eq!(residency.bring_in(&[1], |_| panic!("fetched")), Ok(0));
        assert!(residency.is_absent(2));
    }

    #[test]
    fn a_touch_is_seen_once() {
        let residency = absent(&[4]);
        assert!(!residency.touch(1) && residency.touch(2) && !residency.touch(2));
        residency.replace([4].into_iter());
        assert!(residency.touch(2));
    }

    #[test]
    fn of_a_list_what_is_absent_comes() {
        let residency = absent(&[0b1110]);
        let mut list = vec![3, 0, 1];
        assert_eq!(residency.bring_list(&mut list, |_| Err(Errno::EIO)), Err(Errno::EIO));
        assert!(residency.is_absent(3));
        let mut list = vec![3, 0, 1];
        residency.bring_list(&mut list, |list| (list == [3, 1]).then_some(()).ok_or(Errno::EINVAL)).unwrap();
        assert!(!residency.is_absent(1) && residency.is_absent(2) && !residency.is_absent(3));
    }

    #[test]
    fn marking_anew_drops_what_was_marked() {
        let residency = absent(&[1, 1]);
        residency.replace([2].into_iter());
        assert!(!residency.is_absent(0) && residency.is_absent(1) && !residency.is_absent(64));
    }
}
