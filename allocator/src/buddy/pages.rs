//! Pages by binary buddies, with all bookkeeping outside the pages.

use core::fmt;
use core::ptr::{self, NonNull};

use super::ledger::Ledger;

/// Bytes in a page.
pub const PAGE_BYTES: usize = 4096;

/// The largest block is `1 << MAX_ORDER` pages, 1 GiB.
pub const MAX_ORDER: u32 = 18;

const ORDERS: usize = MAX_ORDER as usize + 1;

/// Bits of a link in an [`Entry`].
const LINK_BITS: u32 = 28;

/// The most pages a heap can have: links are page numbers plus one.
const MAX_PAGES: usize = (1 << LINK_BITS) - 1;

/// Why pages could not be freed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// The address is not that of a page of the heap.
    OutOfRange,
    /// No block of that order is allocated there: freed twice, or with another order than it was allocated
    /// with.
    NotAllocated,
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "the address is not that of a page of the heap",
            Self::NotAllocated => "no block of that order is allocated there",
        })
    }
}

impl core::error::Error for FreeError {}

/// The state of a page. Zero: the page opens no block.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PageState(u8);

impl PageState {
    const INSIDE: Self = Self(0);
    const ORDER: u8 = 0x1f;
    /// The free block may hold something else than zeros.
    const DIRTY: u8 = 0x20;
    const FREE: u8 = 0x40;
    const USED: u8 = 0x80;

    const fn free(order: u32, dirty: bool) -> Self {
        Self(Self::FREE | if dirty { Self::DIRTY } else { 0 } | Self::order_bits(order))
    }

    const fn used(order: u32) -> Self {
        Self(Self::USED | Self::order_bits(order))
    }

    /// `order`, at most `MAX_ORDER`, as it is kept.
    const fn order_bits(order: u32) -> u8 {
        const { assert!(MAX_ORDER <= Self::ORDER as u32) };
        order.to_le_bytes()[0] & Self::ORDER
    }

    const fn order(self) -> u32 {
        (self.0 & Self::ORDER) as u32
    }

    const fn is_used(self) -> bool {
        self.0 & Self::USED != 0
    }

    const fn is_free(self) -> bool {
        self.0 & Self::FREE != 0
    }

    const fn is_dirty(self) -> bool {
        self.0 & Self::DIRTY != 0
    }
}

/// The bookkeeping of a page, all in one word so that a block's is found with one touch. Zero is valid:
/// inside a block.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Entry(u64);

impl Entry {
    const LINK: u64 = (1 << LINK_BITS) - 1;

    /// A free block with its neighbours on the list.
    fn new(state: PageState, next: Option<usize>, prev: Option<usize>) -> Self {
        let link = |page: Option<usize>| page.map_or(0, |page| page as u64 + 1);
        Self(u64::from(state.0) << (2 * LINK_BITS) | link(next) << LINK_BITS | link(prev))
    }

    /// A block that is allocated, and on no list.
    fn used(order: u32, owner: u8) -> Self {
        Self(u64::from(PageState::used(order).0) << (2 * LINK_BITS) | u64::from(owner))
    }

    /// The owner of an allocated block.
    const fn owner(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    const fn state(self) -> PageState {
        PageState((self.0 >> (2 * LINK_BITS)) as u8)
    }

    /// The page that the lowest bits link to.
    fn link(bits: u64) -> Option<usize> {
        usize::try_from((bits & Self::LINK).checked_sub(1)?).ok()
    }

    fn next(self) -> Option<usize> {
        Self::link(self.0 >> LINK_BITS)
    }

    fn prev(self) -> Option<usize> {
        Self::link(self.0)
    }
}

/// A block that was allocated.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) start: NonNull<u8>,
    /// It holds zeros.
    pub(super) clean: bool,
}

/// The buddy allocator. Not synchronised.
pub(super) struct Buddy {
    base: *mut u8,
    /// The page number of `base` in the address space, so that blocks are aligned to their size there.
    base_number: usize,
    /// Pages of the range, the table included.
    pages: usize,
    /// Pages of the table, which opens the range and has an entry for each page of it.
    table_pages: usize,
    /// The first free block of each order.
    heads: [Option<usize>; ORDERS],
    /// Bit `k` is set when order `k` has a free block.
    occupied: u32,
    free_pages: usize,
    dirty_free_pages: usize,
    /// The fewest there were since somebody asked.
    dirty_low_pages: usize,
    /// Buddies may be apart because only one of them is dirty.
    is_divided: bool,
    /// Whose the allocated pages are.
    ledger: &'static Ledger,
}

// SAFETY: its pointers lead to memory that is the allocator's alone.
unsafe impl Send for Buddy {}

impl Buddy {
    /// An allocator without memory.
    pub(super) const fn empty(ledger: &'static Ledger) -> Self {
        Self {
            base: ptr::null_mut(),
            base_number: 0,
            pages: 0,
            table_pages: 0,
            heads: [None; ORDERS],
            occupied: 0,
            free_pages: 0,
            dirty_free_pages: 0,
            dirty_low_pages: 0,
            is_divided: false,
            ledger,
        }
    }

    /// Takes the range `start..start + len_bytes`, rounded inwards to pages; it replaces the former range.
    ///
    /// # Safety
    /// The range is mapped, writable, zero-filled, and the allocator's alone for its whole life.
    pub(super) unsafe fn init(&mut self, start: NonNull<u8>, len_bytes: usize) {
        *self = Self::empty(self.ledger);
        let skip = start.addr().get().wrapping_neg() % PAGE_BYTES;
        let pages = (len_bytes.saturating_sub(skip) / PAGE_BYTES).min(MAX_PAGES);
        let table_pages = (pages * size_of::<Entry>()).div_ceil(PAGE_BYTES);
        if table_pages >= pages {
            return;
        }
        // SAFETY: `skip` lies within the range, as at least one page follows it.
        self.base = unsafe { start.as_ptr().add(skip) };
        self.base_number = self.base.addr() / PAGE_BYTES;
        (self.pages, self.table_pages) = (pages, table_pages);
        let mut page = table_pages;
        while page < pages {
            let aligned = (self.base_number + page).trailing_zeros();
            let order = aligned.min((pages - page).ilog2()).min(MAX_ORDER);
            self.link(page, order, false);
            page += 1 << order;
        }
    }

    /// Allocates `1 << order` pages, aligned to as much.
    pub(super) fn alloc(&mut self, order: u32) -> Option<Block> {
        if order > MAX_ORDER {
            return None;
        }
        let (page, found) = self.first_of(order).or_else(|| {
            self.unite();
            self.first_of(order)
        })?;
        let dirty = self.state(page).is_dirty();
        self.unlink(page);
        for half in (order..found).rev() {
            self.link(page + (1 << half), half, dirty);
        }
        self.dirty_low_pages = self.dirty_low_pages.min(self.dirty_free_pages);
        let owner = self.ledger.current();
        self.ledger.add(owner, 1 << order);
        self.set_entry(page, Entry::used(order, owner));
        Some(Block { start: self.pointer(page), clean: !dirty })
    }

    /// A free block of this order, or of the next larger one there is.
    fn first_of(&self, order: u32) -> Option<(usize, u32)> {
        let found = (self.occupied >> order << order).trailing_zeros();
        Some(((*self.heads.get(found as usize)?)?, found))
    }

    /// Unites free buddies that are apart because only one of them is dirty. Not again before there are such.
    fn unite(&mut self) {
        if !core::mem::take(&mut self.is_divided) {
            return;
        }
        let mut page = self.table_pages;
        while page < self.pages {
            let state = self.state(page);
            page = if state.is_free() {
                self.unlink(page);
                let (start, order) = self.merge(page, state.order(), state.is_dirty(), true);
                start + (1 << order)
            } else if state == PageState::INSIDE {
                page + 1
            } else {
                page + (1 << state.order())
            };
        }
    }

    /// Frees `1 << order` pages.
    pub(super) fn free(&mut self, start: NonNull<u8>, order: u32) -> Result<(), FreeError> {
        let page = self.page_of(start.addr().get()).ok_or(FreeError::OutOfRange)?;
        if !start.addr().get().is_multiple_of(PAGE_BYTES) {
            return Err(FreeError::OutOfRange);
        }
        if order > MAX_ORDER || self.state(page) != PageState::used(order) {
            return Err(FreeError::NotAllocated);
        }
        self.ledger.remove(self.entry(page).owner(), 1 << order);
        self.merge(page, order, true, false);
        Ok(())
    }

    /// Charges an allocated block to another owner.
    pub(super) fn give(&mut self, start: NonNull<u8>, owner: u8) {
        let Some(page) = self.page_of(start.addr().get()) else { return };
        let entry = self.entry(page);
        if entry.state().is_used() {
            let order = entry.state().order();
            self.ledger.remove(entry.owner(), 1 << order);
            self.ledger.add(owner, 1 << order);
            self.set_entry(page, Entry::used(order, owner));
        }
    }

    /// Charges the blocks of owner `from` among the next `most` ones at or after `page` to owner `to`; the page to go on
    /// from, unless these were the last.
    pub(super) fn give_all(&mut self, page: usize, most: usize, from: u8, to: u8) -> Option<usize> {
        let mut page = page.max(self.table_pages);
        for _ in 0..most {
            if page >= self.pages {
                return None;
            }
            let entry = self.entry(page);
            if entry.state().is_used() && entry.owner() == from {
                self.give(self.pointer(page), to);
            }
            page += match entry.state() {
                PageState::INSIDE => 1,
                state => 1 << state.order(),
            };
        }
        Some(page)
    }

    /// Sets aside the first run of neighbouring dirty free blocks at or after page `from`, until
    /// [`Buddy::settle`], up to `most` pages of it (a power of two). Returns its first page and the page after its last.
    pub(super) fn claim_dirty(&mut self, from: usize, most: usize) -> Option<(usize, usize)> {
        let mut page = from.max(self.table_pages);
        while page < self.pages && !self.state(page).is_dirty() {
            page += match self.state(page) {
                PageState::INSIDE => 1,
                state => 1 << state.order(),
            };
        }
        let start = page;
        while page < self.pages && page - start < most && self.state(page).is_dirty() {
            let mut order = self.state(page).order();
            self.unlink(page);
            while 1 << order > most {
                order -= 1;
                self.link(page + (1 << order), order, true);
            }
            self.set_state(page, PageState::used(order));
            page += 1 << order;
        }
        (start < page).then_some((start, page))
    }

    /// Makes a run from [`Buddy::claim_dirty`] free again; `clean` says that it holds zeros now.
    pub(super) fn settle(&mut self, start: usize, end: usize, clean: bool) {
        let mut page = start;
        while page < end {
            let order = self.state(page).order();
            self.merge(page, order, !clean, false);
            page += 1 << order;
        }
        self.dirty_low_pages = self.dirty_low_pages.min(self.dirty_free_pages);
    }

    /// The address of a page.
    pub(super) fn pointer(&self, page: usize) -> NonNull<u8> {
        debug_assert!(page < self.pages);
        // SAFETY: the page lies within the range given to `init`, which is not at address zero.
        unsafe { NonNull::new_unchecked(self.base.add(page * PAGE_BYTES)) }
    }

    /// The page that contains an address, unless it lies in the table or outside.
    pub(super) fn page_of(&self, addr: usize) -> Option<usize> {
        let page = (addr / PAGE_BYTES).checked_sub(self.base_number)?;
        (page >= self.table_pages && page < self.pages).then_some(page)
    }

    pub(super) fn total_bytes(&self) -> usize {
        (self.pages - self.table_pages) * PAGE_BYTES
    }

    pub(super) fn free_bytes(&self) -> usize {
        self.free_pages * PAGE_BYTES
    }

    pub(super) fn dirty_free_bytes(&self) -> usize {
        self.dirty_free_pages * PAGE_BYTES
    }

    /// The fewest dirty free bytes there were at a time since this was asked last.
    pub(super) fn take_dirty_low_bytes(&mut self) -> usize {
        core::mem::replace(&mut self.dirty_low_pages, self.dirty_free_pages) * PAGE_BYTES
    }

    /// Makes a block free, together with its buddy if that is free, and so on upwards; what it is part of then. Unless
    /// `mixed`, clean and dirty blocks stay apart: one page must not make a gigabyte count as used.
    fn merge(&mut self, mut page: usize, mut order: u32, mut dirty: bool, mixed: bool) -> (usize, u32) {
        while order < MAX_ORDER {
            let Some(buddy) = ((self.base_number + page) ^ (1 << order)).checked_sub(self.base_number) else {
                break;
            };
            if buddy < self.table_pages || buddy >= self.pages {
                break;
            }
            let state = self.state(buddy);
            if !state.is_free() || state.order() != order {
                break;
            }
            if state.is_dirty() != dirty && !mixed {
                self.is_divided = true;
                break;
            }
            dirty |= state.is_dirty();
            self.unlink(buddy);
            self.set_state(page.max(buddy), PageState::INSIDE);
            page = page.min(buddy);
            order += 1;
        }
        self.link(page, order, dirty);
        (page, order)
    }

    /// Puts a block at the head of its order's list and marks it free.
    fn link(&mut self, page: usize, order: u32, dirty: bool) {
        let next = self.heads[order as usize];
        self.set_entry(page, Entry::new(PageState::free(order, dirty), next, None));
        if let Some(next) = next {
            let entry = self.entry(next);
            self.set_entry(next, Entry::new(entry.state(), entry.next(), Some(page)));
        }
        self.heads[order as usize] = Some(page);
        self.occupied |= 1 << order;
        self.free_pages += 1 << order;
        if dirty {
            self.dirty_free_pages += 1 << order;
        }
    }

    /// Takes a free block off its list. Its entry is left to the caller.
    fn unlink(&mut self, page: usize) {
        let entry = self.entry(page);
        let order = entry.state().order();
        match entry.prev() {
            Some(prev) => {
                let before = self.entry(prev);
                self.set_entry(prev, Entry::new(before.state(), entry.next(), before.prev()));
            }
            None => self.heads[order as usize] = entry.next(),
        }
        if let Some(next) = entry.next() {
            let after = self.entry(next);
            self.set_entry(next, Entry::new(after.state(), after.next(), entry.prev()));
        }
        if self.heads[order as usize].is_none() {
            self.occupied &= !(1 << order);
        }
        self.free_pages -= 1 << order;
        if entry.state().is_dirty() {
            self.dirty_free_pages -= 1 << order;
        }
    }

    fn state(&self, page: usize) -> PageState {
        self.entry(page).state()
    }

    /// Sets the state of a page that is on no list.
    fn set_state(&mut self, page: usize, state: PageState) {
        self.set_entry(page, Entry::new(state, None, None));
    }

    fn entry(&self, page: usize) -> Entry {
        debug_assert!(page < self.pages);
        // SAFETY: the table has an entry for each page, it is page-aligned, and any word is a valid entry.
        unsafe { self.base.cast::<Entry>().add(page).read() }
    }

    fn set_entry(&mut self, page: usize, entry: Entry) {
        debug_assert!(page < self.pages);
        // SAFETY: the table has an entry for each page, and is page-aligned.
        unsafe { self.base.cast::<Entry>().add(page).write(entry) }
    }
}
