//! The sandbox's own copies of a host file's pages, for private mappings: no two sandboxes have a page of a program in
//! common, whose use one could learn from the other (Hibernate Container, section 3.5), and what a program uses of its
//! files hibernates, and comes back with the working set, like all its memory.
//!
//! A page is copied at its first touch, with its neighbours, and shown to every process that maps the file. What is
//! written to the file afterwards is seen by pages that were not copied yet (mmap(2) leaves that open).
//!
//! Copies of files that were mapped lately stay after their last mapping, in a small part of memory: programs start often. Whoever is
//! short of memory has them go, and a sandbox that hibernates.
//!
//! Containers of a pod see the files of one image by views of their own, with copies for each view. Those of files that
//! look the same to the host ([`Likeness`]) have one frame for each page of which both were read, and of the same content.

use abi::hostcall::HostStat;
use abi::word::to_usize;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::object::PageStore;
use super::page::PAGE;
use super::physical::frames::{self, Frame, FrameRef, SCARCE_FRAMES};
use super::physical::owners;
use crate::errno::{Errno, Result};
use crate::host::{self, Handle};
use crate::rank::Rank;
use crate::spin::SpinLock;
use crate::{owner, time};

/// Most of a sandbox's memory that copies take up is a part of this size: nobody takes them back when memory is short. Beyond
/// it mappings show the host's page cache.
const COPIES_PART: usize = 4;
/// Files whose copies are kept after their last mapping, at most …
const KEPT_FILES: usize = 64;
/// … and of how many pages: this part of all, and no more than that.
const KEPT_PART: usize = 16;
const KEPT_PAGES: usize = 8192;
/// A file that has not changed for so long is not taken for one that the clock of its file system cannot tell from it.
const SETTLED_NS: i64 = 1_000_000_000;
/// Most stale frames a fault clears for pages that it copies.
const DIRTY_RUN_MAX: usize = 32;

static OFF: AtomicBool = AtomicBool::new(false);

/// Has private mappings show the host's page cache instead, which sandboxes share.
pub fn share_files(share: bool) {
    OFF.store(share, Ordering::Relaxed);
}

/// Whether files are copied.
pub fn are_wanted() -> bool {
    !OFF.load(Ordering::Relaxed)
}

/// Attributes that two views of one file have alike, however they name it: overlays of the same layers show one number
/// and one set of times, on devices of their own. Nobody can set the time of the last change, so no file can be made to
/// look like another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Likeness {
    pub ino: u64,
    pub size: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
}

impl Likeness {
    /// The likeness of a file, from the attributes that the host tells of it.
    pub fn of(stat: &HostStat) -> Self {
        let HostStat { ino, size, mtime_ns, ctime_ns, .. } = *stat;
        Self { ino, size, mtime_ns, ctime_ns }
    }
}

static IN_COMMON: AtomicBool = AtomicBool::new(false);

/// The stores of files that look the same, from which others may have pages.
static ALIKE: SpinLock<BTreeMap<Likeness, Vec<Weak<PageStore>>>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

/// Stores of one likeness that others look at, at most: one program cannot make faults slow with more of them.
const ALIKE_MAX: usize = 8;

/// There are several containers: from now on their copies of the same files are in common.
pub fn have_in_common() {
    IN_COMMON.store(true, Ordering::Relaxed);
}

/// Whether new [`Copies`] need to know what their file looks like.
pub fn are_in_common() -> bool {
    IN_COMMON.load(Ordering::Relaxed)
}

/// The version of a file when its pages were copied: whoever changes the file changes one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub dev: u64,
    pub of: Likeness,
}

impl Version {
    /// Of a file by what the host tells of it; `None`: it has changed just now, and may change again with the host's clock telling
    /// the same.
    pub fn settled(stat: &HostStat) -> Option<Self> {
        let settled = stat.ctime_ns.saturating_add(SETTLED_NS) < time::realtime_ns().cast_signed();
        settled.then(|| Self { dev: stat.dev, of: Likeness::of(stat) })
    }
}

static KEPT: SpinLock<AllKept> = SpinLock::new(Rank::Leaf, AllKept::new());

/// Copies of files that nobody maps any more, those that were mapped last at the end.
struct AllKept {
    queue: VecDeque<Kept>,
    /// Of all of them.
    pages: usize,
}

impl AllKept {
    const fn new() -> Self {
        Self { queue: VecDeque::new(), pages: 0 }
    }

    fn take(&mut self, at: usize) -> Option<Kept> {
        let taken = self.queue.remove(at)?;
        self.pages -= taken.pages;
        Some(taken)
    }
}

struct Kept {
    version: Version,
    copies: Copies,
    pages: usize,
}

/// Nobody maps a file of this version any more: its copies stay for a while, if they are few.
pub(super) fn keep(version: Version, copies: Copies) {
    let own = owners::limit(owner::current()).map_or(usize::MAX, |limit| to_usize(limit / PAGE));
    let most = (frames::in_use() + frames::available_to_all()).min(own) / KEPT_PART;
    let most = most.min(KEPT_PAGES);
    let pages = to_usize(copies.store.resident_bytes() / PAGE);
    if pages == 0 || pages > most || frames::available() < SCARCE_FRAMES {
        return;
    }
    // Freed without the lock: of the same version there is one at most, and then those that were mapped longest ago.
    let mut gone = take_kept(&version);
    while let Some(oldest) = take_surplus(most - pages) {
        gone = Some(oldest);
    }
    drop(gone);
    let mut kept = KEPT.lock();
    if kept.queue.try_reserve(1).is_ok() {
        kept.pages += pages;
        kept.queue.push_back(Kept { version, copies, pages });
    }
}

/// Takes out what is kept of a file of this version.
fn take_kept(version: &Version) -> Option<Kept> {
    let mut kept = KEPT.lock();
    let at = kept.queue.iter().position(|known| known.version == *version)?;
    kept.take(at)
}

/// Takes out the oldest, if there are more pages than so many, or no room for another file.
fn take_surplus(most: usize) -> Option<Kept> {
    let mut kept = KEPT.lock();
    if kept.pages > most || kept.queue.len() >= KEPT_FILES { kept.take(0) } else { None }
}

/// The copies that were kept of a file of this version.
pub fn revive(version: &Version) -> Option<Copies> {
    take_kept(version).map(|known| known.copies)
}

/// Has everything go that is kept.
pub fn let_go() {
    let kept = core::mem::replace(&mut *KEPT.lock(), AllKept::new());
    drop(kept);
}

/// The pages of one file that were copied.
pub struct Copies {
    store: Arc<PageStore>,
    likeness: Option<Likeness>,
    /// The address space that used them first, which may be gone; 0: none has.
    first_user: AtomicU64,
}

impl Drop for Copies {
    fn drop(&mut self) {
        let Some(likeness) = self.likeness else { return };
        let mut alike = ALIKE.lock();
        if let Some(stores) = alike.get_mut(&likeness) {
            stores.retain(|store| !core::ptr::eq(store.as_ptr(), Arc::as_ptr(&self.store)));
            if stores.is_empty() {
                alike.remove(&likeness);
            }
        }
    }
}

impl Copies {
    /// Without pages. With a likeness they have those in common with other files of it.
    pub fn new(likeness: Option<Likeness>) -> Self {
        let store = PageStore::of_copies();
        if let Some(likeness) = likeness {
            let mut alike = ALIKE.lock();
            let stores = alike.entry(likeness).or_default();
            if stores.len() < ALIKE_MAX {
                stores.push(Arc::downgrade(&store));
            }
        }
        Self { store, likeness, first_user: AtomicU64::new(0) }
    }

    /// The copies of other files that look the same.
    fn others_alike(&self) -> Vec<Arc<PageStore>> {
        let Some(likeness) = self.likeness else { return Vec::new() };
        let mut others = Vec::with_capacity(ALIKE_MAX);
        let alike = ALIKE.lock();
        let stores = alike.get(&likeness).into_iter().flatten().filter_map(Weak::upgrade);
        others.extend(stores.filter(|store| !Arc::ptr_eq(store, &self.store)));
        others
    }

    /// An address space uses them. Whether it is another than the first one that did.
    pub(super) fn are_for_others_than(&self, space: u64) -> bool {
        let set = self.first_user.compare_exchange(0, space, Ordering::Relaxed, Ordering::Relaxed);
        set.is_err_and(|first| first != space)
    }

    /// The file has changed: what is touched from now on is copied anew.
    pub fn forget(&self) {
        self.store.forget();
    }

    /// Lets go of what no process maps.
    pub fn trim(&self) {
        self.store.forget_unused();
    }

    /// Whether a page is there, or may be copied: the content of larger files is the host's to keep or to drop.
    pub(super) fn may_hold(&self, index: u64) -> bool {
        PageStore::copies() < (frames::in_use() + frames::available_to_all()) / COPIES_PART
            || self.store.holds(index)
    }

    /// Whether `frame` is what page `index` is shown as.
    pub(super) fn shows(&self, index: u64, frame: Frame) -> bool {
        let shown = self.store.frame_anywhere_if_present(index).ok().flatten();
        shown.is_some_and(|shown| shown.frame() == frame)
    }

    pub(super) fn store(&self) -> &PageStore {
        &self.store
    }

    /// Copies those pages of `[first, last)` that are not there yet; `wanted` must come, others may be missing. `cached`:
    /// `EAGAIN` rather than wait for a disk.
    pub(super) fn fill(&self, file: &Handle, first: u64, last: u64, wanted: u64, cached: bool) -> Result<()> {
        let before = first.checked_sub(1).and_then(|before| self.store.frame_in_memory(before));
        let mut near = before.map(|before| before.frame().add(1));
        let mut at = first;
        while at < last {
            if self.store.holds(at) {
                at += 1;
                continue;
            }
            let mut end = at + 1;
            while end < last && !self.store.holds(end) {
                end += 1;
            }
            let wants = (at..end).contains(&wanted);
            match self.copy_run(file, at, end, near, cached) {
                Ok((next, frame)) => (at, near) = (next, Some(frame)),
                Err(Errno::EAGAIN) => return Err(Errno::EAGAIN),
                Err(error) if wants && wanted == at => return Err(error),
                // Closer to the page that counts, or past what nobody needs.
                Err(_) => at = if wants { wanted } else { end },
            }
        }
        Ok(())
    }

    /// Copies pages from `at` on, up to `end`; where it got to, and the frame behind the last one.
    fn copy_run(
        &self,
        file: &Handle,
        at: u64,
        end: u64,
        near: Option<Frame>,
        cached: bool,
    ) -> Result<(u64, Frame)> {
        let run = frames::alloc_zeroed_run(to_usize(end - at), near, DIRTY_RUN_MAX);
        let run = run.ok_or(Errno::ENOMEM)?;
        let (first, count) = (run.next_frame(), run.left());
        read_whole(file, at * PAGE, first.addr(), count as u64 * PAGE, cached)?;
        let others = self.others_alike();
        if others.is_empty() {
            self.store.put_all(at, run);
            return Ok((at + count as u64, first.add(count)));
        }
        let mut found = Vec::new();
        found.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
        found.extend((at..).zip(run).map(|(index, own)| in_common(&others, index, own)));
        // Frames that nobody needs take the next pages.
        let own = found.iter().filter(|frame| (0..count).any(|i| first.add(i) == frame.frame())).count();
        self.store.put_all(at, found);
        Ok((at + count as u64, if own == 0 { first } else { first.add(count) }))
    }
}

/// The frame that one of the others has for page `index`, if it holds what was read; else `own`.
fn in_common(others: &[Arc<PageStore>], index: u64, own: FrameRef) -> FrameRef {
    // A store's frames are not written, not even by who is left alone with one, while somebody has a reference.
    let there = others.iter().filter_map(|other| other.frame_in_memory(index));
    there.into_iter().find(|frame| frames::are_same(frame.frame(), own.frame())).unwrap_or(own)
}

/// Reads into frames of zeros; what is behind the file's end stays zero.
pub(super) fn read_whole(file: &Handle, offset: u64, phys: u64, len: u64, cached: bool) -> Result<()> {
    let mut done = 0;
    while done < len {
        match host::read_phys(file, offset + done, phys + done, len - done, cached)? {
            0 => break,
            moved => done += moved,
        }
    }
    Ok(())
}
