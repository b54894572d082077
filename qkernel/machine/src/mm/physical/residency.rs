//! Which user frames have their content in the sandbox's home of pages instead of in memory (Hibernate Container,
//! section 3.4). The frame stays allocated meanwhile, with all its references; so a shared page comes back once, for all.
//!
//! A frame is *resident*, *absent* or *arriving*: its content is elsewhere, and the host is at work on bringing it back
//! ([`crate::mm::arrival`]). Frames become absent while nothing else runs ([`mark`]). A claim makes an absent one arriving, under
//! one lock, so content is fetched once and never comes back over a newer one; its landing makes it resident. Whoever
//! claims a frame has a reference to it until it has landed: a frame that the host still writes to is nobody else's.
//! `mm::arrival_life` goes through all orders.
//!
//! Content may *stay* in absent frames ([`stay`]): while an image of the sandbox is written, so that whoever reaches a page first, by
//! whatever way, has it saved for the image on that occasion. To the kernel it is elsewhere, and comes back like any other.
//!
//! The content of an absent frame may be *shown*: the template has it, and the host has checked that ([`Landed::Shown`]). Private
//! mappings show the template's page then, until they write. The frame stays absent, and may still be claimed by those who need the
//! content in it.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::hostcall as hc;

use super::frames::{self, Frame};
use crate::errno::{Errno, Result};
use crate::platform;
use crate::rank::Rank;
use crate::sched::wait::WaitQueue;
use crate::spin::{Once, SpinLock};

static RESIDENCY: Residency = Residency::new();
/// Frames the kernel reaches by their address alone; they never leave memory.
static PINNED: SpinLock<Vec<Frame>> = SpinLock::new(Rank::WorkingSet, Vec::new());
/// Whether content comes from memory, as the host says at each wake.
static AT_ONCE: AtomicBool = AtomicBool::new(false);
/// Tasks that wait for frames on their way, by the frames' numbers.
static WAITING: [WaitQueue; 16] = [const { WaitQueue::new() }; 16];

/// Where the content of a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::mm) enum Residence {
    Resident,
    Absent,
    Arriving,
}

/// The end of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::mm) enum Landed {
    /// The content has come.
    Came,
    /// The template shows it.
    Shown,
    /// It is absent still.
    Not,
}

struct Residency {
    /// One bit a frame: its content is elsewhere.
    absent: Once<&'static [AtomicU64]>,
    /// One bit a frame: of the absent ones, those that the host is bringing back.
    arriving: Once<&'static [AtomicU64]>,
    /// One bit a frame: its content was stored, and has not been reached since but by entries.
    untouched: Once<&'static [AtomicU64]>,
    /// One bit a frame: of the absent ones, those whose content has stayed in memory.
    staying: Once<&'static [AtomicU64]>,
    /// One bit a frame: of the absent ones, those whose content the template has, as the host has said under this VMM.
    shown: Once<&'static [AtomicU64]>,
    /// Odd: there may be such frames. It grows with each time that content stays, and each end of that.
    stays: AtomicU64,
    /// How many frames are absent whose content has stayed, while any stays.
    stayed: AtomicU64,
    /// Held while frames are claimed, and while they land.
    claims: SpinLock<()>,
    /// How many frames are absent.
    count: AtomicU64,
}

impl Residency {
    const fn new() -> Self {
        Self {
            absent: Once::new(),
            arriving: Once::new(),
            untouched: Once::new(),
            staying: Once::new(),
            shown: Once::new(),
            stays: AtomicU64::new(0),
            stayed: AtomicU64::new(0),
            claims: SpinLock::new(Rank::Claims, ()),
            count: AtomicU64::new(0),
        }
    }

    /// Takes the tables for the bits.
    fn prepare(&self, table: impl Fn(u64) -> Option<&'static [AtomicU64]>) -> Result<()> {
        let places = [&self.arriving, &self.untouched, &self.staying, &self.shown, &self.absent];
        for (number, place) in (0..).zip(places) {
            let bits = table(number).ok_or(Errno::ENOMEM)?;
            place.call_once(|| bits);
        }
        Ok(())
    }

    fn of(&self, index: u32) -> Residence {
        // In this order: what lands is no longer absent before it is no longer on its way.
        if is_set(&self.arriving, index) {
            Residence::Arriving
        } else if is_set(&self.absent, index) {
            Residence::Absent
        } else {
            Residence::Resident
        }
    }

    /// True once for each frame after it was stored.
    fn touch(&self, index: u32) -> bool {
        is_set(&self.untouched, index) && clear(&self.untouched, index)
    }

    /// Makes those frames arriving that are absent and that `holds` gets hold of, and calls `claimed` for them.
    fn claim<R>(
        &self,
        wanted: impl Iterator<Item = u32>,
        holds: impl Fn(u32) -> Option<R>,
        mut claimed: impl FnMut(u32, R),
    ) {
        let _claims = self.claims.lock();
        for index in wanted.filter(|index| self.of(*index) == Residence::Absent) {
            let held = holds(index);
            // It may have been released and allocated anew before it was held.
            if let Some(held) = held.filter(|_| is_set(&self.absent, index)) {
                set(&self.arriving, index);
                claimed(index, held);
            }
        }
    }

    /// Ends claims of frames.
    fn land(&self, landed: impl Iterator<Item = (u32, Landed)>) {
        let _claims = self.claims.lock();
        for (index, landed) in landed {
            // Whether it came or not, what has stayed is here once nobody wants it any more.
            let is_here = landed == Landed::Came || self.number().is_none() && is_set(&self.staying, index);
            if is_here && clear(&self.absent, index) {
                self.count.fetch_sub(1, Ordering::Relaxed);
                self.stays_no_more(index);
            }
            if is_here {
                clear(&self.shown, index);
            } else if landed == Landed::Shown {
                set(&self.shown, index);
            }
            clear(&self.arriving, index);
        }
    }

    /// A frame gets new content: what was stored of it doesn't count any more. True: old content may have come meanwhile.
    fn forget(&self, index: u32) -> bool {
        self.touch(index);
        clear(&self.shown, index);
        if self.of(index) == Residence::Resident {
            return false;
        }
        let mut spoiled = false;
        loop {
            let claims = self.claims.lock();
            if self.of(index) != Residence::Arriving {
                if clear(&self.absent, index) {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                // The host may have said it meanwhile.
                clear(&self.shown, index);
                return spoiled;
            }
            // Claimed by its number just when it was allocated. The host is at work on it for another CPU.
            drop(claims);
            spoiled = true;
            platform::relax();
        }
    }

    /// The content of the frames of `bits`, which are absent, is in memory, as is that of frames which have stayed before and are absent still.
    /// Nothing else runs.
    fn stay(&self, bits: impl Iterator<Item = u64>) {
        let (Some(staying), Some(absent)) = (self.staying.get(), self.absent.get()) else { return };
        let _claims = self.claims.lock();
        let (stayed, mut count) = (self.number().is_some(), 0);
        for ((word, absent), bits) in staying.iter().zip(*absent).zip(bits) {
            let before =
                if stayed { word.load(Ordering::Acquire) & absent.load(Ordering::Acquire) } else { 0 };
            put(word, bits | before);
            count += u64::from((bits | before).count_ones());
        }
        self.stayed.store(count, Ordering::Relaxed);
        self.stays.fetch_add(if stayed { 2 } else { 1 }, Ordering::SeqCst);
    }

    /// By which number content stays in absent frames; `None`: none does.
    fn number(&self) -> Option<u64> {
        Some(self.stays.load(Ordering::SeqCst)).filter(|number| number & 1 != 0)
    }

    /// Whether the content of a frame has stayed and is about to go; true once for each.
    fn leaves(&self, index: u32) -> bool {
        self.number().is_some() && is_set(&self.staying, index) && self.stays_no_more(index)
    }

    /// True once for each frame whose content has stayed.
    fn stays_no_more(&self, index: u32) -> bool {
        let stayed = clear(&self.staying, index);
        if stayed {
            self.stayed.fetch_sub(1, Ordering::Relaxed);
        }
        stayed
    }

    /// How many frames are absent whose content has stayed.
    fn stayed(&self) -> u64 {
        // What is on its way at the end of a stay is counted off behind it.
        self.number().map_or(0, |_| self.stayed.load(Ordering::Relaxed))
    }

    /// Content that has stayed by this number is resident again. Whoever asks whether any stays meanwhile waits for the end of it.
    fn end_stay(&self, number: u64) {
        let (Some(staying), Some(absent), Some(arriving)) =
            (self.staying.get(), self.absent.get(), self.arriving.get())
        else {
            return;
        };
        let _claims = self.claims.lock();
        if self.number() != Some(number) {
            return;
        }
        for ((staying, absent), arriving) in staying.iter().zip(*absent).zip(*arriving) {
            let bits = staying.load(Ordering::Acquire);
            if bits == 0 {
                continue;
            }
            // What is on its way lands by itself.
            let coming = bits & arriving.load(Ordering::Acquire);
            staying.store(coming, Ordering::Release);
            let were = absent.fetch_and(!(bits & !coming), Ordering::AcqRel) & bits & !coming;
            self.count.fetch_sub(u64::from(were.count_ones()), Ordering::Relaxed);
        }
        self.stays.store(number + 1, Ordering::SeqCst);
    }

    /// Nothing has stayed or is shown: the memory is a copy, without it.
    fn begin_elsewhere(&self) {
        self.shown.get().into_iter().flat_map(|words| words.iter()).for_each(|word| put(word, 0));
        if let (Some(number), Some(staying)) = (self.number(), self.staying.get()) {
            staying.iter().for_each(|word| put(word, 0));
            self.stays.store(number + 1, Ordering::SeqCst);
        }
    }

    /// The absent frames are those of `bits`, and no others. Nothing else runs. `bits` is at least as long as ever before.
    fn replace(&self, bits: impl Iterator<Item = u64>) {
        let (Some(absent), Some(untouched)) = (self.absent.get(), self.untouched.get()) else { return };
        let Some(shown) = self.shown.get() else { return };
        let words = absent.iter().zip(untouched.iter()).zip(shown.iter());
        let mut count = 0;
        for (((absent, untouched), shown), bits) in words.zip(bits) {
            // Of what is absent from now on, that which was in memory before is not what the template has, whatever was said of the frame.
            put(shown, shown.load(Ordering::Relaxed) & absent.load(Ordering::Relaxed) & bits);
            [untouched, absent].into_iter().for_each(|word| put(word, bits));
            count += u64::from(bits.count_ones());
        }
        self.count.store(count, Ordering::Relaxed);
    }
}

/// Gives a word of a table other bits. Most are 0 and stay so; written they would take up memory.
fn put(word: &AtomicU64, bits: u64) {
    if word.load(Ordering::Relaxed) != bits {
        word.store(bits, Ordering::Release);
    }
}

fn word_of(bits: &Once<&'static [AtomicU64]>, index: u32) -> Option<&'static AtomicU64> {
    bits.get()?.get(index as usize / 64)
}

fn is_set(bits: &Once<&'static [AtomicU64]>, index: u32) -> bool {
    word_of(bits, index).is_some_and(|word| word.load(Ordering::Acquire) & bit(index) != 0)
}

fn set(bits: &Once<&'static [AtomicU64]>, index: u32) {
    if let Some(word) = word_of(bits, index) {
        word.fetch_or(bit(index), Ordering::AcqRel);
    }
}

/// Whether it was set before.
fn clear(bits: &Once<&'static [AtomicU64]>, index: u32) -> bool {
    let word = word_of(bits, index);
    word.is_some_and(|word| word.fetch_and(!bit(index), Ordering::AcqRel) & bit(index) != 0)
}

const fn bit(index: u32) -> u64 {
    1 << (index % 64)
}

fn queue_of(index: u32) -> &'static WaitQueue {
    &WAITING[index as usize % WAITING.len()]
}

/// How many frames have their content elsewhere than in memory.
pub fn swapped() -> u64 {
    RESIDENCY.count.load(Ordering::Relaxed).saturating_sub(RESIDENCY.stayed())
}

/// Whether the frame's content is elsewhere, or on its way.
pub fn is_swapped(frame: Frame) -> bool {
    residence(frame) != Residence::Resident
}

/// Whether the frame's content is elsewhere, and the template shows it.
pub(in crate::mm) fn is_shown(frame: Frame) -> bool {
    frames::index(frame)
        .is_some_and(|index| is_set(&RESIDENCY.shown, index) && is_set(&RESIDENCY.absent, index))
}

/// The template does not show the frame's content any more: its file is not what it was.
pub(in crate::mm) fn hide(frame: Frame) {
    frames::index(frame).iter().for_each(|index| {
        clear(&RESIDENCY.shown, *index);
    });
}

/// Where the frame's content is.
pub(in crate::mm) fn residence(frame: Frame) -> Residence {
    if RESIDENCY.absent.get().is_none() {
        return Residence::Resident;
    }
    frames::index(frame).map_or(Residence::Resident, |index| RESIDENCY.of(index))
}

/// Claims those of `wanted` that are absent and that `holds` gets hold of.
pub(in crate::mm) fn claim<R>(
    wanted: impl Iterator<Item = u32>,
    holds: impl Fn(u32) -> Option<R>,
    claimed: impl FnMut(u32, R),
) {
    RESIDENCY.claim(wanted, holds, claimed);
}

/// Ends claims of frames. [`wake`] tells those who wait.
pub(in crate::mm) fn land(landed: impl Iterator<Item = (u32, Landed)>) {
    RESIDENCY.land(landed);
}

/// Wakes the tasks that wait for frames that have landed.
pub(in crate::mm) fn wake(landed: impl Iterator<Item = u32>) {
    let queues = landed.fold(0_u64, |queues, index| queues | 1 << (index as usize % WAITING.len()));
    let woken = WAITING.iter().enumerate().filter(|(at, _)| queues & 1 << at != 0);
    woken.for_each(|(_, queue)| queue.wake_all());
}

/// Sleeps until the frame is not on its way.
pub(in crate::mm) fn wait_for(frame: Frame) {
    let Some(index) = frames::index(frame) else { return };
    queue_of(index).wait_uninterruptible(|| RESIDENCY.of(index) != Residence::Arriving);
}

/// The number of a frame that is reached for the first time since its content was stored.
pub(in crate::mm) fn first_touch(frame: Frame) -> Option<u32> {
    frames::index(frame).filter(|index| RESIDENCY.touch(*index))
}

/// The allocator gives the frame to somebody new. True: old content may have come into it.
#[must_use]
pub(in crate::mm) fn forget(frame: Frame) -> bool {
    if RESIDENCY.absent.get().is_none() {
        return false;
    }
    frames::index(frame).is_some_and(|index| {
        if RESIDENCY.leaves(index) {
            // An error only says that nobody wants it.
            let _ = platform::call(hc::KEEP, [u64::from(index), 1, 0, 0, 0, 0]);
        }
        RESIDENCY.forget(index)
    })
}

/// The content of the frames in `bits`, which have just been [marked](mark), has stayed in memory.
pub fn stay(bits: impl Iterator<Item = u64>) {
    RESIDENCY.stay(bits);
}

/// Whether content that has stayed in memory is still wanted for an image. If not, what has stayed is resident again, unless the host knows
/// it by an image as long as it is not reached.
pub fn is_staying() -> bool {
    let Some(number) = RESIDENCY.number() else { return false };
    let wanted = platform::call(hc::KEEP, [0; 6]).unwrap_or(0);
    if wanted != hc::KEEP_IMAGE && wanted != hc::KEEP_KNOWN {
        RESIDENCY.end_stay(number);
    }
    wanted == hc::KEEP_IMAGE
}

/// Ends a stay: content in memory is resident again, though the host knows it by an image.
pub fn end_stay() {
    if let Some(number) = RESIDENCY.number() {
        RESIDENCY.end_stay(number);
    }
}

/// Another VMM has taken over. No content has stayed in its memory, and it may have another template, or none.
pub(crate) fn revive() {
    RESIDENCY.begin_elsewhere();
}

/// Says whether content comes from memory: whoever waits for it does so on its CPU.
pub fn comes_at_once(at_once: bool) {
    AT_ONCE.store(at_once, Ordering::Relaxed);
}

/// Whether content is there before another task could run.
pub(in crate::mm) fn is_at_once() -> bool {
    AT_ONCE.load(Ordering::Relaxed)
}

/// Makes room for the bits; before the first [`mark`].
pub fn prepare() -> Result<()> {
    RESIDENCY.prepare(frames::bit_table)
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
#[path = "residency_tests.rs"]
mod tests;
