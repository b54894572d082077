//! User frames: the paper's bitmap allocator (Hibernate Container, section 3.3) over the sandbox's user memory.

use abi::PAGE_SIZE;
use abi::boot::BootInfo;
use abi::layout::USER_PHYS;
use abi::word::to_usize;
use allocator::bitmap::{BitmapAllocator, BitmapStats, MAX_RUN_FRAMES, Run, StridedControl};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

pub use allocator::bitmap::Frame;

use super::account::{self, RESERVE_BYTES, SANDBOX};
use super::frame_owners::{self, Tally};
use super::owners;
use super::residency;
use crate::arch;
use crate::errno::{Errno, Result};
use crate::mm::page::PAGE_BYTES;
use crate::owner::{self, Owner};
use crate::platform;
use crate::rank::Rank;
use crate::spin::{Once, SpinLock};

type Frames = BitmapAllocator<StridedControl, SpinLock<()>>;

static FRAMES: Once<Frames> = Once::new();
/// The first byte of the tables with a bit for each frame.
static BITS_PHYS: Once<u64> = Once::new();
/// log2 of the bytes of a block.
const BLOCK_SHIFT: u32 = 22;
/// Tables with a bit for each frame.
const BIT_TABLES: u64 = 5;
/// When fewer frames are left, faults take one at a time.
pub(in crate::mm) const SCARCE_FRAMES: usize = 4096;
/// Frames beyond the limit, for processes that come in from outside.
const RESERVE: usize = RESERVE_BYTES / 4096;

/// Blocks of user memory.
fn blocks(boot: &BootInfo) -> u64 {
    boot.user_end_phys.saturating_sub(USER_PHYS) >> BLOCK_SHIFT
}

/// Where kernel memory holds the tables with an entry for each block or frame of user memory: at its end, behind the heap.
/// There may be much more user memory than the limit allows, and only the tables' pages in use cost anything; in the heap
/// they would count as a whole.
pub(crate) fn tables_phys(boot: &BootInfo) -> u64 {
    let control = if platform::current().mirrors() { blocks(boot) * PAGE_SIZE } else { 0 };
    let bits = (BIT_TABLES * bit_table_bytes(blocks(boot))).next_multiple_of(PAGE_SIZE);
    boot.heap_end_phys.saturating_sub(control + bits + owner_table_bytes(blocks(boot)))
}

/// Bytes of the table with a byte for each frame, in whole pages.
fn owner_table_bytes(blocks: u64) -> u64 {
    (blocks << (BLOCK_SHIFT - abi::PAGE_SHIFT)).next_multiple_of(PAGE_SIZE)
}

/// The table with a byte for each frame, all of them 0 at first: the last thing in kernel memory.
fn owner_table(boot: &BootInfo) -> &'static [AtomicU8] {
    let start = boot.heap_end_phys - owner_table_bytes(blocks(boot));
    // SAFETY: (1) the range lies in kernel memory behind the heap and the other tables, and is never freed; (2) it begins as
    // zeros and is reached by atomics alone.
    unsafe { core::slice::from_raw_parts(platform::ptr(start), to_usize(owner_table_bytes(blocks(boot)))) }
}

/// Bytes of a table with a bit for each frame.
const fn bit_table_bytes(blocks: u64) -> u64 {
    blocks << (BLOCK_SHIFT - abi::PAGE_SHIFT) >> 3
}

/// The table of this number with a bit for each frame, all of them 0 at first. The same each time. Small numbers only.
pub(in crate::mm) fn bit_table(number: u64) -> Option<&'static [AtomicU64]> {
    debug_assert!(number < BIT_TABLES);
    let bytes = bit_table_bytes(total() as u64 >> (BLOCK_SHIFT - abi::PAGE_SHIFT));
    let start = BITS_PHYS.get()? + number * bytes;
    // SAFETY: (1) the range lies in kernel memory behind the heap, which nobody else uses, and is never freed; (2) it begins as
    // zeros and is reached by atomics alone; (3) tables of different numbers do not overlap, and begin at multiples of 128.
    Some(unsafe { core::slice::from_raw_parts(platform::ptr(start), to_usize(bytes / 8)) })
}

/// Sets the allocator up. Control pages open each block on kvm; on systrap, where user memory is in reach of
/// applications, they stand in kernel memory at the block's index.
pub fn init(boot: &BootInfo) -> Result<()> {
    let len = boot.user_end_phys.saturating_sub(USER_PHYS);
    let tables = tables_phys(boot);
    if tables <= boot.heap_phys {
        return Err(Errno::ENOMEM);
    }
    let mirrors = platform::current().mirrors();
    frame_owners::init(owner_table(boot));
    BITS_PHYS.call_once(|| tables + if mirrors { blocks(boot) * PAGE_SIZE } else { 0 });
    let control = if mirrors {
        StridedControl::in_table(NonNull::new(platform::ptr(tables)).ok_or(Errno::EINVAL)?)
    } else {
        StridedControl::in_blocks(NonNull::new(platform::ptr(USER_PHYS)).ok_or(Errno::EINVAL)?)
    };
    let limit = limit_with_reserve(boot.user_frames_limit)?;
    SANDBOX.open(boot.user_frames_limit.saturating_mul(PAGE_SIZE));
    // SAFETY: the VMM made the region zero-filled and 4 MiB-aligned, and the control pages are ours alone.
    FRAMES.call_once(|| unsafe {
        Frames::new(USER_PHYS, len, limit, control, SpinLock::new(Rank::Frames, ()))
    });
    Ok(())
}

fn limit_with_reserve(frames: u64) -> Result<usize> {
    Ok(usize::try_from(frames).map_err(|_| Errno::EINVAL)?.saturating_add(RESERVE))
}

/// From now on programs may have so many bytes, and no more than there are. Memory in use is not taken away: what can be
/// dropped is dropped, and `EBUSY` says that the rest is more than that; then the old limit stays. No lock is held.
pub fn set_limit(bytes: u64) -> Result<()> {
    let frames = frames().ok_or(Errno::ENOMEM)?;
    let bytes = bytes.min((total() * PAGE_BYTES) as u64);
    let holds_more = || SANDBOX.used() > bytes || SANDBOX.charged() as u64 > abi::layout::kernel_limit(bytes);
    if holds_more() {
        crate::upcall::shrink_caches();
        crate::sched::stack::trim();
        if holds_more() {
            return Err(Errno::EBUSY);
        }
    }
    let limit = limit_with_reserve(bytes / PAGE_SIZE)?;
    SANDBOX.open(bytes);
    frames.set_limit_frames(limit);
    Ok(())
}

fn frames() -> Option<&'static Frames> {
    FRAMES.get()
}

/// How many of `wanted` frames the current task may have: the reserve is not for everyone, and kernel memory beyond its
/// allowance takes from what applications may have.
fn granted(frames: &Frames, wanted: usize) -> usize {
    let left = SANDBOX.frames_limit().saturating_sub(frames.frames_in_use());
    if left > 0 {
        return wanted.min(left);
    }
    // The allocator has the last word.
    if account::uses_reserve() { wanted.min(1) } else { 0 }
}

fn alloc_one() -> Option<(Frame, bool)> {
    let (frames, owner) = (frames()?, owner::current());
    if charge(frames, owner, 1) == 0 {
        return None;
    }
    let taken = unless_set_aside(frames, || frames.alloc());
    match taken {
        Some((frame, _)) => {
            frame_owners::note(frame, 1, owner);
            owners::note_peak(owner);
        }
        None => owners::uncharge_frames(owner, 1),
    }
    taken
}

/// Up to `max` contiguous frames, which nobody has cleared.
fn alloc_run(max: usize, near: Option<Frame>) -> Option<Run> {
    let (frames, owner) = (frames()?, owner::current());
    let charged = charge(frames, owner, max.min(MAX_RUN_FRAMES));
    let run = if charged == 0 { None } else { unless_set_aside(frames, || frames.alloc_run(charged, near)) };
    let taken = run.map_or(0, |run| run.frames);
    owners::uncharge_frames(owner, charged - taken);
    if let Some(run) = run {
        frame_owners::note(run.start, taken, owner);
        owners::note_peak(owner);
    }
    run
}

/// Allocates once more when nothing was found while memory went back to the host: another CPU has set it aside for that long.
fn unless_set_aside<T>(frames: &Frames, alloc: impl Fn() -> Option<T>) -> Option<T> {
    alloc().or_else(|| {
        while frames.set_aside_frames() > 0 {
            platform::relax();
        }
        // The last word, if others set frames aside or took them meanwhile.
        alloc()
    })
}

/// Charges `owner` for up to `wanted` frames; how many the current task may have.
fn charge(frames: &Frames, owner: Owner, wanted: usize) -> usize {
    match granted(frames, wanted) {
        0 => 0,
        granted => owners::charge_frames(owner, granted),
    }
}

/// A reference to a frame, dropped with the value; the last one frees the frame.
///
/// Page tables and the lists of objects keep references as plain numbers, one an entry: [`Self::keep`] and
/// [`Self::kept`] move a reference there and back.
#[derive(Debug)]
pub struct FrameRef(Frame);

impl FrameRef {
    /// Another reference to a frame that has one; an error when the count is full (copy the frame instead).
    pub fn share(frame: Frame) -> Result<Self> {
        frames().ok_or(Errno::ENOMEM)?.inc_ref(frame).map_err(|_| Errno::ENOMEM)?;
        Ok(Self(frame))
    }

    /// The reference that an entry kept, which is to be no more.
    pub fn kept(frame: Frame) -> Self {
        Self(frame)
    }

    /// Leaves the reference to an entry.
    pub fn keep(self) -> Frame {
        core::mem::ManuallyDrop::new(self).0
    }

    /// The frame.
    pub fn frame(&self) -> Frame {
        self.0
    }

    /// Its guest-physical address.
    pub fn addr(&self) -> u64 {
        self.0.addr()
    }
}

impl Drop for FrameRef {
    fn drop(&mut self) {
        if let Some(frames) = frames() {
            let dropped = frames.dec_ref_with(self.0, |frame| Tally::new().add(frame));
            debug_assert!(dropped.is_ok());
        }
    }
}

/// Frames in a row, with a reference to each. Those that are not taken out are dropped.
#[derive(Debug)]
pub struct FrameRun {
    next: Frame,
    count: usize,
}

impl FrameRun {
    /// The first of those that are left, or the one behind the last.
    pub fn next_frame(&self) -> Frame {
        self.next
    }

    /// How many are left.
    pub fn left(&self) -> usize {
        self.count
    }
}

impl Iterator for FrameRun {
    type Item = FrameRef;
    fn next(&mut self) -> Option<FrameRef> {
        self.count = self.count.checked_sub(1)?;
        let frame = self.next;
        self.next = frame.add(1);
        Some(FrameRef(frame))
    }
}

impl Drop for FrameRun {
    fn drop(&mut self) {
        drop_refs((0..self.count).map(|at| self.next.add(at)));
    }
}

/// A frame of zeros.
pub fn alloc_zeroed() -> Option<FrameRef> {
    let (frame, clean) = alloc_one()?;
    if residency::forget(frame) || !clean {
        zero(frame);
    }
    Some(FrameRef(frame))
}

/// A frame whose content the caller overwrites whole.
pub fn alloc_any() -> Option<FrameRef> {
    let frame = alloc_one()?.0;
    let _ = residency::forget(frame);
    Some(FrameRef(frame))
}

/// Up to `max` contiguous frames of zeros, at `near` if it is free. Of frames that must be cleared first at most
/// `dirty_max` are taken.
pub fn alloc_zeroed_run(max: usize, near: Option<Frame>, dirty_max: usize) -> Option<FrameRun> {
    let run = alloc_run(max, near)?;
    let spoiled = (0..run.frames).filter(|i| residency::forget(run.start.add(*i))).count();
    if run.clean && spoiled == 0 {
        return Some(FrameRun { next: run.start, count: run.frames });
    }
    let keep = run.frames.min(dirty_max.max(1));
    drop_refs((keep..run.frames).map(|extra| run.start.add(extra)));
    // SAFETY: the run is ours and lies in user memory, which the linear map covers.
    unsafe { arch::zero_bytes(platform::ptr(run.start.addr()), keep * 4096) };
    Some(FrameRun { next: run.start, count: keep })
}

/// Up to `max` contiguous frames whose content the caller overwrites whole.
pub(in crate::mm) fn alloc_any_run(max: usize) -> Option<FrameRun> {
    let run = alloc_run(max, None)?;
    for at in 0..run.frames {
        let _ = residency::forget(run.start.add(at));
    }
    Some(FrameRun { next: run.start, count: run.frames })
}

/// Fills a frame with zeros.
pub fn zero(frame: Frame) {
    // SAFETY: user memory is covered by the linear map; the caller holds a reference to the frame.
    unsafe { arch::zero_bytes(platform::ptr(frame.addr()), 4096) };
}

/// Whether two frames, which nobody writes meanwhile, have the same content.
pub fn are_same(one: Frame, other: Frame) -> bool {
    // SAFETY: user memory is covered by the linear map, and nobody writes there: the caller's promise. Words of another
    // writer who broke it would only make the answer wrong.
    let words =
        |frame: Frame| unsafe { core::slice::from_raw_parts(platform::ptr::<u64>(frame.addr()), 512) };
    words(one) == words(other)
}

/// Copies a frame's content.
pub fn copy(to: Frame, from: Frame) {
    // SAFETY: both are frames of user memory, covered by the linear map, and distinct.
    unsafe { arch::copy_bytes(platform::ptr(to.addr()), platform::ptr::<u8>(from.addr()), 4096) };
}

/// So many frames that are freed at once are worth a look at what could go back to the host.
const MANY: usize = 64;
static FREED_MANY: AtomicBool = AtomicBool::new(false);

/// Whether many frames were freed at once since this was asked last. One load as a rule.
pub(in crate::mm) fn take_freed_many() -> bool {
    FREED_MANY.load(Ordering::Relaxed) && FREED_MANY.swap(false, Ordering::Relaxed)
}

/// Drops the references to many frames that entries kept.
pub(in crate::mm) fn drop_refs(list: impl IntoIterator<Item = Frame>) {
    let mut list = list.into_iter().peekable();
    if let (Some(frames), Some(_)) = (frames(), list.peek()) {
        let mut tally = Tally::new();
        let dropped = frames.dec_refs_with(list, |frame| tally.add(frame));
        debug_assert_eq!(dropped.refused, 0);
        if dropped.freed >= MANY && !FREED_MANY.load(Ordering::Relaxed) {
            FREED_MANY.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs `f` while no frame is allocated or freed.
pub(in crate::mm) fn exclusively(f: impl FnOnce()) {
    if let Some(frames) = frames() {
        frames.exclusively(f);
    }
}

/// Whether there is exactly one reference.
pub fn is_exclusive(frame: Frame) -> bool {
    frames().is_some_and(|frames| frames.ref_count(frame) == Ok(1))
}

/// Frames of user memory, allocated or not.
pub fn total() -> usize {
    frames().map_or(0, |frames| {
        let range = frames.range();
        ((range.end - range.start) / 4096) as usize
    })
}

/// Frames of the blocks that are in use, from the first on, or were when this was asked before: it only grows. Every frame
/// that is allocated is one of them.
pub fn reach() -> usize {
    static REACH: AtomicUsize = AtomicUsize::new(0);
    let now = stats().blocks_opened << (BLOCK_SHIFT - abi::PAGE_SHIFT);
    now.max(REACH.fetch_max(now, Ordering::Relaxed))
}

/// The frame's number; `None` for what is no frame of user memory.
pub fn index(frame: Frame) -> Option<u32> {
    u32::try_from(frame.addr().checked_sub(USER_PHYS)? / 4096).ok()
}

/// The frame with this number.
pub fn at(index: u32) -> Frame {
    Frame::new(USER_PHYS + u64::from(index) * 4096)
}

/// Gives free frames back to the host; result: bytes.
pub fn reclaim() -> u64 {
    frames().map_or(0, |frames| frames.reclaim(|phys, bytes| platform::release(phys, bytes).is_ok()))
}

/// Gives up to `most` free frames back to the host, of the highest block below `below` that has a run of `least`; that block,
/// and how many went. `None`: there is no such block.
pub(in crate::mm) fn give_back(below: usize, least: usize, most: usize) -> Option<(usize, usize)> {
    let release = |phys, bytes| platform::release(phys, bytes).is_ok();
    frames()?.reclaim_step(below, least, most, release)
}

/// Free frames that hold memory of the host.
pub(in crate::mm) fn held_free() -> usize {
    frames().map_or(0, BitmapAllocator::dirty_free_frames)
}

/// See [`BitmapAllocator::take_watermark`].
pub(in crate::mm) fn take_watermark() -> (usize, u64) {
    frames().map_or((0, 0), BitmapAllocator::take_watermark)
}

/// Sizes of user memory.
pub fn stats() -> BitmapStats {
    let mut stats = frames().map(BitmapAllocator::stats).unwrap_or_default();
    stats.limit_frames = stats.limit_frames.saturating_sub(RESERVE);
    stats
}

/// Frames that are allocated.
pub fn in_use() -> usize {
    frames().map_or(0, BitmapAllocator::frames_in_use)
}

/// Whether the current task would get one.
pub fn has_any() -> bool {
    let is_left = |frames: &Frames| granted(frames, 1) == 1 && frames.frames_in_use() < frames.limit_frames();
    frames().is_some_and(is_left) && owners::would_get_frame(owner::current())
}

/// Frames that the current task's owner may still allocate.
pub fn available() -> usize {
    available_to_all().min(owners::available(owner::current()))
}

/// Frames that the sandbox's limit leaves to all owners together.
pub fn available_to_all() -> usize {
    frames().map_or(0, |frames| SANDBOX.frames_limit().saturating_sub(frames.frames_in_use()))
}

/// Bytes of memory that the current task's owner may have.
pub fn limit_bytes() -> u64 {
    let sandbox = limit_of_sandbox();
    owners::limit(owner::current()).map_or(sandbox, |own| own.min(sandbox))
}

/// Bytes that the sandbox may have.
pub fn limit_of_sandbox() -> u64 {
    stats().limit_frames as u64 * PAGE_SIZE
}

/// Zeros a frame from byte `inside` on.
pub fn zero_tail(frame: Frame, inside: usize) {
    zero_range(frame, inside, 4096usize.saturating_sub(inside));
}

/// Zeros `len` bytes of a frame from byte `inside` on.
pub fn zero_range(frame: Frame, inside: usize, len: usize) {
    if inside + len <= 4096 {
        // SAFETY: the range lies within the frame, which the caller holds a reference to.
        unsafe { arch::zero_bytes(platform::ptr(frame.addr() + inside as u64), len) };
    }
}
