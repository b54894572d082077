//! Patches in an address space: which sites get one, what a program sees of it, and when it goes (see [`super::sites`]).

use abi::layout::STUB_TEXT;
use abi::run::UserRegs;
use abi::word::to_usize;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::aspace::{AddressSpace, Space};
use super::away::Stop;
use super::object::{MemoryObject, copy_page};
use super::page::{Access, PAGE, page_down};
use super::pagetable::{Entry, Region};
use super::physical::account;
use super::physical::frames;
use super::sites::{self, Kind, READ_BYTES, READ_SLOT, SLOT_BYTES, SLOTS, SLOTS_END, Site, is_slot};
use super::stats;
use super::swap_window::SwapWindow;
use super::vma::{Prot, Vma, VmaFlags};
use super::window;
use crate::arch;
use crate::errno::Errno;
use crate::platform::{self, Trap};

/// Most pages that are remembered as read; then no more are patched.
const LEFT_ALONE_MAX: usize = 64;
const VECTOR_DEBUG: u32 = 1;
const VECTOR_INVALID_OPCODE: u32 = 6;
const VECTOR_ALIGNMENT: u32 = 17;

impl AddressSpace {
    /// Takes slots out of registers that a program may see: those that are about to be its signal handler's, or that
    /// another address space goes on with.
    pub fn hide_slots(&self, regs: &mut UserRegs) {
        if is_slot(regs.rip) {
            self.lock().leave_slot(regs, false);
        }
    }

    /// A patched call is over. The slot that it would go on in may have gone meanwhile.
    pub fn after_call(&self, regs: &mut UserRegs) {
        if is_slot(regs.rip) && self.hits.are_slots_gone.load(Ordering::Acquire) {
            self.lock().sites.leave_slot(regs, false);
        }
    }

    /// Whether a fault at `addr` came of slots that went while code at `rip` was about to go there: its site is as it was.
    pub fn have_slots_gone(&self, addr: u64, rip: u64) -> bool {
        let is_slot = is_slot(addr);
        is_slot && {
            let space = self.lock();
            let site = space.sites.by_address.range(..=rip).next_back();
            space.sites.off && site.is_some_and(|(at, _)| rip - at < READ_BYTES.len() as u64)
        }
    }

    /// Gives the trap that a program would have caused that knows nothing of patches, and corrects the registers
    /// likewise.
    pub fn correct(&self, regs: &mut UserRegs, trap: Trap) -> Trap {
        let in_slots = is_slot(regs.rip);
        match trap {
            Trap::Syscall if !in_slots => {
                if sites::are_there() && self.hits.note(regs.rip) {
                    let _ = self.attempt(|space| space.patch_site(regs.rip, regs.rax));
                    self.machine().has_patches.store(true, Ordering::Relaxed);
                }
                trap
            }
            Trap::Exception { vector: VECTOR_INVALID_OPCODE, .. } if !in_slots => {
                self.lock().correct_opcode(regs).unwrap_or(trap)
            }
            Trap::Exception { vector: VECTOR_DEBUG, .. } if in_slots => {
                // It goes step by step: where it can see them there are no patches.
                let mut space = self.lock();
                let space = &mut *space;
                space.leave_slot(regs, false);
                if space.table.get(page_down(regs.rip)).has(Entry::PATCHED) {
                    space.leave_alone(page_down(regs.rip));
                    self.commit(space);
                }
                trap
            }
            Trap::Exception { vector: VECTOR_ALIGNMENT, .. } => {
                let mut space = self.lock();
                let space = &mut *space;
                let page = page_down(regs.rip);
                if !space.table.get(page).has(Entry::PATCHED) {
                    return trap;
                }
                space.leave_alone(page);
                self.commit(space);
                Trap::Interrupt
            }
            _ if in_slots => {
                self.lock().leave_slot(regs, trap == Trap::Syscall);
                trap
            }
            _ => trap,
        }
    }
}

impl Space {
    /// See [`Sites::leave_slot`]. What a program has at the slots' addresses itself is no slot.
    fn leave_slot(&self, regs: &mut UserRegs, has_called: bool) {
        if self.sites.has_slots || self.find(regs.rip).is_none() {
            self.sites.leave_slot(regs, has_called);
            if !self.sites.has_slots {
                // Where a call that reads goes on otherwise is no more.
                self.sites.leave_slot(regs, false);
            }
        }
    }

    /// An instruction that is none, perhaps in the midst of a patch: what the program meant.
    fn correct_opcode(&self, regs: &mut UserRegs) -> Option<Trap> {
        // From the site: where the `syscall` was, what is left of the last instruction, and where that was.
        const WAYS: [(u64, bool, bool); 3] = [(5, false, true), (7, true, true), (4, true, false)];
        for (inside, reads, calls) in WAYS {
            let at = regs.rip.wrapping_sub(inside);
            let site = self.sites.by_address.get(&at);
            let Some(site) = site.filter(|site| (site.kind == Kind::Read) == reads) else { continue };
            let entry = self.table.get(page_down(at));
            if entry == Entry::NONE || entry.has(Entry::SWAPPED) {
                // The page went meanwhile. What comes has no patch, or the same.
                return Some(Trap::Interrupt);
            }
            let mut is = [0; READ_BYTES.len()];
            let len = is.len().min(to_usize(PAGE - at % PAGE));
            if !entry.has(Entry::PRESENT) || !read_shown(entry, at % PAGE, &mut is[..len]) {
                continue;
            }
            if is.starts_with(&site.jump()) {
                regs.rip = if self.sites.has_slots { site.goes_on() } else { site.call_end() };
                if calls {
                    (regs.rcx, regs.r11) = (regs.rip, regs.rflags);
                }
                return Some(if calls { Trap::Syscall } else { Trap::Interrupt });
            }
            // It was one when this happened: the program begins the site anew, or goes on where it would have been.
            if site.is_original(&is[..len]) {
                regs.rip = if calls { site.call_end() - 2 } else { at + 4 };
                return Some(Trap::Interrupt);
            }
        }
        None
    }

    /// Patches the site whose `syscall` ends at `end`, if it is one and may be patched.
    fn patch_site(&mut self, end: u64, number: u64) -> core::result::Result<(), Stop> {
        let page = page_down(end.wrapping_sub(1));
        if self.sites.off || self.sites.left_alone.contains(&page) {
            return Ok(());
        }
        let Some(vma) = self.find(page).cloned() else { return Ok(()) };
        let Some(MemoryObject::Host(file)) = &vma.object else { return Ok(()) };
        let entry = self.table.get(page);
        let may = !vma.is_shared() && vma.prot.contains(Prot::EXEC) && !vma.prot.contains(Prot::WRITE);
        let is_here = entry.has(Entry::PRESENT) && !entry.has(Entry::WRITABLE);
        let (Some(shown), Some(frame)) = (entry.region(), entry.held().filter(|_| may && is_here)) else {
            return Ok(());
        };
        let index = vma.object_offset(page) / PAGE;
        let is_files = file.copies().is_some_and(|copies| copies.shows(index, frame));
        if !(entry.has(Entry::PATCHED) || is_files) {
            return Ok(());
        }
        let mut content = account::filled(0_u8, to_usize(PAGE))?;
        if !read_shown(entry, 0, &mut content) {
            return Ok(());
        }
        let Some((at, kind)) = Site::find(&content, to_usize(end - page), number) else { return Ok(()) };
        let at = page + at as u64;
        let known = self.sites.by_address.get(&at).copied().filter(|site| site.kind == kind);
        let site = match known {
            Some(site) => site,
            None => match self.new_slot(at, kind)? {
                Some(site) => site,
                None => return Ok(()),
            },
        };
        let copy = frames::alloc_any().ok_or(Errno::ENOMEM)?;
        copy_page(&copy, shown)?;
        write_frame(copy.addr() + at % PAGE, &site.jump());
        self.install_frame(page, copy, vma.entry_flags(false) | Entry::PATCHED)?;
        self.freed.push(frame);
        if !entry.has(Entry::PATCHED) {
            stats::count_patched_page();
        }
        Ok(())
    }

    /// A slot for a new site; `None`: there are no more.
    fn new_slot(&mut self, at: u64, kind: Kind) -> core::result::Result<Option<Site>, Stop> {
        if !self.sites.has_slots && !self.make_slots()? {
            return Ok(None);
        }
        let Some(pointer) = self.sites.next_pointer(kind) else { return Ok(None) };
        let site = Site { at, kind, pointer };
        let page = page_down(pointer);
        // It is the kernel's alone, so nobody shares the frame.
        if self.table.get(page) == Entry::NONE {
            let frame = frames::alloc_zeroed().ok_or(Errno::ENOMEM)?;
            self.install_frame(page, frame, Entry::PRESENT | Entry::USER)?;
        }
        self.fault(page, Access::Read)?;
        // The kernel writes to the page without a write fault, so it has to be a frame.
        let Some(frame) = self.table.get(page).frame() else { return Ok(None) };
        let phys = frame.addr();
        let back = page + READ_SLOT * SLOT_BYTES;
        write_frame(phys, &STUB_TEXT.to_le_bytes());
        if kind == Kind::Read {
            write_frame(phys + back % PAGE, &(at + READ_BYTES.len() as u64).to_le_bytes());
        }
        write_frame(phys + site.code() % PAGE, &site.slot(page, back));
        write_frame(phys + pointer % PAGE, &site.code().to_le_bytes());
        self.sites.by_address.insert(at, site);
        self.sites.pointers.insert(pointer, site);
        Ok(Some(site))
    }

    /// Maps the slots, unless the program has something there.
    fn make_slots(&mut self) -> core::result::Result<bool, Stop> {
        if self.vmas.range(..SLOTS_END).next_back().is_some_and(|(_, vma)| vma.end > SLOTS) {
            self.sites.off = true;
            return Ok(false);
        }
        self.check_vma()?;
        let vma = Vma {
            start: SLOTS,
            end: SLOTS_END,
            prot: Prot::READ | Prot::EXEC,
            max_prot: Prot::all(),
            flags: VmaFlags::DONT_FORK | VmaFlags::SLOTS,
            object: None,
            offset: 0,
            next_fault: 0,
            window_pages: 0,
            swap_window: SwapWindow::default(),
        };
        self.vmas.insert(SLOTS, vma);
        self.sites.has_slots = true;
        Ok(true)
    }

    /// The mappings of a range are about to change: no patch stays in it. If the slots are in it the program has them.
    pub(super) fn unpatch(&mut self, start: u64, end: u64) {
        if !self.sites.has_slots {
            return;
        }
        let (start, end) = if start < SLOTS_END && end > SLOTS {
            self.sites.has_slots = false;
            self.sites.off = true;
            self.sites.gone.store(true, Ordering::Release);
            // Nothing is cut: the mapping is whole.
            let _ = self.unmap(SLOTS, SLOTS_END);
            (0, u64::MAX)
        } else {
            (start, end)
        };
        let mut pages = Vec::new();
        for site in
            self.sites.by_address.range(page_down(start)..end.max(page_down(start))).map(|(_, site)| site)
        {
            let page = page_down(site.at);
            if pages.last() != Some(&page) && self.table.get(page).has(Entry::PATCHED) {
                pages.push(page);
            }
        }
        pages.into_iter().for_each(|page| self.clear(page, page + PAGE));
    }

    /// A program wants these addresses. If there are slots it has them.
    pub(super) fn yield_slots(&mut self, start: u64, end: u64) {
        if start < SLOTS_END && end > SLOTS {
            self.unpatch(start, end);
        }
    }

    /// Somebody reads a page, not to run it: what it is without patches.
    pub(super) fn leave_alone(&mut self, page: u64) {
        self.clear(page, page + PAGE);
        self.sites.left_alone.insert(page);
        self.sites.off |= self.sites.left_alone.len() > LEFT_ALONE_MAX;
    }
}

/// Reads what an entry of user memory or the template shows, from a place in its page on; whether it can be read.
fn read_shown(entry: Entry, inside: u64, to: &mut [u8]) -> bool {
    match entry.region() {
        Some(Region::Frame(frame)) => {
            read_frame(frame.addr() + inside, to);
            true
        }
        Some(Region::Template(phys)) => {
            window::copy(platform::phys_of(to.as_ptr()), phys + inside, to.len()).is_ok()
        }
        Some(Region::Window(_)) | None => false,
    }
}

/// Reads what lies at a guest-physical address, inside one frame that is ours to look at.
fn read_frame(phys: u64, to: &mut [u8]) {
    // SAFETY: (1) the callers stay inside a frame of user memory, which the linear map covers; (2) it is mapped as long as the
    // space's lock is held.
    unsafe { arch::copy_bytes(to.as_mut_ptr(), platform::ptr::<u8>(phys), to.len()) };
}

/// Writes to a guest-physical address, inside one frame that is this address space's alone.
fn write_frame(phys: u64, from: &[u8]) {
    // SAFETY: as in `read_frame`; the frame is this address space's alone.
    unsafe { arch::copy_bytes(platform::ptr::<u8>(phys), from.as_ptr(), from.len()) };
}
