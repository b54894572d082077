//! The objects behind mappings and in-memory files: stores of frames, and host files.

use abi::hostcall as hc;
use abi::word::to_usize;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::arrival;
use super::aspace::AddressSpace;
use super::commit::Promise;
use super::io::IoBuf;
use super::mappers::Mappers;
use super::page::{PAGE, PAGE_BYTES};
use super::pages::Pages;
use super::pagetable::Region;
use super::physical::frames::{self, Frame, FrameRef};
use super::physical::residency;
use super::quota::Quota;
use super::window::{self, HostFileMap};
use crate::errno::{Errno, Result};
use crate::mutex::{Mutex, MutexGuard};
use crate::rank::Rank;
use crate::sched::work;
use crate::spin::{Once, SpinLock};

/// The object behind a mapping.
#[derive(Clone)]
pub enum MemoryObject {
    /// Shared anonymous memory, tmpfs and memfd files.
    Store(Arc<PageStore>),
    /// A file of the host, through the file window.
    Host(Arc<HostFileMap>),
}

impl MemoryObject {
    /// Whether both are the same object.
    pub fn same(&self, other: &Self) -> bool {
        self.address() == other.address()
    }

    /// Its address: its identity while anyone holds it.
    pub fn address(&self) -> *const () {
        match self {
            Self::Store(store) => Arc::as_ptr(store).cast(),
            Self::Host(file) => Arc::as_ptr(file).cast(),
        }
    }

    /// Remembers that `aspace` maps this, so that it hears of truncation.
    pub fn add_mapper(&self, aspace: &Arc<AddressSpace>) {
        match self {
            Self::Store(store) => store.mappers.add(aspace),
            Self::Host(file) => file.mappers().add(aspace),
        }
    }

    /// Gives the object the name `/proc/PID/maps` shows for its mappings; the first name stays.
    pub fn set_label(&self, path: &[u8]) {
        match self {
            Self::Store(store) => store.label.call_once(|| path.into()),
            Self::Host(file) => file.label.call_once(|| path.into()),
        };
    }

    /// See [`Self::set_label`].
    pub fn label(&self) -> Option<&[u8]> {
        let label = match self {
            Self::Store(store) => store.label.get(),
            Self::Host(file) => file.label.get(),
        };
        label.map(|path| &**path)
    }

    /// Device and inode number of a host file; zeros otherwise.
    pub fn identity(&self) -> (u64, u64) {
        match self {
            Self::Store(_) => (0, 0),
            Self::Host(file) => file.identity(),
        }
    }
}

/// Pages of an object that come back together; aligned.
const AROUND_PAGES: u64 = 32;

/// Frames by page index: the content of a tmpfs file, a memfd, or shared anonymous memory. Holes read as zeros.
pub struct PageStore {
    pages: SpinLock<Pages>,
    size: AtomicU64,
    /// Address spaces that map this, to be told of truncation.
    mappers: Mappers,
    label: Once<Box<[u8]>>,
    quota: Option<Arc<Quota>>,
    /// Its pages, if they were promised when it was made.
    _promise: Option<Promise>,
    /// Its content stays (`F_SEAL_WRITE`). Changed under the next lock and that of the pages.
    is_sealed: AtomicBool,
    /// Held while that is decided, and while a mapping is made that may be written through.
    sealing: Mutex<()>,
    /// The class of its content, for the host: [`hc::CLASS_STORE`], or [`hc::CLASS_FILE`].
    class: u8,
}

static COPIES: AtomicUsize = AtomicUsize::new(0);

/// All stores by their address, which is theirs as long as they are listed.
static STORES: SpinLock<BTreeMap<usize, Weak<PageStore>>> = SpinLock::new(Rank::PageStores, BTreeMap::new());

impl PageStore {
    /// An empty store of `size` bytes, all holes.
    pub fn new(size: u64) -> Arc<Self> {
        Self::with_quota(size, None)
    }

    /// Makes an empty store of `size` bytes, all holes, whose pages count against `quota`.
    pub fn with_quota(size: u64, quota: Option<Arc<Quota>>) -> Arc<Self> {
        Self::of_class(hc::CLASS_STORE, size, quota, None)
    }

    /// An empty store of memory without a file, all of which is promised; `ENOMEM`.
    pub fn promised(size: u64) -> Result<Arc<Self>> {
        let promise = Promise::of(size.div_ceil(PAGE))?;
        Ok(Self::of_class(hc::CLASS_STORE, size, None, Some(promise)))
    }

    /// An empty store for copies of a file's pages.
    pub(super) fn of_copies() -> Arc<Self> {
        Self::of_class(hc::CLASS_FILE, u64::MAX, None, None)
    }

    fn of_class(class: u8, size: u64, quota: Option<Arc<Quota>>, promise: Option<Promise>) -> Arc<Self> {
        let store = Arc::new(Self {
            pages: SpinLock::new(Rank::Pages, Pages::new()),
            size: AtomicU64::new(size),
            mappers: Mappers::new(),
            label: Once::new(),
            quota,
            _promise: promise,
            is_sealed: AtomicBool::new(false),
            sealing: Mutex::new(Rank::Sealing, ()),
            class,
        });
        STORES.lock().insert(Arc::as_ptr(&store) as usize, Arc::downgrade(&store));
        store
    }

    /// The address spaces that map it.
    pub(super) fn mappers(&self) -> &Mappers {
        &self.mappers
    }

    fn give_back(&self, pages: usize) {
        if let Some(quota) = &self.quota {
            quota.give_back(pages as u64);
        }
    }

    /// The class of its content: [`hc::CLASS_STORE`], or [`hc::CLASS_FILE`].
    pub fn class(&self) -> u8 {
        self.class
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// How many of these pages are holes.
    pub fn holes(&self, pages: &Range<u64>) -> u64 {
        let all = pages.end.saturating_sub(pages.start);
        let held = self.pages.lock().from(pages.start).take_while(|(page, _)| *page < pages.end).count();
        all - held as u64
    }

    /// How many of these pages are no holes, and their content not away, as far as `most` of them were looked at; and the page to go
    /// on from if there may be more.
    pub fn count_in_memory(&self, pages: &Range<u64>, most: usize) -> (u64, Option<u64>) {
        let held = self.pages.lock();
        let mut count = 0;
        let inside = held.from(pages.start).take_while(|(page, _)| *page < pages.end);
        for (looks, (page, frame)) in inside.enumerate() {
            if looks == most {
                return (count, Some(page));
            }
            count += u64::from(!residency::is_swapped(frame));
        }
        (count, None)
    }

    /// Bytes of frames it holds.
    pub fn resident_bytes(&self) -> u64 {
        self.pages.lock().count() as u64 * PAGE
    }

    /// The frame of page `index` with a reference added for the caller, allocating it when it is a hole. The store
    /// keeps its own reference. `Errno::ENOMEM` when there is no frame.
    pub fn frame(&self, index: u64) -> Result<FrameRef> {
        let frame = self.frame_anywhere(index)?;
        arrival::ensure(frame.frame());
        Ok(frame)
    }

    /// Gives the frame of a page as [`Self::frame`] does, but its content may be away.
    pub(super) fn frame_anywhere(&self, index: u64) -> Result<FrameRef> {
        let mut pages = self.pages.lock();
        let frame = match pages.get(index) {
            Some(frame) => frame,
            None => {
                if let Some(quota) = &self.quota {
                    quota.take(1)?;
                }
                let Some(frame) = frames::alloc_zeroed() else {
                    self.give_back(1);
                    return Err(Errno::ENOMEM);
                };
                // It is a hole, so the pages take over the reference.
                let frame = frame.keep();
                pages.fill(index, frame);
                frame
            }
        };
        FrameRef::share(frame)
    }

    /// The frame of page `index` as [`Self::frame`] gives it; `None` for a hole.
    pub(super) fn frame_if_present(&self, index: u64) -> Result<Option<FrameRef>> {
        let frame = self.frame_anywhere_if_present(index)?;
        frame.iter().for_each(|frame| arrival::ensure(frame.frame()));
        Ok(frame)
    }

    /// Gives the frame of a page as [`Self::frame_if_present`] does, but its content may be away.
    pub(super) fn frame_anywhere_if_present(&self, index: u64) -> Result<Option<FrameRef>> {
        self.pages.lock().get(index).map(FrameRef::share).transpose()
    }

    /// The frames of the pages around page `index` whose content is away, with a reference to each: by its number alone one
    /// could be somebody else's by the time it is claimed.
    pub(super) fn absent_around(&self, index: u64) -> Vec<FrameRef> {
        let mut found = Vec::new();
        if found.try_reserve_exact(to_usize(AROUND_PAGES)).is_err() {
            return found;
        }
        let first = index / AROUND_PAGES * AROUND_PAGES;
        let pages = self.pages.lock();
        let around = pages.from(first).take_while(|(page, _)| *page < first + AROUND_PAGES);
        let absent = around.filter(|(page, frame)| *page != index && residency::is_swapped(*frame));
        found.extend(absent.filter_map(|(_, frame)| FrameRef::share(frame).ok()));
        found
    }

    /// Gives the frame of page `index` with a reference, if its content is in memory; without any wait. `None`: it is a
    /// hole, its content is away, or its references are full.
    pub(super) fn frame_in_memory(&self, index: u64) -> Option<FrameRef> {
        let pages = self.pages.lock();
        let frame = pages.get(index).filter(|frame| !residency::is_swapped(*frame))?;
        FrameRef::share(frame).ok()
    }

    /// Whether page `index` is no hole, and its content not away.
    pub fn is_in_memory(&self, index: u64) -> bool {
        self.pages.lock().get(index).is_some_and(|frame| !residency::is_swapped(frame))
    }

    /// Whether page `index` is no hole.
    pub(super) fn holds(&self, index: u64) -> bool {
        self.pages.lock().get(index).is_some()
    }

    /// Fills the holes among the pages from `index` on with these frames.
    pub(super) fn put_all(&self, index: u64, frames: impl IntoIterator<Item = FrameRef>) {
        let mut pages = self.pages.lock();
        let before = pages.count();
        for (index, frame) in (index..).zip(frames) {
            if pages.fill(index, frame.frame()) {
                frame.keep();
            }
        }
        self.counted().fetch_add(pages.count() - before, Ordering::Relaxed);
    }

    /// Counts the copies of files' pages in all stores; of other pages nobody asks how many there are.
    fn counted(&self) -> &'static AtomicUsize {
        static OTHERS: AtomicUsize = AtomicUsize::new(0);
        if self.class == hc::CLASS_FILE { &COPIES } else { &OTHERS }
    }

    /// Copies of files' pages in all stores.
    pub(super) fn copies() -> usize {
        COPIES.load(Ordering::Relaxed)
    }

    /// Makes everything a hole; mappings keep what they show.
    pub(super) fn forget(&self) {
        let pages = core::mem::take(&mut *self.pages.lock());
        self.counted().fetch_sub(pages.count(), Ordering::Relaxed);
        frames::drop_refs(pages.iter().map(|(_, frame)| frame));
    }

    /// Makes holes of the pages that nobody else refers to.
    pub(super) fn forget_unused(&self) {
        let mut pages = self.pages.lock();
        let before = pages.count();
        pages.remove(0, u64::MAX, |frame| {
            let unused = frames::is_exclusive(frame);
            if unused {
                drop(FrameRef::kept(frame));
            }
            unused
        });
        self.counted().fetch_sub(before - pages.count(), Ordering::Relaxed);
    }

    /// All stores there are.
    pub fn all() -> Vec<Arc<Self>> {
        STORES.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Calls `f` for each of its frames.
    pub fn for_each_frame(&self, mut f: impl FnMut(Frame)) {
        self.pages.lock().iter().for_each(|(_, frame)| f(frame));
    }

    /// Reads from `offset` into `buf`, up to the end of the store.
    pub fn read(&self, offset: u64, buf: &mut IoBuf<'_>) -> Result<usize> {
        let size = self.size();
        let mut done = 0usize;
        while !buf.is_empty() {
            let at = offset + done as u64;
            if at >= size {
                break;
            }
            let inside = (at % PAGE) as usize;
            let len = buf.remaining().min(PAGE_BYTES - inside).min(to_usize(size - at));
            let moved = match self.frame_if_present(at / PAGE) {
                Ok(Some(frame)) => buf.fill_from_frame(frame.frame(), inside, len),
                Ok(None) => buf.fill_zeros(len),
                Err(error) => Err(error),
            };
            match moved {
                Ok(()) => done += len,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes `buf` at `offset`, growing the store.
    pub fn write(&self, offset: u64, buf: &mut IoBuf<'_>) -> Result<usize> {
        let mut done = 0usize;
        while !buf.is_empty() {
            let at = offset + done as u64;
            let inside = (at % PAGE) as usize;
            let len = buf.remaining().min(PAGE_BYTES - inside);
            let frame = self.frame(at / PAGE).map_err(|_| Errno::ENOSPC);
            let moved = frame.and_then(|frame| buf.drain_to_frame(frame.frame(), inside, len));
            match moved {
                Ok(()) => done += len,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            self.size.fetch_max(at + len as u64, Ordering::AcqRel);
        }
        Ok(done)
    }

    /// Changes the size; pages behind the new end are freed and unmapped everywhere.
    pub fn truncate(&self, size: u64) {
        let old = self.size.swap(size, Ordering::AcqRel);
        if size < old {
            self.punch(size.div_ceil(PAGE), u64::MAX);
            let inside = (size % PAGE) as usize;
            if inside != 0
                && let Ok(Some(frame)) = self.frame_if_present(size / PAGE)
            {
                frames::zero_tail(frame.frame(), inside);
            }
        }
    }

    /// Makes `[from, to)` (bytes) a hole, keeping the size.
    pub fn punch_hole(&self, from: u64, to: u64) {
        let (first, last) = (from.div_ceil(PAGE), to / PAGE);
        if first < last {
            self.punch(first, last);
        }
        let edges = if from / PAGE == to / PAGE {
            [(from, to), (to, to)]
        } else {
            [(from, first.saturating_mul(PAGE)), (last * PAGE, to)]
        };
        for (start, end) in edges {
            if start < end
                && let Ok(Some(frame)) = self.frame_if_present(start / PAGE)
            {
                frames::zero_range(frame.frame(), (start % PAGE) as usize, to_usize(end - start));
            }
        }
    }

    /// From now on programs free no pages of it by a mapping, and make no mapping to write to it. `EBUSY`: they have one,
    /// or may make one writable, and `beside_writers` does not allow that.
    pub fn seal(&self, beside_writers: bool) -> Result<()> {
        let _sealing = self.sealing.lock();
        if !beside_writers && self.is_mapped_writable() {
            return Err(Errno::EBUSY);
        }
        let _pages = self.pages.lock();
        self.is_sealed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the store is sealed, and a guard: as long as it lives, that does not change.
    pub(super) fn hold_seal(&self) -> (bool, MutexGuard<'_, ()>) {
        let sealing = self.sealing.lock();
        (self.is_sealed.load(Ordering::Relaxed), sealing)
    }

    /// Frees the pages `[first, last)` for a program that maps them. `EPERM`: it is sealed.
    pub(super) fn remove_pages(&self, first: u64, last: u64) -> Result<()> {
        let mut from = first;
        while let Some(start) = self.next_page(from).filter(|start| *start < last) {
            from = start.saturating_add(FREED_AT_ONCE).min(last);
            let mut pages = self.pages.lock();
            if self.is_sealed.load(Ordering::Relaxed) {
                return Err(Errno::EPERM);
            }
            let freed = take_out(&mut pages, start, from);
            drop(pages);
            self.free(freed, start, from);
            work::count_or_end(FREED_UNITS)?;
        }
        if self.is_sealed.load(Ordering::Relaxed) { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Frees the pages `[first, last)`, so many at a time that others go on in between. The caller may sleep.
    fn punch(&self, first: u64, last: u64) {
        let mut from = first;
        while let Some(start) = self.next_page(from).filter(|start| *start < last) {
            from = start.saturating_add(FREED_AT_ONCE).min(last);
            let freed = take_out(&mut self.pages.lock(), start, from);
            self.free(freed, start, from);
            work::count(FREED_UNITS);
        }
    }

    /// The first page from `index` on that is no hole.
    fn next_page(&self, index: u64) -> Option<u64> {
        self.pages.lock().from(index).next().map(|(page, _)| page)
    }

    /// Frees what was taken out of `[first, last)`.
    fn free(&self, freed: Vec<Frame>, first: u64, last: u64) {
        if freed.is_empty() {
            return;
        }
        self.mappers.unmap((&raw const *self).cast(), first, last);
        self.give_back(freed.len());
        frames::drop_refs(freed);
    }

    /// The next offset at or after `offset` that is data (or a hole, if `hole`); the end of the store counts as a hole.
    pub fn seek(&self, offset: u64, hole: bool) -> Option<u64> {
        let size = self.size();
        if offset >= size {
            return None;
        }
        let pages = self.pages.lock();
        let mut index = offset / PAGE;
        if hole {
            index +=
                (index..).zip(pages.from(index)).take_while(|(next, (page, _))| next == page).count() as u64;
            Some((index * PAGE).max(offset).min(size))
        } else {
            let (found, _) = pages.from(index).next()?;
            let at = (found * PAGE).max(offset);
            (at < size).then_some(at)
        }
    }

    /// Whether a shared mapping of it is writable, or may be made so.
    fn is_mapped_writable(&self) -> bool {
        let object = (&raw const *self).cast();
        self.mappers.any(|mapper| mapper.maps_writable(object))
    }
}

/// Pages that are freed in one go, and what that is as work.
const FREED_AT_ONCE: u64 = 1 << 13;
const FREED_UNITS: u32 = 2048;

fn take_out(pages: &mut Pages, first: u64, last: u64) -> Vec<Frame> {
    let mut freed = Vec::new();
    pages.remove(first, last, |frame| {
        freed.push(frame);
        true
    });
    freed
}

impl Drop for PageStore {
    fn drop(&mut self) {
        STORES.lock().remove(&(&raw const *self as usize));
        let pages = core::mem::take(&mut *self.pages.lock());
        self.counted().fetch_sub(pages.count(), Ordering::Relaxed);
        self.give_back(pages.count());
        frames::drop_refs(pages.iter().map(|(_, frame)| frame));
    }
}

/// Copies one page into a fresh frame (the private copy of a file's page).
pub fn copy_page(to: &FrameRef, from: Region) -> Result<()> {
    copy_to(to.frame(), from)
}

/// Copies one page as [`copy_page`] does, to a frame that the caller has a reference to.
pub(super) fn copy_to(to: Frame, from: Region) -> Result<()> {
    match from {
        Region::Frame(frame) => {
            frames::copy(to, frame);
            Ok(())
        }
        Region::Window(phys) | Region::Template(phys) => window::copy(to.addr(), phys, PAGE_BYTES),
    }
}
