//! Page faults: demand zero, copy-on-write, file pages, stack growth, and filling the mirror (systrap).

use abi::layout::{USER_MAX, USER_MIN, WINDOW_CHUNK, WINDOW_PHYS};
use abi::run::{MAP_OP_MAP, MapOp, PF_FETCH, PF_WRITE};
use abi::word::{low32, to_usize};

use super::aspace::{AddressSpace, Space};
use super::frames::{self, Frame, FrameRef, FrameRun};
use super::object::{MemoryObject, copy_page};
use super::page::{Access, Fault, PAGE, PAGE_BYTES, page_down};
use super::pagetable::Entry;
use super::residency;
use super::touches;
use super::vma::{Vma, VmaFlags, mirror_prot};
use crate::config::FAULT_AROUND_MAX_PAGES;
use crate::errno::Errno;
use crate::platform;
use crate::upcall;

/// Pages a first, not sequential, fault on anonymous memory maps.
const FIRST_WINDOW_PAGES: u32 = 4;
/// Pages on each side that a mirror miss or a copy-on-write looks at.
const NEIGHBOURS: u64 = 31;
/// Touches that are no further apart than this belong together.
const CLOSE_PAGES: u64 = 64;
/// Pages kept free between a growing stack and the mapping below it.
const STACK_GUARD_PAGES: u64 = 256;
/// When fewer frames are left, faults take one at a time.
pub(super) const SCARCE_FRAMES: usize = 4096;
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
        let mut space = self.lock();
        let result = space.fault(addr, access).map(|range| {
            if platform::current().mirrors() {
                space.mirror(page_down(addr), range);
            }
        });
        self.commit(&mut space);
        result
    }
}

/// The pages `[start, end)` a fault brought in, or looked at.
pub(super) type Around = (u64, u64);

impl Space {
    /// Makes the page of `addr` present with the access permitted.
    pub(super) fn fault(&mut self, addr: u64, access: Access) -> Result<Around, Fault> {
        let page = page_down(addr);
        let vma = self.vma_for(addr)?;
        if !vma.permits(access) {
            return Err(Fault::Forbidden { addr });
        }
        if access == Access::Write && !vma.is_shared() && vma.object.is_some() {
            self.mark_own(&vma);
        }
        let mut entry = self.table.get(page);
        if entry.has(Entry::SWAPPED) {
            self.swap_in(&vma, page).map_err(|error| fault_of(error, addr))?;
            entry = self.table.get(page);
        }
        if entry.has(Entry::PRESENT) {
            if access == Access::Write && !entry.has(Entry::WRITABLE) {
                self.make_writable(&vma, page, entry).map_err(|error| fault_of(error, addr))?;
            }
            let near = (page.saturating_sub(NEIGHBOURS * PAGE), page + NEIGHBOURS * PAGE);
            return Ok((near.0.max(vma.start), near.1.min(vma.end)));
        }
        match &vma.object {
            None => self.populate_anonymous(&vma, page),
            Some(MemoryObject::Store(_)) => self.populate_store(&vma, page, access),
            Some(MemoryObject::Host(_)) => self.populate_host(&vma, page, access),
        }
        .map_err(|error| fault_of(error, addr))
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
        self.vmas.remove(&stack.start);
        stack.start = page;
        self.vmas.insert(page, stack.clone());
        Ok(stack)
    }

    /// A private mapping of an object is written: pages of its are not the object's any more, and a child needs its entries.
    fn mark_own(&mut self, vma: &Vma) {
        if let Some(vma) = self.vmas.get_mut(&vma.start) {
            vma.flags |= VmaFlags::COPIED;
        }
    }

    /// Brings back the content of a page and of its neighbours that the swap file holds, with one call to the host
    /// (Hibernate Container, section 3.4.1). Entries whose frame has come back before only become present; neighbours
    /// that are probed in this wake wait for their own fault.
    fn swap_in(&mut self, vma: &Vma, page: u64) -> Result<(), Errno> {
        let near = self.swap_window(vma, page);
        let start = page.saturating_sub(near * PAGE).max(vma.start);
        let end = (page + (near + 1) * PAGE).min(vma.end);
        let comes = |entry: &Entry| entry.has(Entry::SWAPPED) && !entry.has(Entry::KEPT);
        let mut wanted = [Frame::new(self.table.get(page).phys()); 2 * to_usize(NEIGHBOURS) + 1];
        let mut count = 1;
        self.table.for_each(start, end, |addr, entry| {
            if addr != page && comes(entry) {
                wanted[count] = Frame::new(entry.phys());
                count += 1;
            }
        });
        residency::bring_in(&wanted[..count])?;
        let (id, along) = (self.id, touches::Along::with(self.id, page));
        self.table.for_each(start, end, |addr, entry| {
            let is_here = || !residency::is_swapped(Frame::new(entry.phys()));
            if comes(entry) && (addr == page || along.includes(addr) && is_here()) {
                *entry = entry.brought_in();
                touches::came(id, addr, Frame::new(entry.phys()), addr == page);
            }
        });
        Ok(())
    }

    /// How many pages on each side of `page` come back with it: more while touches stay close together, none where they
    /// jump.
    fn swap_window(&mut self, vma: &Vma, page: u64) -> u64 {
        let Some(vma) = self.vmas.get_mut(&vma.start) else { return 0 };
        vma.swap_window = match vma.last_swap_in {
            0 => NEIGHBOURS,
            last if last.abs_diff(page) <= CLOSE_PAGES * PAGE => (2 * vma.swap_window).clamp(1, NEIGHBOURS),
            // Many touches jump between places that are each worth their neighbours.
            _ => vma.swap_window - vma.swap_window.div_ceil(8),
        };
        vma.last_swap_in = page;
        vma.swap_window
    }

    /// A write to a present page that isn't writable: copy it, or take it over if nobody else refers to it.
    fn make_writable(&mut self, vma: &Vma, page: u64, entry: Entry) -> Result<(), Errno> {
        if vma.is_shared() {
            return self.install(page, Entry::new(entry.phys(), vma.entry_flags(true)));
        }
        if entry.is_frame() && frames::is_exclusive(Frame::new(entry.phys())) {
            self.take_over_around(vma, page);
            return Ok(());
        }
        let copy = frames::alloc_any().ok_or(Errno::ENOMEM)?;
        copy_page(&copy, entry.phys())?;
        self.install_frame(page, copy, vma.entry_flags(true))?;
        if entry.is_frame() {
            self.freed.push(Frame::new(entry.phys()));
        }
        Ok(())
    }

    /// Makes the exclusive frames around `page` writable: after a `fork` whose child is gone, one fault does for many.
    fn take_over_around(&mut self, vma: &Vma, page: u64) {
        let start = page.saturating_sub(NEIGHBOURS * PAGE).max(vma.start);
        let end = (page + NEIGHBOURS * PAGE).min(vma.end);
        self.protect(start, end, |entry| {
            let ours = entry.has(Entry::PRESENT)
                && !entry.has(Entry::WRITABLE)
                && entry.is_frame()
                && frames::is_exclusive(Frame::new(entry.phys()));
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
            let Some(mut run) = self.zero_run(want) else { break };
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
        if let Some(vma) = self.vmas.get_mut(&vma.start) {
            vma.next_fault = start + bytes;
            vma.window_pages = pages;
        }
        (start, u64::from(pages))
    }

    /// How many entries from `at` on are empty, up to `end`.
    fn empty_pages(&self, at: u64, end: u64) -> usize {
        let mut count = 1;
        while at + count * PAGE < end && self.table.get(at + count * PAGE) == Entry::NONE {
            count += 1;
        }
        to_usize(count)
    }

    fn zero_run(&self, want: usize) -> Option<FrameRun> {
        frames::alloc_zeroed_run(want, self.next_frame, DIRTY_RUN_MAX)
    }

    fn populate_store(&mut self, vma: &Vma, page: u64, access: Access) -> Result<Around, Errno> {
        let Some(MemoryObject::Store(store)) = &vma.object else { return Err(Errno::EFAULT) };
        let offset = vma.object_offset(page);
        if offset >= store.size().next_multiple_of(PAGE) {
            return Err(Errno::EIO);
        }
        let frame = store.frame(offset / PAGE)?;
        if vma.is_shared() {
            self.install_frame(page, frame, vma.entry_flags(true))?;
        } else if access == Access::Write {
            self.install_frame(page, own_copy(&frame)?, vma.entry_flags(true))?;
        } else {
            self.install_frame(page, frame, vma.entry_flags(false))?;
        }
        Ok((page, page + PAGE))
    }

    fn populate_host(&mut self, vma: &Vma, page: u64, access: Access) -> Result<Around, Errno> {
        let Some(MemoryObject::Host(file)) = &vma.object else { return Err(Errno::EFAULT) };
        if let Some(copies) = file.copies().filter(|_| !vma.is_shared()) {
            return self.populate_copies(vma, page, access, file, copies);
        }
        let offset = vma.object_offset(page);
        let (phys, _) = file.page(offset)?.ok_or(Errno::EIO)?;
        if !vma.is_shared() && access == Access::Write {
            let copy = frames::alloc_any().ok_or(Errno::ENOMEM)?;
            copy_page(&copy, phys)?;
            self.install_frame(page, copy, vma.entry_flags(true))?;
            return Ok((page, page + PAGE));
        }
        // Everything of this chunk that the mapping shows: entries are cheap, and the host maps what is touched.
        let inside = (phys - WINDOW_PHYS) % WINDOW_CHUNK;
        let before = inside.min(page - vma.start);
        let start = page - before;
        let Some((first, bytes)) = file.page(offset - before)? else { return Err(Errno::EIO) };
        let end = (start + bytes).min(vma.end);
        let flags = vma.entry_flags(vma.is_shared() && file.is_writable());
        for addr in (start..end).step_by(PAGE_BYTES) {
            if self.table.get(addr) == Entry::NONE {
                self.table.set(addr, Entry::new(first + (addr - start), flags))?;
            }
        }
        Ok((start, end))
    }

    /// Maps the pages around `page` into the stub: those of `around` that are present and not mirrored yet.
    fn mirror(&mut self, page: u64, around: Around) {
        let Self { table, batch, .. } = self;
        table.for_each(around.0, around.1.max(page + PAGE), |addr, entry| {
            if entry.has(Entry::PRESENT) && (addr == page || !entry.has(Entry::MIRRORED)) {
                entry.0 |= Entry::MIRRORED;
                let prot = mirror_prot(*entry);
                batch.push(MapOp { kind: MAP_OP_MAP, prot, addr, len: PAGE, phys: entry.phys() });
            }
        });
    }
}

/// A copy of an object's page, for the mapping that writes it.
pub(super) fn own_copy(frame: &FrameRef) -> Result<FrameRef, Errno> {
    let copy = frames::alloc_any().ok_or(Errno::ENOMEM)?;
    frames::copy(copy.frame(), frame.frame());
    Ok(copy)
}

/// The signal that an error while bringing in a page becomes.
fn fault_of(error: Errno, addr: u64) -> Fault {
    match error {
        Errno::ENOMEM => Fault::NoMemory,
        _ => Fault::Bus { addr },
    }
}
