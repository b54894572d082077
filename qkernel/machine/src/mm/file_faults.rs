//! Faults on private mappings of host files: the pages that they show are the sandbox's [`Copies`], and what is written is the
//! address space's own.

use abi::hostcall as hc;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::arrival::{self, How};
use super::aspace::Space;
use super::away::{Away, Stop};
use super::copies::{self, Copies};
use super::fault::Around;
use super::object::MemoryObject;
use super::page::{Access, PAGE, PAGE_BYTES};
use super::pagetable::Entry;
use super::physical::frames::{self, FrameRef, SCARCE_FRAMES};
use super::vma::{Prot, Vma, VmaFlags};
use super::window::HostFileMap;
use crate::blocking;
use crate::errno::Errno;
use crate::sched;

/// Pages that a fault copies and maps, at most; aligned.
const AROUND_PAGES: u64 = 32;
/// Pages that a fault copies and maps, at most, of a file that one address space uses: the faults that more would save
/// cost no more than pages that nobody needs.
const ALONE_PAGES: u64 = 8;
/// Of a file with so many bytes of copies much is needed.
const MUCH_BYTES: u64 = 2 << 20;
/// A fault also maps what is there already of its mapping, so many pages to either side …
const WIDE_PAGES: u64 = 512;
/// … in so many pieces: each is an operation of the host's.
const WIDE_PIECES: usize = 32;
/// Pages of a private mapping's data that its first write to one of them copies; aligned. Most of it is written soon, by whoever
/// binds a library to its place.
const DATA_PAGES: u64 = 8;

/// A page of a private mapping that is touched.
struct Touched<'a> {
    vma: &'a Vma,
    page: u64,
    file: &'a Arc<HostFileMap>,
    copies: &'a Copies,
    /// The file's, in bytes.
    size: u64,
}

impl Touched<'_> {
    fn index(&self) -> u64 {
        self.index_of(self.page)
    }

    /// The page of the file that an address shows.
    fn index_of(&self, addr: u64) -> u64 {
        self.vma.object_offset(addr) / PAGE
    }

    /// The aligned group of so many pages that it is in, as far as they are the mapping's and the file's.
    fn group(&self, pages: u64) -> Around {
        let first = self.page / PAGE / pages * pages;
        let end = ((first + pages) * PAGE).min(self.vma.end).min(behind_file(self.vma, self.size));
        ((first * PAGE).max(self.vma.start), end)
    }

    /// The copy of it, if there is one, with its content; that comes otherwise, with those around it.
    fn copy(&self) -> Result<Option<FrameRef>, Stop> {
        let store = self.copies.store();
        let Some(frame) = store.frame_anywhere_if_present(self.index())? else { return Ok(None) };
        let around = store.absent_around(self.index());
        if let Some(away) = Away::of(frame.frame(), around.iter().map(FrameRef::frame), How::Around) {
            return Err(Stop::Away(away));
        }
        arrival::touched(frame.frame());
        Ok(Some(frame))
    }

    /// Checks the result of a read of the file's pages from `start` on. If `cached`, and they could not be had without
    /// waiting for a disk, the answer is to wait for them without the space's lock, once.
    fn check_warm(&self, read: Result<(), Errno>, cached: bool, start: u64) -> Result<(), Stop> {
        match read {
            Err(Errno::EAGAIN) if cached => {
                let (file, offset) = (self.file.clone(), self.vma.object_offset(start));
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
}

/// The address behind the last page of a mapping that its file, of this size, has.
fn behind_file(vma: &Vma, size: u64) -> u64 {
    vma.start.saturating_add(size.next_multiple_of(PAGE).saturating_sub(vma.offset))
}

/// The pages of a mapping's data that are written together with one.
fn data_around(vma: &Vma, page: u64) -> Around {
    let first = page / PAGE / DATA_PAGES * DATA_PAGES;
    ((first * PAGE).max(vma.start), ((first + DATA_PAGES) * PAGE).min(vma.end))
}

fn pages_of((start, end): Around) -> impl Iterator<Item = u64> {
    (start..end).step_by(PAGE_BYTES)
}

/// Whether an entry shows this frame of a file's, which the mapping may not write.
fn is_shown(entry: Entry, frame: &FrameRef) -> bool {
    entry.has(Entry::PRESENT) && !entry.has(Entry::WRITABLE) && entry.held() == Some(frame.frame())
}

/// So many frames for pages of data, in a row if there are such; none where memory is scarce.
fn data_frames(wanted: usize) -> Vec<FrameRef> {
    let mut found = Vec::new();
    if frames::available() >= SCARCE_FRAMES && found.try_reserve_exact(wanted).is_ok() {
        while let Some(run) = frames::alloc_any_run(wanted - found.len()) {
            found.extend(run);
        }
    }
    found
}

impl Space {
    /// Whether pages of a file are only to be had if the host need not wait for a disk: other tasks wait for this CPU, and this
    /// one has not waited yet.
    fn may_go_cold(&self) -> bool {
        !self.has_waited && sched::has_waiting()
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
    ) -> Result<Around, Stop> {
        let size = file.size_for(vma.object_offset(page))?;
        let touched = Touched { vma, page, file, copies, size };
        // Few pages of data that may be written are, and soon.
        let is_data = vma.prot.contains(Prot::WRITE) && vma.len() <= DATA_PAGES * PAGE;
        let is_there = || copies.store().frame_in_memory(touched.index()).is_some();
        let around =
            if access == Access::Write || is_data && frames::available() >= SCARCE_FRAMES && is_there() {
                self.mark_own(vma);
                self.populate_own(&touched)?
            } else {
                self.populate_shared(&touched)?
            };
        self.show_file(vma, around, size)
    }

    /// Copies those of the pages of a range that are not there yet; that which is touched must come.
    fn fill(&self, touched: &Touched<'_>, (start, end): Around) -> Result<(), Stop> {
        let cached = self.may_go_cold();
        let (first, last) = (touched.index_of(start), touched.index_of(end));
        let filled = touched.copies.fill(touched.file.handle(), first, last, touched.index(), cached);
        touched.check_warm(filled, cached, start)
    }

    /// Shows the copy of a page, with those around it.
    fn populate_shared(&mut self, touched: &Touched<'_>) -> Result<Around, Stop> {
        let Touched { vma, page, copies, .. } = *touched;
        let is_alone = !copies.are_for_others_than(self.id) && copies.store().resident_bytes() < MUCH_BYTES;
        let pages = match frames::available() {
            ..SCARCE_FRAMES => 1,
            _ if is_alone => ALONE_PAGES,
            _ => AROUND_PAGES,
        };
        let (start, end) = touched.group(pages);
        self.fill(touched, (start, end))?;
        let frame = touched.copy()?.ok_or(Errno::EIO)?;
        let flags = vma.entry_flags(false);
        self.install_frame(page, frame, flags)?;
        for addr in (start..end).step_by(PAGE_BYTES).filter(|addr| *addr != page) {
            if self.table.get(addr) == Entry::NONE
                && let Some(frame) = copies.store().frame_in_memory(touched.index_of(addr))
            {
                self.install_frame(addr, frame, flags)?;
            }
        }
        Ok((start, end))
    }

    /// Makes a page of a mapping's own of the file's, with those around it.
    fn populate_own(&mut self, touched: &Touched<'_>) -> Result<Around, Stop> {
        let Touched { vma, page, file, copies, .. } = *touched;
        if copies.are_for_others_than(self.id)
            && frames::available() >= SCARCE_FRAMES
            && !copies.store().holds(touched.index())
        {
            // Others will want it, too.
            self.fill(touched, touched.group(DATA_PAGES))?;
        }
        let Some(frame) = touched.copy()? else {
            let own = frames::alloc_zeroed().ok_or(Errno::ENOMEM)?;
            let cached = self.may_go_cold();
            let read = copies::read_whole(file.handle(), touched.index() * PAGE, own.addr(), PAGE, cached);
            touched.check_warm(read, cached, page)?;
            self.install_frame(page, own, vma.entry_flags(true))?;
            return self.own_data(vma, page, copies);
        };
        // What is written together lies together.
        let around = data_around(vma, page);
        let wanted = || pages_of(around).filter(|addr| *addr == page || self.may_be_own(vma, *addr, copies));
        let mut frames = data_frames(wanted().count());
        let at = wanted().take_while(|addr| *addr != page).count();
        let own =
            if at < frames.len() { frames.remove(at) } else { frames::alloc_any().ok_or(Errno::ENOMEM)? };
        frames::copy(own.frame(), frame.frame());
        self.install_frame(page, own, vma.entry_flags(true))?;
        self.own_data_in(vma, page, copies, frames)
    }

    /// Makes pages around one of a private mapping's data its own, too, as far as that takes no waiting.
    pub(super) fn own_data(&mut self, vma: &Vma, page: u64, copies: &Copies) -> Result<Around, Stop> {
        let around = pages_of(data_around(vma, page));
        let wanted = around.filter(|addr| *addr != page && self.may_be_own(vma, *addr, copies)).count();
        self.own_data_in(vma, page, copies, data_frames(wanted))
    }

    /// Whether the mapping has no page of its own there yet, and the file's is in memory.
    fn may_be_own(&self, vma: &Vma, addr: u64, copies: &Copies) -> bool {
        let entry = self.table.get(addr);
        let is_there = |frame: &FrameRef| entry == Entry::NONE || is_shown(entry, frame);
        copies.store().frame_in_memory(vma.object_offset(addr) / PAGE).is_some_and(|frame| is_there(&frame))
    }

    /// Makes pages around one its own as [`Self::own_data`] does, by copies in these frames, one after the other; there may
    /// be fewer frames than pages.
    fn own_data_in(
        &mut self,
        vma: &Vma,
        page: u64,
        copies: &Copies,
        frames: Vec<FrameRef>,
    ) -> Result<Around, Stop> {
        if frames.is_empty() {
            return Ok((page, page + PAGE));
        }
        let around = data_around(vma, page);
        let mut frames = frames.into_iter();
        for addr in pages_of(around).filter(|addr| *addr != page) {
            let entry = self.table.get(addr);
            let Some(frame) = copies.store().frame_in_memory(vma.object_offset(addr) / PAGE) else {
                continue;
            };
            let shown = is_shown(entry, &frame);
            if entry == Entry::NONE || shown {
                // The page that counts is there.
                let Some(own) = frames.next() else { break };
                frames::copy(own.frame(), frame.frame());
                self.install_frame(addr, own, vma.entry_flags(true))?;
                if shown {
                    self.freed.push(frame.frame());
                }
            }
        }
        Ok(around)
    }

    /// The first touch of a mapping of a file, which brought `around` in: what is there of the file already is mapped, in this
    /// mapping and in those that follow on it and are not written.
    fn show_file(&mut self, vma: &Vma, around: Around, size: u64) -> Result<Around, Stop> {
        if vma.flags.contains(VmaFlags::SHOWN) || frames::available() < SCARCE_FRAMES {
            return Ok(around);
        }
        self.mark_shown(vma.start);
        let mut pieces = 0;
        let start = around.0.saturating_sub(WIDE_PAGES * PAGE).max(vma.start);
        let end = (around.1 + WIDE_PAGES * PAGE).min(vma.end);
        self.map_there(vma, size, (around.1, end), &mut pieces)?;
        self.map_there(vma, size, (start, around.0), &mut pieces)?;
        let mut shown = (start, end);
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
            shown.0 = other.end.saturating_sub(WIDE_PAGES * PAGE).max(other.start);
            self.map_there(&other, size, (shown.0, other.end), &mut pieces)?;
        }
        let mut edge = vma.end;
        while let Some(other) = self.find(edge).filter(|vma| is_beside(vma)).cloned() {
            edge = other.end;
            self.mark_shown(other.start);
            shown.1 = (other.start + WIDE_PAGES * PAGE).min(other.end);
            self.map_there(&other, size, (other.start, shown.1), &mut pieces)?;
        }
        Ok(shown)
    }

    fn mark_shown(&mut self, start: u64) {
        if let Some(vma) = self.vmas.get_mut(&start) {
            vma.flags |= VmaFlags::SHOWN;
        }
    }

    /// Maps pages of a range of a mapping that are there already, as long as they are few `pieces`.
    fn map_there(
        &mut self,
        vma: &Vma,
        size: u64,
        (start, end): Around,
        pieces: &mut usize,
    ) -> Result<(), Stop> {
        let Some(MemoryObject::Host(file)) = &vma.object else { return Ok(()) };
        let Some(copies) = file.copies().filter(|_| vma.prot.intersects(Prot::READ | Prot::EXEC)) else {
            return Ok(());
        };
        let flags = vma.entry_flags(false);
        let mut next = None;
        for addr in (start..end.min(behind_file(vma, size))).step_by(PAGE_BYTES) {
            if self.table.get(addr) != Entry::NONE {
                continue;
            }
            let Some(frame) = copies.store().frame_in_memory(vma.object_offset(addr) / PAGE) else {
                continue;
            };
            let at = (addr, frame.addr());
            *pieces += usize::from(next != Some(at));
            if *pieces > WIDE_PIECES {
                break;
            }
            next = Some((at.0 + PAGE, at.1 + PAGE));
            self.install_frame(addr, frame, flags)?;
        }
        Ok(())
    }
}
