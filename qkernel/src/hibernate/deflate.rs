//! The way down: free memory goes back to the host, all pages are found once and stored, their entries marked, their
//! frames' memory released, and files unmapped.

use abi::hostcall as hc;
use abi::hostcall::{HibernateReport, SwapOut};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs;
use crate::hibernate::state_machine::Obstacle;
use crate::task::container;
use machine::heap;
use machine::mm::aspace::{AddressSpace, Space};
use machine::mm::frames;
use machine::mm::frames::Frame;
use machine::mm::template;
use machine::mm::window::HostFileMap;
use machine::mm::working_set;
use machine::mm::working_set::Touch;
use machine::mm::{PAGE, PageStore, residency};
use machine::platform;
use machine::sched::Frozen;
use machine::sched::stack;
use machine::sync::MutexGuard;
use machine::time;

/// Hibernates the sandbox, which is frozen. `stays`: content stays in memory, for an image that is taken next. After an error nothing has
/// changed.
pub(super) fn run(frozen: &Frozen, stays: bool) -> Result<HibernateReport, Obstacle> {
    // Only with the scheduler frozen can nobody have begun another image.
    if residency::is_staying() {
        return Err(Obstacle::Busy);
    }
    if !stays {
        // All of it goes to its home.
        residency::end_stay();
    }
    let mut report = HibernateReport::default();
    fs::caches::shrink();
    let spaces = AddressSpace::all();
    let stores = PageStore::all();
    {
        // A lock that is taken belongs to a task that has to go on a little.
        let locked: Option<Vec<_>> = spaces.iter().map(|space| space.try_lock()).collect();
        let mut locked = locked.ok_or(Obstacle::Busy)?;
        let files = mapped_files(&locked);
        // Copies of files' pages that no process maps any more need no home.
        files.values().for_each(|file| file.trim());
        let collected = collect(&mut locked, &stores, frozen, &mut report)?;
        let members = working_set::next(&spaces, &locked, |frame| collected.listed.has(frame));
        // A page is stored once nobody can write it any more. If storing fails, faults bring the mirrors back.
        for (space, locked) in spaces.iter().zip(&mut locked) {
            if stays { space.drop_mirror(locked) } else { space.drop_mirror_but_template(locked) }
        }
        store(&collected, &members, stays, &mut report)?;
        let stored = time::monotonic_ns();
        // Nothing fails from here on.
        mark(&spaces, &mut locked, &collected, !stays);
        if stays && members.is_empty() {
            let here = |frame| collected.listed.has(frame);
            let all = working_set::all(&spaces, &mut locked, here, working_set::GUESSED_MAX);
            working_set::store_guess(&all);
        } else {
            working_set::store(&members);
        }
        if stays {
            residency::stay(collected.listed.0.iter().copied());
        } else {
            release(collected.frames);
        }
        report.file_chunks = files.values().map(|file| file.drop_chunks() as u64).sum();
        report.release_ns = time::monotonic_ns() - stored;
    }
    // With them may go the last references to memory that ended meanwhile.
    drop((spaces, stores));
    report.heap_bytes += heap::trim() as u64;
    Ok(report)
}

/// One bit a frame.
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn new() -> Result<Self, Obstacle> {
        heap::zeroed(frames::reach().div_ceil(64)).map(Self).map_err(|_| Obstacle::NoMemory)
    }

    fn has(&self, index: u32) -> bool {
        self.0.get(index as usize / 64).is_some_and(|word| word & 1 << (index % 64) != 0)
    }

    /// Its words, for the host: where they are, and how many.
    pub(super) fn words(&self) -> (u64, u64) {
        (platform::phys_of(self.0.as_ptr()), self.0.len() as u64)
    }

    /// Sets the bit; false when it was set, or there is none.
    pub(super) fn set(&mut self, index: u32) -> bool {
        let Some(word) = self.0.get_mut(index as usize / 64) else { return false };
        let bit = 1 << (index % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

/// Every frame in use, once.
struct Collected {
    /// Those in memory, in the order in which they were found: neighbours in memory are neighbours in the file.
    frames: Vec<u32>,
    listed: Bits,
    /// The frames of copies of files, and those of other stores. All others are programs' own.
    of_files: Bits,
    of_stores: Bits,
    /// Those stored already.
    kept: Bits,
    kept_pages: u64,
}

impl Collected {
    fn add(&mut self, frame: Frame) {
        let Some(index) = frames::index(frame) else { return };
        if residency::is_swapped(frame) {
            self.kept_pages += u64::from(self.kept.set(index));
        } else if self.frames.len() < self.frames.capacity() && self.listed.set(index) {
            self.frames.push(index);
        }
    }

    /// Adds the frames of a store.
    fn add_store(&mut self, store: &PageStore) {
        let is_of_file = store.class() == hc::CLASS_FILE;
        store.for_each_frame(|frame| {
            if let Some(index) = frames::index(frame) {
                let members = if is_of_file { &mut self.of_files } else { &mut self.of_stores };
                members.set(index);
            }
            self.add(frame);
        });
    }

    /// The classes of frames, in the same order.
    fn classes(&self, frames: &[u32]) -> Result<Vec<u8>, Obstacle> {
        let class = |frame: u32| {
            if self.of_files.has(frame) {
                hc::CLASS_FILE
            } else if self.of_stores.has(frame) {
                hc::CLASS_STORE
            } else {
                hc::CLASS_ANONYMOUS
            }
        };
        let mut classes = Vec::new();
        classes.try_reserve_exact(frames.len()).map_err(|_| Obstacle::NoMemory)?;
        classes.extend(frames.iter().map(|frame| class(*frame)));
        Ok(classes)
    }
}

fn collect(
    locked: &mut [MutexGuard<'_, Space>],
    stores: &[Arc<PageStore>],
    frozen: &Frozen,
    report: &mut HibernateReport,
) -> Result<Collected, Obstacle> {
    let start = time::monotonic_ns();
    report.freed_bytes = frames::reclaim();
    let tasks: Vec<_> = container::all().iter().flat_map(|container| container.tasks()).collect();
    tasks.iter().for_each(|task| task.thread.sched.trim_stack(frozen));
    drop(tasks);
    stack::trim();
    report.heap_bytes = heap::trim() as u64;
    residency::prepare().map_err(|_| Obstacle::NoMemory)?;
    let mut list = Vec::new();
    list.try_reserve_exact(frames::stats().frames_in_use).map_err(|_| Obstacle::NoMemory)?;
    let mut collected = Collected {
        frames: list,
        listed: Bits::new()?,
        of_files: Bits::new()?,
        of_stores: Bits::new()?,
        kept: Bits::new()?,
        kept_pages: 0,
    };
    let pinned = residency::pinned();
    // Marked before, the pinned ones are never listed; the bits go before anybody asks for them.
    let pinned = || pinned.iter().filter_map(|frame| frames::index(*frame));
    for index in pinned() {
        collected.listed.set(index);
    }
    for space in locked {
        space.for_each_frame(|frame| collected.add(frame));
    }
    for store in stores {
        collected.add_store(store);
    }
    for index in pinned() {
        if let Some(word) = collected.listed.0.get_mut(index as usize / 64) {
            *word &= !(1 << (index % 64));
        }
    }
    report.kept_pages = collected.kept_pages;
    report.collect_ns = time::monotonic_ns() - start;
    Ok(collected)
}

/// Has the VMM store the pages, the working set first, or take down that they stay.
fn store(
    collected: &Collected,
    members: &[Touch],
    stays: bool,
    report: &mut HibernateReport,
) -> Result<(), Obstacle> {
    let start = time::monotonic_ns();
    let mut in_set = Bits::new()?;
    let (mut working, mut rest) = (Vec::new(), Vec::new());
    working.try_reserve_exact(members.len()).map_err(|_| Obstacle::NoMemory)?;
    rest.try_reserve_exact(collected.frames.len()).map_err(|_| Obstacle::NoMemory)?;
    let listed = members.iter().map(|member| member.frame).filter(|frame| collected.listed.has(*frame));
    working.extend(listed.filter(|frame| in_set.set(*frame)));
    rest.extend(collected.frames.iter().copied().filter(|frame| !in_set.has(*frame)));
    let (working_classes, rest_classes) = (collected.classes(&working)?, collected.classes(&rest)?);
    let request = SwapOut {
        working: platform::phys_of(working.as_ptr()),
        working_count: working.len() as u64,
        rest: platform::phys_of(rest.as_ptr()),
        rest_count: rest.len() as u64,
        kept: platform::phys_of(collected.kept.0.as_ptr()),
        kept_words: collected.kept.0.len() as u64,
        working_classes: platform::phys_of(working_classes.as_ptr()),
        rest_classes: platform::phys_of(rest_classes.as_ptr()),
        stays: u64::from(stays),
    };
    platform::call(hc::SWAP_OUT, [platform::phys_of(&raw const request), 0, 0, 0, 0, 0])
        .map_err(|_| Obstacle::Store)?;
    report.pages = (working.len() + rest.len()) as u64;
    report.working_pages = working.len() as u64;
    report.write_ns = time::monotonic_ns() - start;
    Ok(())
}

fn mark(
    spaces: &[Arc<AddressSpace>],
    locked: &mut [MutexGuard<'_, Space>],
    collected: &Collected,
    template_outlasts: bool,
) {
    let is_stored = |frame: Frame| frames::index(frame).is_some_and(|index| collected.listed.has(index));
    for (space, locked) in spaces.iter().zip(locked) {
        let outlasts = |entry| template_outlasts && template::outlasts_sleep(entry);
        space.swap_entries(locked, is_stored, outlasts);
    }
    residency::mark(collected.listed.0.iter().zip(&collected.kept.0).map(|(listed, kept)| listed | kept));
}

/// Gives the memory behind frames back, in ranges as large as they come.
fn release(mut list: Vec<u32>) {
    list.sort_unstable();
    for run in list.chunk_by(|a, b| a + 1 == *b) {
        let Some(first) = run.first() else { continue };
        // Memory that stays is only lost: the content that counts is stored.
        let _ = platform::release(frames::at(*first).addr(), run.len() as u64 * PAGE);
    }
}

/// The host files that are mapped, each once.
fn mapped_files(locked: &[MutexGuard<'_, Space>]) -> BTreeMap<usize, Arc<HostFileMap>> {
    let mut files: BTreeMap<usize, Arc<HostFileMap>> = BTreeMap::new();
    for space in locked {
        space.for_each_host_file(|file| {
            files.insert(Arc::as_ptr(file) as usize, file.clone());
        });
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_once() {
        let mut bits = Bits(vec![0; 2]);
        assert!(bits.set(70) && !bits.set(70) && !bits.set(128));
        assert!(bits.has(70) && !bits.has(6) && !bits.has(700));
    }
}
