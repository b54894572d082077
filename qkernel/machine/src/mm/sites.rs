//! Patched call sites (systrap): a `syscall` instruction that a program uses often becomes a jump into the stub, which hands
//! over without a signal.
//!
//! A site is one of three sequences of compilers, inside one page of a private mapping of a host's file that can be executed and
//! not written: `mov eax, N; syscall`, `mov r9, [rsp + 8]; syscall` (of the function `syscall`), or `xor eax, eax; syscall; cmp
//! rax, -4096`. Its first seven bytes become `jmp [slot]`. The
//! page is this address space's own copy from then on, with [`Entry::PATCHED`]; a child of `fork` starts without. The slot
//! lies in a mapping of the kernel's at low addresses, whose last two bytes in the jump are no instruction: who goes to the
//! `syscall` itself (as calls that are made again do) raises an exception there, and the call is made all the same.
//!
//! Nobody but running code sees a patch: where the kernel reads such a page for a program, or the mapping changes, the
//! page goes, and the next touch brings the file's. A program that maps something at the slots' addresses has them.

use abi::layout::{STUB_AREA, STUB_TEXT};
use abi::run::UserRegs;
use abi::word::{low32, to_usize};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::account;
use super::aspace::{AddressSpace, Space};
use super::away::Stop;
use super::fault::own_copy;
use super::frames::{self, Frame, FrameRef};
use super::object::MemoryObject;
use super::page::{Access, PAGE, page_down};
use super::pagetable::Entry;
use super::swap_window::SwapWindow;
use super::vma::{Prot, Vma, VmaFlags};
use crate::arch;
use crate::errno::Errno;
use crate::platform::{self, Trap};

/// Where slots lie. The third byte of each address, which is the first of a jump's last two, is no instruction.
const SLOTS: u64 = 0x6_0000;
const SLOT_PAGES: u64 = 4;
const SLOTS_END: u64 = SLOTS + SLOT_PAGES * PAGE;
const SLOT_BYTES: u64 = 64;
/// The two slots of a page in whose midst the pointer for a site that reads lies: 0x7ff ends the number of the call that such
/// a site makes with all ones, so that who comes to the `syscall` by another way keeps its number; and the byte before
/// the last two (0x07, 0x17, 0x27, 0x37) is no instruction either.
const READ_SLOT: u64 = 31;
const READ_POINTER: u64 = 0x7ff;
/// Calls of a site, by signals, until it is patched: what a patch costs, some forty calls save.
const CALLS: u64 = 40;
const VECTOR_DEBUG: u32 = 1;
const VECTOR_INVALID_OPCODE: u32 = 6;
const VECTOR_ALIGNMENT: u32 = 17;

static OFF: AtomicBool = AtomicBool::new(true);
static PAGES: AtomicU64 = AtomicU64::new(0);

/// Has call sites patched or not.
pub fn patch(wanted: bool) {
    OFF.store(!wanted, Ordering::Relaxed);
}

/// Whether call sites may be patched.
pub fn are_there() -> bool {
    !OFF.load(Ordering::Relaxed)
}

/// Whether slots may lie at an address.
pub fn is_slot(address: u64) -> bool {
    (SLOTS..SLOTS_END).contains(&address)
}

/// Pages that were copied for patches so far.
pub fn patched_pages() -> u64 {
    PAGES.load(Ordering::Relaxed)
}

/// How often sites have called lately: the address behind the instruction, and the count. One of those that meet in a place
/// has it.
#[derive(Default)]
pub(super) struct Hits {
    places: [AtomicU64; 16],
    /// There were slots, and the program has their addresses now.
    pub are_slots_gone: Arc<AtomicBool>,
}

impl Hits {
    /// Counts a call that came from before `rip`. Whether the site is to be patched.
    fn note(&self, rip: u64) -> bool {
        let place = &self.places[to_usize(rip ^ rip >> 5 ^ rip >> 12) % self.places.len()];
        let seen = place.load(Ordering::Relaxed);
        let count = if seen >> 8 == rip { (seen & 0xff) + 1 } else { 1 };
        place.store(rip << 8 | count.min(0xff), Ordering::Relaxed);
        count == CALLS
    }
}

/// The sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An instruction of five bytes that does the same elsewhere and twice, and `syscall`.
    Before([u8; 5]),
    /// `xor eax, eax; syscall; cmp rax, -4096`.
    Read,
}

#[derive(Clone, Copy)]
struct Site {
    at: u64,
    kind: Kind,
    /// The address of the pointer that it jumps by.
    pointer: u64,
}

/// Bytes of the jump at a site.
const JUMP: usize = 7;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov r9, [rsp + 8]`.
const STACK_BYTES: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 0x08];
const READ_BYTES: [u8; 10] = [0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff];
/// Bytes of a slot's code up to and with the jump into the stub.
const CODE: u64 = 39;
/// Where the slot's code of a site that reads goes on after the call, and where it jumps back.
const GOES_ON: u64 = CODE + 2;
const BACK: u64 = GOES_ON + 6;

impl Site {
    /// The site whose `syscall` ends at `end` in a page of this content, if it lies in it, and if it has called by `number`:
    /// so the bytes before are the instruction that they look like, but for what [`is_inside_another`] knows.
    fn find(page: &[u8], end: usize, number: u64) -> Option<(usize, Kind)> {
        let before = |bytes: usize| end.checked_sub(bytes).and_then(|at| Some((at, page.get(at..)?)));
        let (at, kind, by) = match (before(JUMP), before(4)) {
            (Some((at, [0xb8, a, b, c, d, 0x0f, 0x05, ..])), _) => {
                let by = u32::from_le_bytes([*a, *b, *c, *d]);
                (at, Kind::Before([0xb8, *a, *b, *c, *d]), u64::from(by))
            }
            (Some((at, bytes)), _) if bytes.starts_with(&STACK_BYTES) && bytes[5..].starts_with(&SYSCALL) => {
                (at, Kind::Before(STACK_BYTES), number)
            }
            (_, Some((at, bytes))) if bytes.starts_with(&READ_BYTES) => (at, Kind::Read, 0),
            _ => return None,
        };
        (by == number && !is_inside_another(page.get(..at)?)).then_some((at, kind))
    }

    /// Where its slot's code begins.
    fn code(&self) -> u64 {
        match self.kind {
            Kind::Before(_) => self.pointer + 8,
            Kind::Read => self.pointer + 9,
        }
    }

    /// Where it goes on after the call: behind it, or, for one that reads, in its slot.
    fn goes_on(&self) -> u64 {
        match self.kind {
            Kind::Before(_) => self.at + JUMP as u64,
            Kind::Read => self.code() + GOES_ON,
        }
    }

    /// The address behind its `syscall`.
    fn call_end(&self) -> u64 {
        self.at + if self.kind == Kind::Read { 4 } else { JUMP as u64 }
    }

    /// Whether these bytes are the program's own.
    fn is_original(&self, bytes: &[u8]) -> bool {
        match self.kind {
            Kind::Before(first) => bytes.starts_with(&first) && bytes[first.len()..].starts_with(&SYSCALL),
            Kind::Read => bytes.starts_with(&READ_BYTES),
        }
    }

    fn jump(&self) -> [u8; JUMP] {
        let [a, b, c, d, ..] = self.pointer.to_le_bytes();
        [0xff, 0x24, 0x25, a, b, c, d]
    }

    /// The slot's code. `entry`: the address of the pointer to the stub's; `back`: that of a pointer behind the site.
    fn slot(&self, entry: u64, back: u64) -> Vec<u8> {
        let first = match self.kind {
            Kind::Before(first) => first,
            // `mov eax, 0`.
            Kind::Read => [0xb8, 0, 0, 0, 0],
        };
        let mut code = Vec::with_capacity(to_usize(SLOT_BYTES));
        code.extend(first);
        // Is GS the thread's area? Its upper half is no program's; no flag changes. Else the call is an ordinary one.
        code.extend([0xf3, 0x48, 0x0f, 0xae, 0xc9]); // rdgsbase rcx
        code.extend([0x48, 0x0f, 0xc9]); // bswap rcx
        code.extend([0x8d, 0x89]); // lea ecx, [rcx - upper half]
        code.extend((abi::word::high32(STUB_AREA).swap_bytes().wrapping_neg()).to_le_bytes());
        code.extend([0xe3, 0x02]); // jrcxz
        code.extend([0x0f, 0x05]); // syscall
        code.extend([0x48, 0xb9]); // mov rcx, …
        code.extend(self.goes_on().to_le_bytes());
        let from = self.code();
        let jump_by = |code: &mut Vec<u8>, pointer: u64| {
            code.extend([0xff, 0x25]);
            let next = from + code.len() as u64 + 4;
            code.extend(low32(pointer.wrapping_sub(next)).to_le_bytes());
        };
        jump_by(&mut code, entry);
        if self.kind == Kind::Read {
            // A call that is made again begins here.
            code.extend([0x0f, 0x05]);
            code.extend(&READ_BYTES[4..]);
            jump_by(&mut code, back);
        }
        code
    }
}

/// Whether an instruction may have begun before a site: by a prefix (REX, sizes, lock, repeat), or as one with an immediate
/// word, whose displacement the site's first byte would be. At a page's beginning nobody knows.
fn is_inside_another(before: &[u8]) -> bool {
    const WITH_WORD: [u8; 4] = [0xc7, 0x81, 0x69, 0xf7];
    match before {
        [] | [.., 0x40..=0x4f | 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3] => true,
        [.., code, 0x40..=0x7f] if WITH_WORD.contains(code) => true,
        [.., code, 0x40..=0x7f, _] => WITH_WORD.contains(code),
        _ => false,
    }
}

/// The patched sites of an address space.
#[derive(Default)]
pub(super) struct Sites {
    by_address: BTreeMap<u64, Site>,
    /// Pointers, which are never used again, with their sites.
    pointers: BTreeMap<u64, Site>,
    /// Pages that somebody has read, or that hold no site.
    left_alone: BTreeSet<u64>,
    numbers: u64,
    reads: u64,
    has_slots: bool,
    /// The program has the slots' addresses.
    off: bool,
    /// See [`Hits`].
    gone: Arc<AtomicBool>,
}

impl Sites {
    /// None, of the space with these hits.
    pub fn beside(hits: &Hits) -> Self {
        Self { gone: Arc::clone(&hits.are_slots_gone), ..Self::default() }
    }
}

/// Most pages that are remembered as read; then no more are patched.
const LEFT_ALONE_MAX: usize = 64;

impl Sites {
    /// The address of the pointer for another site of this kind.
    fn next_pointer(&mut self, kind: Kind) -> Option<u64> {
        if kind == Kind::Read {
            let page = SLOTS + self.reads * PAGE;
            self.reads += 1;
            return (page < SLOTS_END).then_some(page + READ_POINTER);
        }
        loop {
            let slot = SLOTS + self.numbers * SLOT_BYTES;
            self.numbers += 1;
            let in_page = slot % PAGE / SLOT_BYTES;
            if slot >= SLOTS_END {
                return None;
            }
            // The first slot of a page holds the pointer to the stub.
            if in_page != 0 && in_page != READ_SLOT && in_page != READ_SLOT + 1 {
                return Some(slot);
            }
        }
    }

    /// The site whose slot holds this address.
    fn by_slot(&self, address: u64) -> Option<Site> {
        if !is_slot(address) {
            return None;
        }
        let slot = address / SLOT_BYTES * SLOT_BYTES;
        let in_page = slot % PAGE / SLOT_BYTES;
        let is_read = in_page == READ_SLOT || in_page == READ_SLOT + 1;
        self.pointers.get(&if is_read { page_down(slot) + READ_POINTER } else { slot }).copied()
    }

    /// Code that stopped in a slot is at its site; a call that it made there as an ordinary one ends where others do.
    fn leave_slot(&self, regs: &mut UserRegs, has_called: bool) {
        let Some(site) = self.by_slot(regs.rip) else { return };
        let inside = regs.rip.wrapping_sub(site.code());
        if has_called {
            regs.rip = site.goes_on();
            regs.rcx = regs.rip;
        } else {
            // Up to the jump into the stub nothing has changed but what the call changes. Behind it lie the call again, the
            // comparison, and the jump back.
            regs.rip = match inside {
                0..CODE => site.at,
                CODE..GOES_ON => site.at + 2,
                GOES_ON..BACK => site.at + 4,
                _ => site.at + READ_BYTES.len() as u64,
            };
        }
    }
}

impl AddressSpace {
    /// What a program may see of registers that are about to be its signal handler's, or that another address space goes on
    /// with: nothing of slots.
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

    /// What a trap means for a program that knows nothing of patches.
    pub fn correct(&self, regs: &mut UserRegs, trap: Trap) -> Trap {
        let in_slots = is_slot(regs.rip);
        match trap {
            Trap::Syscall if !in_slots => {
                if !OFF.load(Ordering::Relaxed) && self.hits.note(regs.rip) {
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
            if !entry.has(Entry::PRESENT) || !entry.is_frame() {
                continue;
            }
            read_frame(entry.phys() + at % PAGE, &mut is[..len]);
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
        let is_here = entry.has(Entry::PRESENT) && entry.is_frame() && !entry.has(Entry::WRITABLE);
        let index = vma.object_offset(page) / PAGE;
        let is_files = file.copies().is_some_and(|copies| copies.shows(index, Frame::new(entry.phys())));
        if !may || !is_here || !(entry.has(Entry::PATCHED) || is_files) {
            return Ok(());
        }
        let mut content = account::filled(0_u8, to_usize(PAGE))?;
        read_frame(entry.phys(), &mut content);
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
        let copy = own_copy(&FrameRef::share(Frame::new(entry.phys()))?)?;
        write_frame(copy.addr() + at % PAGE, &site.jump());
        self.install_frame(page, copy, vma.entry_flags(false) | Entry::PATCHED)?;
        self.freed.push(Frame::new(entry.phys()));
        PAGES.fetch_add(u64::from(!entry.has(Entry::PATCHED)), Ordering::Relaxed);
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
        let phys = self.table.get(page).phys();
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
        for site in self.sites.by_address.range(page_down(start)..end).map(|(_, site)| site) {
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

/// Reads what lies at a guest-physical address, inside one frame that is ours to look at.
fn read_frame(phys: u64, to: &mut [u8]) {
    // SAFETY: (1) the callers stay inside a frame of user memory, which the linear map covers; (2) it is mapped as long as the
    // space's lock is held.
    unsafe { arch::copy_bytes(to.as_mut_ptr(), platform::ptr::<u8>(phys), to.len()) };
}

/// The same the other way.
fn write_frame(phys: u64, from: &[u8]) {
    // SAFETY: as in `read_frame`; the frame is this address space's alone.
    unsafe { arch::copy_bytes(platform::ptr::<u8>(phys), from.as_ptr(), from.len()) };
}
