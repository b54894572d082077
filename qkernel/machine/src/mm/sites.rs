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
//! page goes, and the next touch brings the file's. A program that maps something at the slots' addresses has them. What an
//! address space does with sites is in [`super::patches`]; here is what they look like.

use abi::layout::STUB_AREA;
use abi::run::UserRegs;
use abi::word::{low32, to_usize};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::page::{PAGE, page_down};

/// Where slots lie. The third byte of each address, which is the first of a jump's last two, is no instruction.
pub(super) const SLOTS: u64 = 0x6_0000;
const SLOT_PAGES: u64 = 4;
pub(super) const SLOTS_END: u64 = SLOTS + SLOT_PAGES * PAGE;
pub(super) const SLOT_BYTES: u64 = 64;
/// The two slots of a page in whose midst the pointer for a site that reads lies: 0x7ff ends the number of the call that such
/// a site makes with all ones, so that who comes to the `syscall` by another way keeps its number; and the byte before
/// the last two (0x07, 0x17, 0x27, 0x37) is no instruction either.
pub(super) const READ_SLOT: u64 = 31;
const READ_POINTER: u64 = 0x7ff;
/// Calls of a site, by signals, until it is patched: what a patch costs, some forty calls save.
const CALLS: u64 = 40;

static OFF: AtomicBool = AtomicBool::new(true);

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

/// Sites whose calls are counted at once. A server's loop has a dozen, and its start hundreds that call a few times.
const PLACES: usize = 64;

/// How often sites have called lately: the address behind the instruction, and the count. When there is no place left all are
/// forgotten.
pub(super) struct Hits {
    places: [AtomicU64; PLACES],
    /// There were slots, and the program has their addresses now.
    pub are_slots_gone: Arc<AtomicBool>,
}

impl Default for Hits {
    fn default() -> Self {
        Self { places: [const { AtomicU64::new(0) }; PLACES], are_slots_gone: Arc::default() }
    }
}

impl Hits {
    /// Counts a call that came from before `rip`. Whether the site is to be patched; if it is not it is asked for again later.
    pub fn note(&self, rip: u64) -> bool {
        let first = to_usize(rip ^ rip >> 5 ^ rip >> 12) % PLACES;
        let mut places = self.places.iter().cycle().skip(first).take(PLACES);
        // Free places are behind those that are taken: none is given back.
        let mine = places.find_map(|place| {
            let seen = place.load(Ordering::Relaxed);
            (seen == 0 || seen >> 8 == rip).then_some((place, seen & 0xff))
        });
        let (place, before) = mine.unwrap_or_else(|| {
            // Most of them call no more. Those that do have their place again at once, before others come.
            self.places.iter().for_each(|place| place.store(0, Ordering::Relaxed));
            (&self.places[first], 0)
        });
        let count = (before + 1) & 0xff;
        place.store(rip << 8 | count, Ordering::Relaxed);
        count == CALLS
    }
}

/// The sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An instruction of five bytes that does the same elsewhere and twice, and `syscall`.
    Before([u8; 5]),
    /// `xor eax, eax; syscall; cmp rax, -4096`.
    Read,
}

#[derive(Clone, Copy)]
pub(super) struct Site {
    pub at: u64,
    pub kind: Kind,
    /// The address of the pointer that it jumps by.
    pub pointer: u64,
}

/// Bytes of the jump at a site.
const JUMP: usize = 7;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov r9, [rsp + 8]`.
const STACK_BYTES: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 0x08];
pub(super) const READ_BYTES: [u8; 10] = [0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff];
/// Bytes of a slot's code up to and with the jump into the stub.
const CODE: u64 = 39;
/// Where the slot's code of a site that reads goes on after the call, and where it jumps back.
const GOES_ON: u64 = CODE + 2;
const BACK: u64 = GOES_ON + 6;

impl Site {
    /// The site whose `syscall` ends at `end` in a page of this content, if it lies in it, and if it has called by `number`:
    /// so the bytes before are the instruction that they look like, but for what [`is_inside_another`] knows.
    pub fn find(page: &[u8], end: usize, number: u64) -> Option<(usize, Kind)> {
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
    pub fn code(&self) -> u64 {
        match self.kind {
            Kind::Before(_) => self.pointer + 8,
            Kind::Read => self.pointer + 9,
        }
    }

    /// Where it goes on after the call: behind it, or, for one that reads, in its slot.
    pub fn goes_on(&self) -> u64 {
        match self.kind {
            Kind::Before(_) => self.at + JUMP as u64,
            Kind::Read => self.code() + GOES_ON,
        }
    }

    /// The address behind its `syscall`.
    pub fn call_end(&self) -> u64 {
        self.at + if self.kind == Kind::Read { 4 } else { JUMP as u64 }
    }

    /// Whether these bytes are the program's own.
    pub fn is_original(&self, bytes: &[u8]) -> bool {
        match self.kind {
            Kind::Before(first) => bytes.starts_with(&first) && bytes[first.len()..].starts_with(&SYSCALL),
            Kind::Read => bytes.starts_with(&READ_BYTES),
        }
    }

    pub fn jump(&self) -> [u8; JUMP] {
        let [a, b, c, d, ..] = self.pointer.to_le_bytes();
        [0xff, 0x24, 0x25, a, b, c, d]
    }

    /// The slot's code. `entry`: the address of the pointer to the stub's; `back`: that of a pointer behind the site.
    pub fn slot(&self, entry: u64, back: u64) -> Vec<u8> {
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
    pub by_address: BTreeMap<u64, Site>,
    /// Pointers, which are never used again, with their sites.
    pub pointers: BTreeMap<u64, Site>,
    /// Pages that somebody has read, or that hold no site.
    pub left_alone: BTreeSet<u64>,
    numbers: u64,
    reads: u64,
    pub has_slots: bool,
    /// The program has the slots' addresses.
    pub off: bool,
    /// See [`Hits`].
    pub gone: Arc<AtomicBool>,
}

impl Sites {
    /// None, of the space with these hits.
    pub fn beside(hits: &Hits) -> Self {
        Self { gone: Arc::clone(&hits.are_slots_gone), ..Self::default() }
    }

    /// The address of the pointer for another site of this kind.
    pub fn next_pointer(&mut self, kind: Kind) -> Option<u64> {
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
    pub fn leave_slot(&self, regs: &mut UserRegs, has_called: bool) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_that_call_by_turns_are_all_counted() {
        let hits = Hits::default();
        // Of two libraries, so that some share a first place.
        let sites: Vec<u64> =
            (0..PLACES as u64).map(|n| 0x7f12_3450_0000 + n % 7 * 0x2_0000 + n * 0x1b5).collect();
        for call in 1..=CALLS + 256 {
            let wanted = sites.iter().filter(|&&site| hits.note(site)).count();
            let all_wanted = call == CALLS || call == CALLS + 256;
            assert_eq!(wanted, if all_wanted { sites.len() } else { 0 }, "call {call}");
        }
    }

    #[test]
    fn sites_of_a_start_leave_room_for_those_of_a_loop() {
        let hits = Hits::default();
        for cold in 0..1000 {
            hits.note(0x40_1000 + cold * 0x35);
        }
        let sites: Vec<u64> = (0..12).map(|n| 0x7f12_3450_0000 + n % 3 * 0x2_0000 + n * 0x1b5).collect();
        let wanted = (0..2 * CALLS).flat_map(|_| sites.iter().filter(|&&site| hits.note(site))).count();
        assert!(wanted >= sites.len(), "{wanted}");
    }
}
