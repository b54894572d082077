//! Page faults: demand zero, copy-on-write, file pages, stack growth, and filling the mirror (systrap).

use abi::layout::{USER_MAX, USER_MIN, WINDOW_CHUNK, WINDOW_PHYS};
use abi::run::{MAP_OP_MAP, MapOp, PF_FETCH, PF_PRESENT, PF_WRITE};
use abi::word::{low32, to_usize};
use alloc::vec::Vec;

use super::arrival::{self, Arrival, How};
use super::aspace::{AddressSpace, Space};
use super::away::{Ahead, Away, Stop};
use super::commit;
use super::object::{MemoryObject, copy_page};
use super::page::{Access, Fault, PAGE, PAGE_BYTES, page_down};
use super::pagetable::{Entry, Region};
use super::physical::frames::{self, Frame, FrameRef, FrameRun, SCARCE_FRAMES};
use super::physical::residency::{self, Residence};
use super::swap_window::Extent;
use super::template;
use super::touches;
use super::vma::{Vma, VmaFlags, mirror_prot};
use crate::config::FAULT_AROUND_MAX_PAGES;
use crate::errno::Errno;
use crate::platform;
use crate::sched;
use crate::upcall;

/// Pages a first, not sequential, fault on anonymous memory maps.
const FIRST_WINDOW_PAGES: u32 = 4;
/// Pages on each side that a mirror miss or a copy-on-write looks at.
const NEIGHBOURS: u64 = 31;
/// Pages to each side that a mirror miss in a mapping of a host file mirrors, too, as far as they are present.
const WIDE_PAGES: u64 = 512;
/// Operations by which the pages of one side ([`WIDE_PAGES`]) are mirrored, at most.
const WIDE_PIECES: usize = 3;
/// Pages of a scan that the host brings back by one operation (512 KiB); it carries out several at once.
const SCAN_PAGES: u64 = 128;
/// Pages kept free between a growing stack and the mapping below it.
const STACK_GUARD_PAGES: u64 = 256;
/// Pages of a folio that the host may bring at once, where addresses and frames are aligned alike (64 KiB).
const FOLIO_PAGES: u64 = 16;
/// Most stale (not zero) frames one fault clears.
const DIRTY_RUN_MAX: usize = 16;

impl AddressSpace {
    /// Makes the page that user code touched accessible, or says why it can't be.
    pub fn handle_fault(&self, addr: u64, error: u64) -> Result<(), Fault> {
        let access = match error {
            error if error & PF_WRITE != 0 => Access::Write,
            error if error & PF_FETCH != 0 => Access::Execute,
            _ => Access::Read,
        };
        self.attempt(|space| {
            let range = space.fault(addr, access)?;
            space.count_fault();
            if platform::current().mirrors() {
                space.mirror(page_down(addr), range);
            }
            Ok(())
        })
    }

    /// The error code of a fault that a program is told of. The processor's says of a page that is there but not shown yet that
    /// it is absent, and so would that of a page that a sleep put away: here a page is present if it was touched and may be
    /// read, as on Linux, and so is the kernel's half, of which nobody learns what is in it.
    pub fn error_code(&self, addr: u64, error: u64) -> u64 {
        let is_present = addr >= USER_MAX || self.lock().has_readable(addr);
        error & !PF_PRESENT | if is_present { PF_PRESENT } else { 0 }
    }

    /// User code will touch these addresses before long: what of them is to be had at once comes in, to be shown by one operation.
    pub fn expect(&self, touches: impl IntoIterator<Item = (u64, Access)>) {
        let mut space = self.lock();
        space.expect(touches);
        self.commit(&mut space);
    }
}

/// The pages `[start, end)` a fault brought in, or looked at.
pub(super) type Around = (u64, u64);

impl Space {
    /// See [`AddressSpace::expect`].
    pub(super) fn expect(&mut self, touches: impl IntoIterator<Item = (u64, Access)>) {
        if !platform::current().mirrors() {
            return;
        }
        let mut ranges = Vec::new();
        for (addr, access) in touches {
            if !self.table.get(page_down(addr)).has(Entry::SWAPPED)
                && let Ok(range) = self.fault(addr, access)
                && ranges.try_reserve(1).is_ok()
            {
                ranges.push((page_down(addr), range, access));
            }
        }
        // All of it is there now: nothing that is shown is replaced by what is touched next.
        for (page, range, access) in ranges {
            self.mirror_ahead(page, range, access);
        }
    }

    /// Whether there is a page at the address that may be read.
    fn has_readable(&self, addr: u64) -> bool {
        let permits = self.find(addr).is_some_and(|vma| !vma.prot.is_empty());
        permits && self.table.get(page_down(addr)).holds_page()
    }

    /// A fault of the running task has been answered.
    pub(super) fn count_fault(&self) {
        if platform::is_ready() {
            sched::current().sched().count_fault(self.is_retry);
        }
    }

    /// Makes the page of `addr` present with the access permitted.
    pub(super) fn fault(&mut self, addr: u64, access: Access) -> Result<Around, Stop> {
        let page = page_down(addr);
        let vma = self.vma_for(addr)?;
        if !vma.permits(access) {
            return Err(Fault::Forbidden { addr }.into());
        }
        if access == Access::Write && !vma.is_shared() && vma.object.is_some() {
            self.mark_own(&vma);
        }
        self.make_present(&vma, page, access).map_err(|stop| stop.at(addr))
    }

    pub(super) fn make_present(&mut self, vma: &Vma, page: u64, access: Access) -> Result<Around, Stop> {
        let mut near = (page.saturating_sub(NEIGHBOURS * PAGE), page + NEIGHBOURS * PAGE);
        let mut entry = self.table.get(page);
        if entry.has(Entry::SWAPPED) {
            near = self.swap_in(vma, page)?;
            entry = self.table.get(page);
        }
        if entry.has(Entry::PRESENT) {
            if access == Access::Write && !entry.has(Entry::WRITABLE) {
                self.make_writable(vma, page, entry)?;
                if let Some(MemoryObject::Host(file)) = &vma.object
                    && let Some(copies) = file.copies().filter(|_| !vma.is_shared())
                {
                    return self.own_data(vma, page, copies);
                }
            }
            return Ok((near.0.max(vma.start), near.1.min(vma.end)));
        }
        match &vma.object {
            None => Ok(self.populate_anonymous(vma, page)?),
            Some(MemoryObject::Store(_)) => self.populate_store(vma, page, access),
            Some(MemoryObject::Host(_)) => self.populate_host(vma, page, access),
        }
    }

    /// The mapping of `addr`, growing a stack down to it if that is what is above.
    fn vma_for(&mut self, addr: u64) -> Result<Vma, Fault> {
        if !(USER_MIN..USER_MAX).contains(&addr) {
            return Err(Fault::NotMapped { addr });
        }
        if let Some(vma) = self.find(addr) {
            return Ok(vma.clone());
        }
        let page = page_down(addr);
        let below = self.vmas.range(..addr).next_back().map_or(0, |(_, vma)| vma.end);
        let above = self.vmas.range(addr..).next().map(|(start, _)| *start);
        let limit = upcall::stack_limit();
        let grows = above.and_then(|start| self.vmas.get(&start)).filter(|vma| {
            vma.flags.contains(VmaFlags::GROWS_DOWN)
                && vma.end - page <= limit
                && below + STACK_GUARD_PAGES * PAGE <= page
        });
        let Some(mut stack) = grows.cloned() else { return Err(Fault::NotMapped { addr }) };
        let grown = Vma { end: stack.start, start: page, ..stack.clone() };
        if !self.may_lock(&grown) || commit::check(self.promise.owner(), grown.promised_pages()).is_err() {
            return Err(Fault::NotMapped { addr });
        }
        self.promise.add(grown.promised_pages());
        self.vmas.remove(&stack.start);
        stack.start = page;
        self.vmas.insert(page, stack.clone());
        Ok(stack)
    }

    /// A private mapping of an object is written: pages of its are not the object's any more, and a child needs its entries.
    pub(super) fn mark_own(&mut self, vma: &Vma) {
        if let Some(vma) = self.vmas.get_mut(&vma.start) {
            vma.flags |= VmaFlags::COPIED;
        }
    }

    /// Makes the swapped entry of a page present, with those around it whose content is there, too (Hibernate Container,
    /// section 3.4.1). While its own content is away it is claimed, with its neighbours', and the caller has it come.
    /// Neighbours that are probed in this wake wait for their own fault.
    fn swap_in(&mut self, vma: &Vma, page: u64) -> Result<Around, Stop> {
        let extent = self.swap_extent(vma, page);
        let Some(frame) = self.table.get(page).frame() else { return Err(Errno::EFAULT.into()) };
        let shows = template::serves(vma);
        let (sees_writes, is_shared) = (touches::sees_writes(), vma.is_shared());
        let is_shown = |frame: Frame| shows && residency::is_shown(frame);
        // Once it is shown it stays so, or comes: this page is there either way.
        let page_is_shown = is_shown(frame);
        if !page_is_shown && residency::residence(frame) != Residence::Resident {
            let is_shown = shows && template::may_have(frame);
            let (end, how) = match extent.is_scan() {
                true => {
                    let how = if is_shown { How::ShownAll } else { How::All };
                    ((page + SCAN_PAGES * PAGE).min(extent.end), how)
                }
                false => (extent.end, if is_shown { How::Shown } else { How::Around }),
            };
            // While it is recorded what is wanted, nothing comes along.
            let others = if sees_writes { Vec::new() } else { self.absent_frames(extent.start, end, page) };
            if let Some(mut away) = Away::of(frame, others.into_iter(), how) {
                away.along_with(self.ahead(&extent, shows));
                return Err(Stop::Away(away));
            }
            if residency::residence(frame) != Residence::Resident {
                // Another one has had it shown meanwhile.
                return self.swap_in(vma, page);
            }
        }
        self.ahead(&extent, shows).begin();
        let (id, along) = (self.id, touches::Along::with(self.id, page));
        self.table.for_each(extent.start, extent.end, |addr, entry| {
            let Some(frame) = entry.coming() else { return };
            let shown = if addr == page { page_is_shown } else { is_shown(frame) };
            if addr == page || along.includes(addr) && (shown || !residency::is_swapped(frame)) {
                *entry = if shown { entry.shown_by_template() } else { entry.brought_in() };
                if sees_writes && !is_shared {
                    entry.0 &= !Entry::WRITABLE;
                }
                touches::came(id, addr, frame, addr == page);
            }
        });
        Ok((extent.start, extent.end))
    }

    /// The pages of the mapping that come back with `page`.
    fn swap_extent(&mut self, vma: &Vma, page: u64) -> Extent {
        let wanted = self.vmas.get_mut(&vma.start).map(|vma| vma.swap_window.touch(page));
        let wanted = wanted.unwrap_or(Extent { start: page, end: page + PAGE, ahead: page + PAGE });
        let inside = |addr: u64| addr.clamp(vma.start, vma.end);
        Extent { start: inside(wanted.start), end: inside(wanted.end), ahead: inside(wanted.ahead) }
    }

    /// The frames of swapped entries in a range whose content is absent and not shown, but that of `page`.
    fn absent_frames(&mut self, start: u64, end: u64, page: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.table.for_each(start, end, |addr, entry| {
            if let Some(frame) = entry.coming()
                && addr != page
                && residency::residence(frame) == Residence::Absent
                && !residency::is_shown(frame)
                && frames.try_reserve(1).is_ok()
            {
                frames.push(frame);
            }
        });
        frames
    }

    /// Claims what else of a scan's window is absent, and what it will touch next.
    fn ahead(&mut self, extent: &Extent, is_shown: bool) -> Ahead {
        if !extent.is_scan() || touches::sees_writes() {
            return Ahead::default();
        }
        let frames = self.absent_frames(extent.start, extent.ahead, 0);
        let parts = frames.chunks(to_usize(SCAN_PAGES));
        let arrivals = parts.filter_map(|part| Arrival::claim_all(part.iter().copied())).collect();
        Ahead { arrivals, is_shown }
    }

    /// A write to a present page that isn't writable: copy it, or take it over if nobody else refers to it.
    pub(super) fn make_writable(&mut self, vma: &Vma, page: u64, entry: Entry) -> Result<(), Stop> {
        let region = entry.region().ok_or(Errno::EFAULT)?;
        let left = match region {
            // All who map the object write to its page.
            Region::Frame(_) | Region::Window(_) if vma.is_shared() => {
                return Ok(self.install(page, Entry::new(entry.phys(), vma.entry_flags(true)))?);
            }
            Region::Template(_) => return self.write_to_template(vma, page, entry),
            Region::Frame(frame) => {
                if let Some(family) = &self.family {
                    family.note(page);
                }
                touches::wrote(frame);
                if frames::is_exclusive(frame) {
                    self.take_over_around(vma, page);
                    return Ok(());
                }
                Some(frame)
            }
            Region::Window(_) => None,
        };
        let copy = frames::alloc_any().ok_or(Errno::ENOMEM)?;
        copy_page(&copy, region)?;
        self.install_frame(page, copy, vma.entry_flags(true))?;
        self.freed.extend(left);
        Ok(())
    }

    /// Makes the exclusive frames around `page` writable: after a `fork` whose child is gone, one fault does for many.
    fn take_over_around(&mut self, vma: &Vma, page: u64) {
        let around = if touches::sees_writes() { 0 } else { NEIGHBOURS * PAGE };
        let start = page.saturating_sub(around).max(vma.start);
        let end = (page + PAGE + around).min(vma.end);
        self.protect(start, end, |entry| {
            let ours = entry.has(Entry::PRESENT)
                && !entry.has(Entry::WRITABLE)
                && entry.frame().is_some_and(frames::is_exclusive);
            if ours { Entry(entry.0 | Entry::WRITABLE) } else { entry }
        });
    }

    fn populate_anonymous(&mut self, vma: &Vma, page: u64) -> Result<Around, Errno> {
        let (start, pages) = self.anonymous_window(vma, page);
        let end = (start + pages * PAGE).min(vma.end);
        let mut at = start;
        let mut got_page = false;
        while at < end {
            if self.table.get(at) != Entry::NONE {
                at += PAGE;
                continue;
            }
            let want = self.empty_pages(at, end);
            // The faulting page must come; the others only if they are to be had.
            let Some(mut run) = self.zero_run(at, want) else { break };
            let run_start = at;
            for frame in &mut run {
                if let Err(error) = self.install_frame(at, frame, vma.entry_flags(true)) {
                    return if got_page { Ok((start, run_start)) } else { Err(error) };
                }
                got_page |= at == page;
                at += PAGE;
            }
            self.next_frame = Some(run.next_frame());
        }
        if got_page || self.populate_single(vma, page)? { Ok((start, end)) } else { Err(Errno::ENOMEM) }
    }

    /// The last resort when a whole window was not to be had.
    fn populate_single(&mut self, vma: &Vma, page: u64) -> Result<bool, Errno> {
        let Some(frame) = frames::alloc_zeroed() else { return Ok(false) };
        self.install_frame(page, frame, vma.entry_flags(true))?;
        Ok(true)
    }

    /// Which pages a fault at `page` brings in: few at first, more while faults come in sequence.
    fn anonymous_window(&mut self, vma: &Vma, page: u64) -> Around {
        if frames::available() < SCARCE_FRAMES {
            return (page, 1);
        }
        let sequential = vma.next_fault == page;
        let pages = if sequential {
            (vma.window_pages * 4).clamp(FIRST_WINDOW_PAGES, low32(FAULT_AROUND_MAX_PAGES))
        } else {
            FIRST_WINDOW_PAGES
        };
        let bytes = u64::from(pages) * PAGE;
        let start = if sequential { page } else { (page / bytes * bytes).max(vma.start) };
        let mut end = start + bytes;
        if u64::from(pages) >= FOLIO_PAGES {
            end -= end % (FOLIO_PAGES * PAGE);
        }
        if let Some(vma) = self.vmas.get_mut(&vma.start) {
            vma.next_fault = end;
            vma.window_pages = pages;
        }
        (start, (end - start) / PAGE)
    }

    /// How many entries from `at` on are empty, up to `end`.
    fn empty_pages(&self, at: u64, end: u64) -> usize {
        let mut count = 1;
        while at + count * PAGE < end && self.table.get(at + count * PAGE) == Entry::NONE {
            count += 1;
        }
        to_usize(count)
    }

    /// Frames for pages from `at` on: those behind the last ones. Where there are many they begin where a folio can hold them.
    fn zero_run(&self, at: u64, want: usize) -> Option<FrameRun> {
        let near = self.next_frame.map(|next| match want as u64 {
            FOLIO_PAGES.. => next.add(to_usize((at.wrapping_sub(next.addr()) / PAGE) % FOLIO_PAGES)),
            _ => next,
        });
        frames::alloc_zeroed_run(want, near, DIRTY_RUN_MAX)
    }

    fn populate_store(&mut self, vma: &Vma, page: u64, access: Access) -> Result<Around, Stop> {
        let Some(MemoryObject::Store(store)) = &vma.object else { return Err(Errno::EFAULT.into()) };
        let offset = vma.object_offset(page);
        if offset >= store.size().next_multiple_of(PAGE) {
            return Err(Errno::EIO.into());
        }
        let index = offset / PAGE;
        let frame = store.frame_anywhere(index)?;
        let around = store.absent_around(index);
        if let Some(away) = Away::of(frame.frame(), around.iter().map(FrameRef::frame), How::Around) {
            return Err(Stop::Away(away));
        }
        arrival::touched(frame.frame());
        if vma.is_shared() {
            self.install_frame(page, frame, vma.entry_flags(true))?;
        } else if access == Access::Write {
            self.install_frame(page, own_copy(&frame)?, vma.entry_flags(true))?;
        } else {
            self.install_frame(page, frame, vma.entry_flags(false))?;
        }
        Ok((page, page + PAGE))
    }

    fn populate_host(&mut self, vma: &Vma, page: u64, access: Access) -> Result<Around, Stop> {
        let Some(MemoryObject::Host(file)) = &vma.object else { return Err(Errno::EFAULT.into()) };
        let offset = vma.object_offset(page);
        if let Some(copies) = file.copies().filter(|_| !vma.is_shared())
            && copies.may_hold(offset / PAGE)
        {
            return self.populate_copies(vma, page, access, file, copies);
        }
        let (phys, _) = file.page(offset)?.ok_or(Errno::EIO)?;
        if !vma.is_shared() && access == Access::Write {
            let copy = frames::alloc_any().ok_or(Errno::ENOMEM)?;
            copy_page(&copy, Region::Window(phys))?;
            self.install_frame(page, copy, vma.entry_flags(true))?;
            return Ok((page, page + PAGE));
        }
        // Everything of this chunk that the mapping shows: entries are cheap, and the host maps what is touched.
        let inside = (phys - WINDOW_PHYS) % WINDOW_CHUNK;
        let before = inside.min(page - vma.start);
        let start = page - before;
        let Some((first, bytes)) = file.page(offset - before)? else { return Err(Errno::EIO.into()) };
        let end = (start + bytes).min(vma.end);
        let flags = vma.entry_flags(vma.is_shared() && file.is_writable());
        for addr in (start..end).step_by(PAGE_BYTES) {
            if self.table.get(addr) == Entry::NONE {
                self.table.set(addr, Entry::new(first + (addr - start), flags))?;
            }
        }
        Ok((start, end))
    }

    /// Maps the pages around `page` into the stub: those of `around` that are present and not mirrored yet, and where it shows
    /// a file those further around, as long as that takes few operations.
    fn mirror(&mut self, page: u64, around: Around) {
        let around = (around.0, around.1.max(page + PAGE));
        let is_new = !self.table.get(page).has(Entry::MIRRORED);
        self.mirror_if(around, usize::MAX, |addr, entry| addr == page || !entry.has(Entry::MIRRORED));
        let Some(vma) = self.find(page).filter(|_| is_new) else { return };
        if matches!(vma.object, Some(MemoryObject::Host(_))) {
            let start = page.saturating_sub(WIDE_PAGES * PAGE).max(vma.start);
            let end = (page + WIDE_PAGES * PAGE).min(vma.end);
            self.mirror_if((around.1, end), WIDE_PIECES, |_, entry| !entry.has(Entry::MIRRORED));
            self.mirror_if((start, around.0), WIDE_PIECES, |_, entry| !entry.has(Entry::MIRRORED));
        }
    }

    /// Maps pages into the stub as [`Self::mirror`] does, but ahead of a touch: of pages around one that will be
    /// written only those that can be.
    fn mirror_ahead(&mut self, page: u64, around: Around, access: Access) {
        if access == Access::Write {
            let around = (around.0, around.1.max(page + PAGE));
            let can_be = |_, entry: Entry| entry.has(Entry::WRITABLE) && !entry.has(Entry::MIRRORED);
            self.mirror_if(around, usize::MAX, can_be);
        } else if !self.table.get(page).has(Entry::MIRRORED) {
            self.mirror(page, around);
        }
    }

    /// Maps those of a range's pages into the stub that are present and `wanted`, by so many operations.
    fn mirror_if(&mut self, (start, end): Around, most: usize, wanted: impl Fn(u64, Entry) -> bool) {
        if start >= end {
            return;
        }
        let Self { table, batch, .. } = self;
        let (before, mut is_full) = (batch.ops.len(), false);
        table.for_each(start, end, |addr, entry| {
            if is_full || !entry.has(Entry::PRESENT) || !wanted(addr, *entry) {
                return;
            }
            entry.0 |= Entry::MIRRORED;
            let prot = mirror_prot(*entry);
            batch.push(MapOp { kind: MAP_OP_MAP, prot, addr, len: PAGE, phys: entry.phys() });
            is_full = batch.ops.len() > before.saturating_add(most);
        });
    }
}

/// A copy of an object's page, for the mapping that writes it.
pub(super) fn own_copy(frame: &FrameRef) -> Result<FrameRef, Errno> {
    let copy = frames::alloc_any().ok_or(Errno::ENOMEM)?;
    frames::copy(copy.frame(), frame.frame());
    Ok(copy)
}
