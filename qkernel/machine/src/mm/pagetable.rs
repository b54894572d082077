//! 4-level page tables in the processor's format; the truth about user memory on both platforms.

use abi::layout::{TEMPLATE_PHYS, USER_PHYS, WINDOW_PHYS};
use abi::word::to_usize;

use super::page::{PAGE, PAGE_BYTES};
use super::physical::account;
use super::physical::frames::Frame;
use crate::arch::ring0;
use crate::errno::{Errno, Result};
use crate::heap;
use crate::owner::{self, Owner};
use crate::platform;
use crate::sched::work;

/// A page-table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(pub u64);

impl Entry {
    pub const PRESENT: u64 = 1;
    pub const WRITABLE: u64 = 2;
    pub const USER: u64 = 4;
    pub const ACCESSED: u64 = 1 << 5;
    pub const DIRTY: u64 = 1 << 6;
    /// The page was put in the swap file (Hibernate Container, section 3.4); not present. Whether the frame's content has
    /// come back meanwhile, through another entry, is for [`super::physical::residency`] to say.
    pub const SWAPPED: u64 = 1 << 9;
    /// The stub may have this page mapped (systrap).
    pub const MIRRORED: u64 = 1 << 10;
    /// Not present because the mapping forbids all access, but the frame is still the mapping's.
    pub const KEPT: u64 = 1 << 11;
    /// A copy of a file's page with patched call sites ([`super::sites`]).
    pub const PATCHED: u64 = 1 << 52;
    pub const NO_EXECUTE: u64 = 1 << 63;
    const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

    pub const NONE: Entry = Entry(0);

    /// An entry for the page at `phys`.
    pub const fn new(phys: u64, flags: u64) -> Self {
        Self((phys & Self::ADDRESS) | flags)
    }
    pub const fn phys(self) -> u64 {
        self.0 & Self::ADDRESS
    }
    pub const fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }
    /// Whether it holds a page, accessible or not, in memory or not.
    pub const fn holds_page(self) -> bool {
        self.has(Self::PRESENT | Self::KEPT | Self::SWAPPED)
    }
    /// Gives the entry that it becomes once its page's content is in the swap file, or while the template is not shown: never present.
    pub const fn swapped(self) -> Self {
        let entry = match self.held() {
            Some(frame) if self.is_of_template() => {
                Self::new(frame.addr(), self.0 & !(Self::ADDRESS | Self::WRITABLE))
            }
            _ => self,
        };
        Self((entry.0 & !Self::PRESENT) | Self::SWAPPED)
    }
    /// Gives the entry that it becomes once its page's content is back: present, unless the mapping forbids all access.
    pub const fn brought_in(self) -> Self {
        let present = if self.has(Self::KEPT) { 0 } else { Self::PRESENT };
        Self((self.0 & !Self::SWAPPED) | present)
    }
    /// Gives the entry by which a swapped one shows the template's page of its frame: present, unless the mapping forbids all access, and
    /// never writable. The frame stays its own.
    pub fn shown_by_template(self) -> Self {
        let Some(frame) = self.held() else { return self };
        let flags = self.brought_in().0 & !(Self::ADDRESS | Self::WRITABLE);
        Self::new(template_phys(frame), flags)
    }
    /// Whether it shows a page of the template, accessible or not.
    #[inline]
    pub const fn is_of_template(self) -> bool {
        matches!(self.region(), Some(Region::Template(_)))
    }
    /// The region that its page is in, accessible or not, in memory or not. `None`: it holds no page.
    #[inline]
    pub const fn region(self) -> Option<Region> {
        if self.holds_page() { Some(Region::of(self.phys())) } else { None }
    }
    /// The user frame that its page is, accessible or not, in memory or not.
    #[inline]
    pub const fn frame(self) -> Option<Frame> {
        match self.region() {
            Some(Region::Frame(frame)) => Some(frame),
            Some(Region::Window(_) | Region::Template(_)) | None => None,
        }
    }
    /// The user frame that it has a reference to: that which its page is, or whose page the template shows in its place.
    #[inline]
    pub const fn held(self) -> Option<Frame> {
        match self.region() {
            Some(Region::Frame(frame)) => Some(frame),
            Some(Region::Template(phys)) => Some(Frame::containing(phys - TEMPLATE_PHYS + USER_PHYS)),
            Some(Region::Window(_)) | None => None,
        }
    }
    /// The user frame of a swapped entry that becomes present with the frame's content: one whose mapping permits access.
    #[inline]
    pub const fn coming(self) -> Option<Frame> {
        if self.has(Self::SWAPPED) && !self.has(Self::KEPT) { self.frame() } else { None }
    }
}

/// A region of guest-physical space that entries show pages of, and the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Region {
    /// User memory: a frame, which the entry has a reference to.
    Frame(Frame),
    /// The file window: a guest-physical address there. Its page is the host's, and a copy of it may fail.
    Window(u64),
    /// The template: a guest-physical address there. It is only read, and a copy of it may fail. The entry has a reference to the frame of
    /// that number, whose own content is away, or the same.
    Template(u64),
}

/// The place of a frame's page in the template.
fn template_phys(frame: Frame) -> u64 {
    frame.addr() - USER_PHYS + TEMPLATE_PHYS
}

impl Region {
    /// The region of a guest-physical address that an entry leads to.
    #[inline]
    pub const fn of(phys: u64) -> Self {
        if phys < WINDOW_PHYS {
            Self::Frame(Frame::containing(phys))
        } else if phys < TEMPLATE_PHYS {
            Self::Window(phys)
        } else {
            Self::Template(phys)
        }
    }
}

/// A root and its tables. Tables are pages of the kernel heap.
pub struct PageTable {
    root: u64,
    /// Pages of tables, the root's included.
    tables: usize,
    /// For whom the host keeps its own.
    owner: Owner,
    /// See [`Self::never_wait`].
    never_waits: bool,
}

const ENTRIES: usize = 512;
/// So many entries are a unit of work.
const ENTRIES_A_UNIT: u32 = 4;
/// Entries of the root that cover user addresses.
const USER_ROOT_ENTRIES: usize = 256;
const TABLE: u64 = Entry::PRESENT | Entry::WRITABLE | Entry::USER;

fn index(addr: u64, level: u32) -> usize {
    to_usize(addr >> (12 + 9 * level)) & (ENTRIES - 1)
}

fn entries(phys: u64) -> *mut u64 {
    platform::ptr(phys)
}

/// The host's page tables of a stub are as many as the tables they mirror, at most.
fn host_side_bytes() -> usize {
    if platform::current().mirrors() { PAGE_BYTES } else { 0 }
}

fn new_table(owner: Owner) -> Result<u64> {
    account::check(PAGE_BYTES + host_side_bytes())?;
    let linear = heap::alloc_zeroed_page().ok_or(Errno::ENOMEM)?;
    account::add_host_side(owner, host_side_bytes());
    Ok(platform::phys_of(linear as *const u8))
}

/// Uncharges so many tables that were freed.
fn uncharge(owner: Owner, tables: usize) {
    account::remove_host_side(owner, tables * host_side_bytes());
}

/// Makes the page tables that a processor uses while no address space is entered. Called once, before the first task.
pub fn init() -> Result<()> {
    if !platform::current().mirrors() {
        let table = PageTable::new()?;
        platform::set_kernel_root(table.root);
        core::mem::forget(table);
    }
    Ok(())
}

impl PageTable {
    /// An empty user half over the kernel's upper half.
    pub fn new() -> Result<Self> {
        let owner = owner::current();
        let root = new_table(owner)?;
        if !platform::current().mirrors() {
            for (i, entry) in ring0::kernel_page_table_template().iter().enumerate() {
                // SAFETY: the root is a fresh table page of 512 entries.
                unsafe { entries(root).add(USER_ROOT_ENTRIES + i).write(*entry) };
            }
        }
        Ok(Self { root, tables: 1, owner, never_waits: false })
    }

    /// Guest-physical address of the root.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// Bytes of kernel memory that the tables take, the host's share included.
    pub fn bytes(&self) -> usize {
        self.tables * (PAGE_BYTES + host_side_bytes())
    }

    /// The leaf entry of `addr`, if its tables exist.
    fn leaf(&self, addr: u64) -> Option<*mut u64> {
        let mut table = self.root;
        for level in (1..4).rev() {
            // SAFETY: `table` is a table page of ours.
            let entry = Entry(unsafe { *entries(table).add(index(addr, level)) });
            if !entry.has(Entry::PRESENT) {
                return None;
            }
            table = entry.phys();
        }
        // SAFETY: the index is below 512.
        Some(unsafe { entries(table).add(index(addr, 0)) })
    }

    /// The leaf entry of `addr`, making tables on the way.
    fn leaf_or_make(&mut self, addr: u64) -> Result<*mut u64> {
        let mut table = self.root;
        for level in (1..4).rev() {
            // SAFETY: `table` is a table page of ours.
            let slot = unsafe { &mut *entries(table).add(index(addr, level)) };
            if !Entry(*slot).has(Entry::PRESENT) {
                *slot = Entry::new(new_table(self.owner)?, TABLE).0;
                self.tables += 1;
            }
            table = Entry(*slot).phys();
        }
        // SAFETY: the index is below 512.
        Ok(unsafe { entries(table).add(index(addr, 0)) })
    }

    /// The entry of the page at `addr`.
    pub fn get(&self, addr: u64) -> Entry {
        // SAFETY: leaf pointers point into live tables; the processor only adds accessed and dirty bits.
        self.leaf(addr).map_or(Entry::NONE, |leaf| Entry(unsafe { leaf.read_volatile() }))
    }

    /// Sets the entry of the page at `addr`.
    pub fn set(&mut self, addr: u64, entry: Entry) -> Result<()> {
        let leaf = self.leaf_or_make(addr)?;
        // SAFETY: as above.
        unsafe { leaf.write_volatile(entry.0) };
        Ok(())
    }

    /// Calls `f` for every entry in `[start, end)` that isn't zero; `f` may change it.
    pub fn for_each(&mut self, start: u64, end: u64, mut f: impl FnMut(u64, &mut Entry)) {
        let mut addr = start;
        while addr < end {
            let (table, span) = self.table_at(addr);
            let next = ((addr / span) + 1) * span;
            let Some(table) = table else {
                self.count(1);
                addr = next;
                continue;
            };
            let stop = end.min(next);
            let mut found = 0;
            while addr < stop {
                // SAFETY: `table` is a live lowest-level table and the index is below 512.
                let slot = unsafe { &mut *entries(table).add(index(addr, 0)) };
                if *slot != 0 {
                    found += 1;
                    let mut entry = Entry(*slot);
                    f(addr, &mut entry);
                    if entry.0 != *slot {
                        *slot = entry.0;
                    }
                }
                addr += PAGE;
            }
            self.count(1 + found / ENTRIES_A_UNIT);
        }
    }

    /// From now on it is used where nobody may sleep.
    pub fn never_wait(&mut self) {
        self.never_waits = true;
    }

    /// Looking at entries is work, of which programs choose how much.
    #[cfg_attr(feature = "checks", track_caller)]
    fn count(&self, units: u32) {
        if !self.never_waits {
            work::count(units);
        }
    }

    /// The lowest-level table of `addr`, and the bytes that the found level (present or not) covers.
    fn table_at(&self, addr: u64) -> (Option<u64>, u64) {
        let mut table = self.root;
        for level in (1..4).rev() {
            // SAFETY: `table` is a table page of ours.
            let entry = Entry(unsafe { *entries(table).add(index(addr, level)) });
            if !entry.has(Entry::PRESENT) {
                return (None, PAGE << (9 * level));
            }
            table = entry.phys();
        }
        (Some(table), PAGE << 9)
    }

    /// Frees the tables on the way to `[start, end)` that cover nothing beyond `gap`, a range without mappings around it.
    /// The caller has cleared the entries there, and no processor walks them any more.
    pub fn prune(&mut self, start: u64, end: u64, gap: (u64, u64)) {
        if start < end {
            let freed = Self::prune_level(self.root, 3, start, end, gap);
            uncharge(self.owner, freed);
            self.tables -= freed;
        }
    }

    /// Prunes below a table of `level`; returns how many tables were freed.
    fn prune_level(table: u64, level: u32, start: u64, end: u64, gap: (u64, u64)) -> usize {
        let span = PAGE << (9 * level);
        let mut freed = 0;
        let mut first = start / span * span;
        while first < end {
            // SAFETY: `table` is a table page of ours, and the index is below 512.
            let slot = unsafe { entries(table).add(index(first, level)) };
            // SAFETY: as above.
            let entry = Entry(unsafe { *slot });
            if !entry.has(Entry::PRESENT) {
            } else if gap.0 <= first && first + span <= gap.1 {
                // SAFETY: as above.
                unsafe { *slot = 0 };
                freed += Self::free_level(entry.phys(), level - 1, ENTRIES);
            } else if level > 1 {
                let (from, to) = (start.max(first), end.min(first + span));
                freed += Self::prune_level(entry.phys(), level - 1, from, to, gap);
            }
            first += span;
        }
        freed
    }

    /// Frees a table of `level` and the tables below its first `count` entries; returns how many there were.
    fn free_level(table: u64, level: u32, count: usize) -> usize {
        let mut freed = 1;
        for i in 0..if level > 0 { count } else { 0 } {
            // SAFETY: `table` is a table page of ours; nothing uses it any more.
            let entry = Entry(unsafe { *entries(table).add(i) });
            if entry.has(Entry::PRESENT) {
                freed += Self::free_level(entry.phys(), level - 1, ENTRIES);
            }
        }
        heap::free_pages(platform::linear(table), PAGE_BYTES);
        freed
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        uncharge(self.owner, Self::free_level(self.root, 3, USER_ROOT_ENTRIES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::layout::{USER_PHYS, WINDOW_PHYS_END};

    #[test]
    fn a_swapped_entry_keeps_all_but_presence() {
        let flags = Entry::PRESENT | Entry::WRITABLE | Entry::USER | Entry::DIRTY | Entry::NO_EXECUTE;
        let entry = Entry::new(USER_PHYS + PAGE, flags);
        let swapped = entry.swapped();
        assert!(!swapped.has(Entry::PRESENT) && swapped.frame().is_some() && swapped.phys() == entry.phys());
        assert_eq!(swapped.swapped(), swapped);
        assert_eq!(swapped.brought_in(), entry);
    }

    #[test]
    fn a_kept_entry_never_becomes_present() {
        let kept = Entry::new(USER_PHYS, Entry::KEPT);
        assert!(kept.swapped().frame().is_some());
        assert_eq!(kept.swapped().brought_in(), kept);
    }

    /// Flags of each kind of entry that holds a page.
    const KINDS: [u64; 8] = [
        Entry::PRESENT | Entry::USER,
        Entry::PRESENT | Entry::USER | Entry::WRITABLE | Entry::ACCESSED | Entry::DIRTY,
        Entry::PRESENT | Entry::USER | Entry::NO_EXECUTE | Entry::MIRRORED,
        Entry::PRESENT | Entry::USER | Entry::PATCHED,
        Entry::KEPT,
        Entry::KEPT | Entry::NO_EXECUTE | Entry::DIRTY,
        Entry::SWAPPED | Entry::USER | Entry::WRITABLE | Entry::NO_EXECUTE,
        Entry::SWAPPED | Entry::KEPT,
    ];

    #[test]
    fn each_kind_of_entry_says_which_region_its_page_is_in() {
        for flags in KINDS {
            for phys in [USER_PHYS, USER_PHYS + 5 * PAGE, WINDOW_PHYS - PAGE] {
                let (entry, frame) = (Entry::new(phys, flags), Frame::new(phys));
                assert_eq!(entry.region(), Some(Region::Frame(frame)), "{entry:x?}");
                assert_eq!(entry.frame(), Some(frame), "{entry:x?}");
            }
            for phys in [WINDOW_PHYS, WINDOW_PHYS + 5 * PAGE, WINDOW_PHYS_END - PAGE] {
                let entry = Entry::new(phys, flags);
                assert_eq!(entry.region(), Some(Region::Window(phys)), "{entry:x?}");
                assert_eq!((entry.frame(), entry.coming()), (None, None), "{entry:x?}");
            }
        }
    }

    #[test]
    fn an_entry_without_a_page_is_in_no_region() {
        for phys in [0, USER_PHYS, WINDOW_PHYS] {
            for flags in [0, Entry::WRITABLE | Entry::USER, Entry::ACCESSED | Entry::DIRTY, Entry::MIRRORED] {
                let entry = Entry::new(phys, flags);
                assert_eq!((entry.region(), entry.frame(), entry.coming()), (None, None, None), "{entry:x?}");
            }
        }
        assert_eq!(Entry::NONE.region(), None);
    }

    #[test]
    fn swapped_entries_refer_to_their_frame_and_come_unless_forbidden() {
        let frame = Frame::new(USER_PHYS + 7 * PAGE);
        for flags in KINDS {
            let swapped = Entry::new(frame.addr(), flags).swapped();
            assert_eq!(swapped.frame(), Some(frame), "{swapped:x?}");
            let comes = flags & Entry::KEPT == 0;
            assert_eq!(swapped.coming(), comes.then_some(frame), "{swapped:x?}");
            let here = swapped.brought_in();
            assert_eq!((here.frame(), here.coming()), (Some(frame), None), "{here:x?}");
        }
    }

    #[test]
    fn addresses_inside_a_page_are_in_its_region() {
        let frame = Frame::new(WINDOW_PHYS - PAGE);
        assert_eq!(Region::of(WINDOW_PHYS - 1), Region::Frame(frame));
        assert_eq!(Region::of(WINDOW_PHYS + 17), Region::Window(WINDOW_PHYS + 17));
    }
}
