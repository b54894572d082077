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

use abi::hostcall::{self as hc, HostStat};
use abi::word::to_usize;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use super::arrival::{self, How};
use super::aspace::Space;
use super::away::{Away, Stop};
use super::fault::{Around, SCARCE_FRAMES, own_copy};
use super::frames::{self, Frame, FrameRef};
use super::object::{MemoryObject, PageStore};
use super::owners;
use super::page::{Access, PAGE, PAGE_BYTES};
use super::pagetable::Entry;
use super::vma::{Prot, Vma, VmaFlags};
use super::window::HostFileMap;
use crate::blocking;
use crate::errno::{Errno, Result};
use crate::host::{self, Handle};
use crate::rank::Rank;
use crate::spin::SpinLock;
use crate::{owner, sched, time};

/// Pages that a fault copies and maps, at most; aligned.
const AROUND_PAGES: u64 = 32;
/// The same for a file that one address space uses: the faults that more would save cost no more than pages that nobody needs.
const ALONE_PAGES: u64 = 8;
/// Of a file with so many bytes of copies much is needed.
const MUCH_BYTES: u64 = 2 << 20;
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
/// A fault also maps what is there already of its mapping, so many pages to either side …
const WIDE_PAGES: u64 = 512;
/// … in so many pieces: each is an operation of the host's.
const WIDE_PIECES: usize = 32;
/// Pages of a private mapping's data that its first write to one of them copies; aligned. Most of it is written soon, by whoever
/// binds a library to its place.
const DATA_PAGES: u64 = 8;
/// Most stale frames a fault clears for pages that it copies.
const DIRTY_RUN_MAX: usize = to_usize(AROUND_PAGES);

static OFF: AtomicBool = AtomicBool::new(false);

/// Has private mappings show the host's page cache instead, which sandboxes share.
pub fn share_files(share: bool) {
    OFF.store(share, Ordering::Relaxed);
}

/// Whether files are copied.
pub fn are_wanted() -> bool {
    !OFF.load(Ordering::Relaxed)
}

/// What two views of one file show alike, however they name it: overlays of the same layers show one number and one set of
/// times, on devices of their own. Nobody can set the time of the last change, so no file can be made to look like another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Likeness {
    pub ino: u64,
    pub size: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
}

impl Likeness {
    /// What the host tells of a file.
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

/// What a file was when its pages were copied: whoever changes it changes one of these.
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

/// Copies of files that nobody maps any more, those that were mapped last at the end.
static KEPT: SpinLock<VecDeque<Kept>> = SpinLock::new(Rank::Leaf, VecDeque::new());

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
    let mut gone = Vec::new();
    {
        let mut kept = KEPT.lock();
        let mut total = pages;
        let others = core::mem::take(&mut *kept);
        if kept.try_reserve(KEPT_FILES).is_err() || gone.try_reserve(others.len()).is_err() {
            gone = others.into();
        } else {
            for other in others.into_iter().rev() {
                total += other.pages;
                if other.version == version || total > most || kept.len() + 1 >= KEPT_FILES {
                    gone.push(other);
                } else {
                    kept.push_front(other);
                }
            }
            kept.push_back(Kept { version, copies, pages });
        }
    }
    drop(gone);
}

/// The copies that were kept of a file of this version.
pub fn revive(version: &Version) -> Option<Copies> {
    let mut kept = KEPT.lock();
    let at = kept.iter().position(|known| known.version == *version)?;
    kept.remove(at).map(|known| known.copies)
}

/// Has everything go that is kept.
pub fn let_go() {
    let kept = core::mem::take(&mut *KEPT.lock());
    drop(kept);
}

/// The pages of one file that were copied.
pub struct Copies {
    store: Arc<PageStore>,
    likeness: Option<Likeness>,
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
        Self { store, likeness }
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
        self.store.frame_in_memory(index).is_some_and(|shown| shown.frame() == frame)
    }

    /// Copies those pages of `[first, last)` that are not there yet; `wanted` must come, others may be missing. `cached`:
    /// `EAGAIN` rather than wait for a disk.
    fn fill(&self, file: &Handle, first: u64, last: u64, wanted: u64, cached: bool) -> Result<()> {
        let mut near = None;
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
fn read_whole(file: &Handle, offset: u64, phys: u64, len: u64, cached: bool) -> Result<()> {
    let mut done = 0;
    while done < len {
        match host::read_phys(file, offset + done, phys + done, len - done, cached)? {
            0 => break,
            moved => done += moved,
        }
    }
    Ok(())
}

/// The pages of a mapping that are written together with one.
fn data_around(vma: &Vma, page: u64) -> Around {
    let first = page / PAGE / DATA_PAGES * DATA_PAGES;
    ((first * PAGE).max(vma.start), ((first + DATA_PAGES) * PAGE).min(vma.end))
}

/// The address behind the last page of a mapping that its file, of this size, has.
fn behind_file(vma: &Vma, size: u64) -> u64 {
    vma.start.saturating_add(size.next_multiple_of(PAGE).saturating_sub(vma.offset))
}

/// Whether the content of a copy is there; else it is to come, with those around it.
fn check_here(copies: &Copies, frame: &FrameRef, index: u64) -> core::result::Result<(), Stop> {
    let around = copies.store.absent_around(index);
    if let Some(away) = Away::of(frame.frame(), around.iter().map(FrameRef::frame), How::Around) {
        return Err(Stop::Away(away));
    }
    arrival::touched(frame.frame());
    Ok(())
}

impl Space {
    /// Whether pages of a file are only to be had if the host need not wait for a disk: other tasks wait for this CPU, and this
    /// one has not waited yet.
    fn may_go_cold(&self) -> bool {
        !self.has_waited && sched::has_waiting()
    }

    /// If pages from `start` on could not be had that way, they are to be waited for without the space's lock, once.
    fn check_warm(
        read: Result<()>,
        cached: bool,
        vma: &Vma,
        file: &Arc<HostFileMap>,
        start: u64,
    ) -> core::result::Result<(), Stop> {
        match read {
            Err(Errno::EAGAIN) if cached => {
                let (file, offset) = (file.clone(), vma.object_offset(start));
                // Whatever comes of it: the page is read then, and if the host has to wait for it, so has this CPU.
                let warm = move || {
                    let _ =
                        blocking::call(hc::ASYNC_WARM, [file.handle().arg(), offset, AROUND_PAGES * PAGE]);
                };
                Err(Stop::Away(Away::Elsewhere(Box::new(warm))))
            }
            read => Ok(read?),
        }
    }

    /// A fault on a private mapping of a file: its own copy for a write, or the sandbox's with those around it. With the first one
    /// comes what there is already of the file.
    pub(super) fn populate_copies(
        &mut self,
        vma: &Vma,
        page: u64,
        access: Access,
        file: &Arc<HostFileMap>,
        copies: &Copies,
    ) -> core::result::Result<Around, Stop> {
        let index = vma.object_offset(page) / PAGE;
        let size = file.size_for(vma.object_offset(page))?;
        // Few pages of data that may be written are, and soon.
        let is_data = vma.prot.contains(Prot::WRITE) && vma.len() <= DATA_PAGES * PAGE;
        let is_there = || copies.store.frame_in_memory(index).is_some();
        let around =
            if access == Access::Write || is_data && frames::available() >= SCARCE_FRAMES && is_there() {
                self.mark_own(vma);
                self.populate_own(vma, page, size, file, copies)?
            } else {
                self.populate_shared(vma, page, size, file, copies)?
            };
        self.show_file(vma, around, size)
    }

    /// Shows the copy of a page, with those around it.
    fn populate_shared(
        &mut self,
        vma: &Vma,
        page: u64,
        size: u64,
        file: &Arc<HostFileMap>,
        copies: &Copies,
    ) -> core::result::Result<Around, Stop> {
        let is_alone = !file.is_for_others_than(self.id) && copies.store.resident_bytes() < MUCH_BYTES;
        let around = match frames::available() {
            ..SCARCE_FRAMES => 1,
            _ if is_alone => ALONE_PAGES,
            _ => AROUND_PAGES,
        };
        let start = (page / PAGE / around * around * PAGE).max(vma.start);
        let end = ((page / PAGE / around + 1) * around * PAGE).min(vma.end).min(behind_file(vma, size));
        let index = vma.object_offset(page) / PAGE;
        let index_of = |addr: u64| vma.object_offset(addr) / PAGE;
        let cached = self.may_go_cold();
        let filled = copies.fill(file.handle(), index_of(start), index_of(end), index, cached);
        Self::check_warm(filled, cached, vma, file, start)?;
        let frame = copies.store.frame_anywhere_if_present(index)?.ok_or(Errno::EIO)?;
        check_here(copies, &frame, index)?;
        let flags = vma.entry_flags(false);
        self.install_frame(page, frame, flags)?;
        for addr in (start..end).step_by(PAGE_BYTES).filter(|addr| *addr != page) {
            if self.table.get(addr) == Entry::NONE
                && let Some(frame) = copies.store.frame_in_memory(index_of(addr))
            {
                self.install_frame(addr, frame, flags)?;
            }
        }
        Ok((start, end))
    }

    /// The first touch of a mapping of a file, which brought `around` in: what is there of the file already is mapped, in this
    /// mapping and in those that follow on it and are not written.
    fn show_file(&mut self, vma: &Vma, around: Around, size: u64) -> core::result::Result<Around, Stop> {
        if vma.flags.contains(VmaFlags::SHOWN) || frames::available() < SCARCE_FRAMES {
            return Ok(around);
        }
        self.mark_shown(vma.start);
        let mut pieces = 0;
        let after = (around.1 + WIDE_PAGES * PAGE).min(vma.end);
        let mut end = self.map_there(vma, size, (around.1, after), &mut pieces)?;
        let before = around.0.saturating_sub(WIDE_PAGES * PAGE).max(vma.start);
        self.map_there(vma, size, (before, around.0), &mut pieces)?;
        let mut start = before;
        let is_beside = |other: &Vma| {
            let is_same = match (&other.object, &vma.object) {
                (Some(other), Some(ours)) => other.address() == ours.address(),
                _ => false,
            };
            is_same
                && !other.is_shared()
                && !other.flags.contains(VmaFlags::SHOWN)
                && !other.prot.contains(Prot::WRITE)
        };
        let mut edge = vma.start;
        while let Some(other) =
            edge.checked_sub(1).and_then(|addr| self.find(addr)).filter(|vma| is_beside(vma)).cloned()
        {
            edge = other.start;
            self.mark_shown(other.start);
            start = other.end.saturating_sub(WIDE_PAGES * PAGE).max(other.start);
            self.map_there(&other, size, (start, other.end), &mut pieces)?;
        }
        let mut edge = vma.end;
        while let Some(other) = self.find(edge).filter(|vma| is_beside(vma)).cloned() {
            edge = other.end;
            self.mark_shown(other.start);
            end = (other.start + WIDE_PAGES * PAGE).min(other.end);
            self.map_there(&other, size, (other.start, end), &mut pieces)?;
        }
        Ok((start, end))
    }

    fn mark_shown(&mut self, start: u64) {
        if let Some(vma) = self.vmas.get_mut(&start) {
            vma.flags |= VmaFlags::SHOWN;
        }
    }

    /// Maps pages of a range of a mapping that are there already, as long as they are few `pieces`; how far it came.
    fn map_there(
        &mut self,
        vma: &Vma,
        size: u64,
        (start, end): Around,
        pieces: &mut usize,
    ) -> core::result::Result<u64, Stop> {
        let Some(MemoryObject::Host(file)) = &vma.object else { return Ok(start) };
        let Some(copies) = file.copies().filter(|_| vma.prot.intersects(Prot::READ | Prot::EXEC)) else {
            return Ok(start);
        };
        let flags = vma.entry_flags(false);
        let mut next = None;
        for addr in (start..end.min(behind_file(vma, size))).step_by(PAGE_BYTES) {
            if self.table.get(addr) != Entry::NONE {
                continue;
            }
            let Some(frame) = copies.store.frame_in_memory(vma.object_offset(addr) / PAGE) else { continue };
            let at = (addr, frame.addr());
            *pieces += usize::from(next != Some(at));
            if *pieces > WIDE_PIECES {
                return Ok(addr);
            }
            next = Some((at.0 + PAGE, at.1 + PAGE));
            self.install_frame(addr, frame, flags)?;
        }
        Ok(end)
    }

    fn populate_own(
        &mut self,
        vma: &Vma,
        page: u64,
        size: u64,
        file: &Arc<HostFileMap>,
        copies: &Copies,
    ) -> core::result::Result<Around, Stop> {
        let index = vma.object_offset(page) / PAGE;
        if file.is_for_others_than(self.id)
            && frames::available() >= SCARCE_FRAMES
            && !copies.store.holds(index)
        {
            // Others will want it, too.
            let (first, last) = data_around(vma, page);
            let last = last.min(behind_file(vma, size));
            let (first, last) = (vma.object_offset(first) / PAGE, vma.object_offset(last) / PAGE);
            let cached = self.may_go_cold();
            let filled = copies.fill(file.handle(), first, last, index, cached);
            Self::check_warm(filled, cached, vma, file, page)?;
        }
        let own = match copies.store.frame_anywhere_if_present(index)? {
            Some(frame) => {
                check_here(copies, &frame, index)?;
                own_copy(&frame)?
            }
            None => {
                let own = frames::alloc_zeroed().ok_or(Errno::ENOMEM)?;
                let cached = self.may_go_cold();
                let read = read_whole(file.handle(), index * PAGE, own.addr(), PAGE, cached);
                Self::check_warm(read, cached, vma, file, page)?;
                own
            }
        };
        self.install_frame(page, own, vma.entry_flags(true))?;
        self.own_data(vma, page, copies)
    }

    /// Makes pages around one of a private mapping's data its own, too, as far as that takes no waiting.
    pub(super) fn own_data(
        &mut self,
        vma: &Vma,
        page: u64,
        copies: &Copies,
    ) -> core::result::Result<Around, Stop> {
        if frames::available() < SCARCE_FRAMES {
            return Ok((page, page + PAGE));
        }
        let (start, end) = data_around(vma, page);
        for addr in (start..end).step_by(PAGE_BYTES).filter(|addr| *addr != page) {
            let entry = self.table.get(addr);
            let Some(frame) = copies.store.frame_in_memory(vma.object_offset(addr) / PAGE) else { continue };
            let shown =
                entry.has(Entry::PRESENT) && !entry.has(Entry::WRITABLE) && entry.phys() == frame.addr();
            if entry == Entry::NONE || shown {
                // The page that counts is there.
                let Ok(own) = own_copy(&frame) else { break };
                self.install_frame(addr, own, vma.entry_flags(true))?;
                if shown {
                    self.freed.push(frame.frame());
                }
            }
        }
        Ok((start, end))
    }
}
