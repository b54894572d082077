//! Small objects: size classes, and slabs of equal objects cut from buddy pages.
//!
//! A slab opens with a header, and free objects of it form a list through their first word. Objects that were
//! never handed out are not on the list but counted, so that a fresh slab touches no more of its pages than
//! it must.

use core::alloc::Layout;
use core::ptr::{self, NonNull};

use super::HeapStats;
use super::ledger::Ledger;
use super::pages::{Block, Buddy, MAX_ORDER, PAGE_BYTES};

/// Object sizes in bytes. Each is aligned to the largest power of two that divides it.
const CLASS_BYTES: [usize; 13] = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048];

/// The largest size served from slabs.
const MAX_OBJECT_BYTES: usize = CLASS_BYTES[CLASS_BYTES.len() - 1];

/// Empty slabs a class keeps for its next objects.
const KEPT_EMPTY_SLABS: usize = 1;

/// The smallest class for a size, by the size in units of 16 bytes, rounded up.
const CLASS_OF: [u8; MAX_OBJECT_BYTES / 16 + 1] = {
    let mut table = [0; MAX_OBJECT_BYTES / 16 + 1];
    let (mut unit, mut class) = (0, 0);
    while unit < table.len() {
        if unit * 16 > CLASS_BYTES[class] {
            class += 1;
        }
        assert!(class <= u8::MAX as usize);
        table[unit] = class.to_le_bytes()[0];
        unit += 1;
    }
    table
};

/// How a request is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// From slabs of this class.
    Class(usize),
    /// By a block of this order.
    Pages(u32),
}

impl Fit {
    /// `None` if the request is larger than any block.
    pub(super) fn of(layout: Layout) -> Option<Self> {
        if layout.size() <= MAX_OBJECT_BYTES {
            let mut class = usize::from(CLASS_OF[layout.size().div_ceil(16)]);
            while class < CLASS_BYTES.len() {
                if class_align(class) >= layout.align() {
                    return Some(Self::Class(class));
                }
                class += 1;
            }
        }
        let bytes = layout.size().max(layout.align()).checked_next_power_of_two()?;
        let order = bytes.div_ceil(PAGE_BYTES).ilog2();
        (order <= MAX_ORDER).then_some(Self::Pages(order))
    }
}

const fn class_align(class: usize) -> usize {
    1 << CLASS_BYTES[class].trailing_zeros()
}

/// Larger objects come from larger slabs, so that the header wastes at most an eighth.
const fn slab_order(class: usize) -> u32 {
    match CLASS_BYTES[class] {
        0..=512 => 0,
        513..=1024 => 1,
        _ => 2,
    }
}

const fn slab_bytes(class: usize) -> usize {
    PAGE_BYTES << slab_order(class)
}

/// Where the first object of a slab stands.
const fn first_object(class: usize) -> usize {
    size_of::<Slab>().next_multiple_of(class_align(class))
}

const fn capacity(class: usize) -> usize {
    (slab_bytes(class) - first_object(class)) / CLASS_BYTES[class]
}

/// The header of a slab.
#[repr(C)]
struct Slab {
    next: *mut Slab,
    prev: *mut Slab,
    /// Objects that were freed.
    free: *mut FreeObject,
    /// Objects that were ever handed out.
    opened: u32,
    /// Objects handed out now.
    used: u32,
}

/// A free object's link to the next one.
struct FreeObject {
    next: *mut FreeObject,
}

const _: () =
    assert!(size_of::<FreeObject>() <= CLASS_BYTES[0] && align_of::<FreeObject>() <= CLASS_BYTES[0]);

/// The slabs of one size.
#[derive(Clone, Copy)]
struct Class {
    /// Slabs with an object to give. Full slabs are on no list.
    partial: *mut Slab,
    /// How many of them are empty.
    empty: usize,
    /// All slabs, full ones included.
    slabs: usize,
    /// Objects handed out.
    objects: usize,
}

const NO_SLABS: Class = Class { partial: ptr::null_mut(), empty: 0, slabs: 0, objects: 0 };

/// Pages and small objects. Not synchronised.
pub(super) struct Heap {
    pub(super) buddy: Buddy,
    classes: [Class; CLASS_BYTES.len()],
}

// SAFETY: its pointers lead to slabs in memory that is the heap's alone.
unsafe impl Send for Heap {}

impl Heap {
    pub(super) const fn empty(ledger: &'static Ledger) -> Self {
        Self { buddy: Buddy::empty(ledger), classes: [NO_SLABS; CLASS_BYTES.len()] }
    }

    /// Gives the heap its memory.
    ///
    /// # Safety
    /// As for [`Buddy::init`].
    pub(super) unsafe fn init(&mut self, start: NonNull<u8>, len_bytes: usize) {
        self.classes = [NO_SLABS; CLASS_BYTES.len()];
        // SAFETY: the caller's promise.
        unsafe { self.buddy.init(start, len_bytes) }
    }

    /// Allocates an object or pages. Objects never count as clean.
    pub(super) fn alloc(&mut self, fit: Fit) -> Option<Block> {
        match fit {
            Fit::Pages(order) => self.buddy.alloc(order),
            Fit::Class(class) => Some(Block { start: self.alloc_object(class)?, clean: false }),
        }
    }

    /// Frees what [`Heap::alloc`] returned for the same `fit`.
    ///
    /// # Safety
    /// `start` came from `alloc(fit)` and was not freed since; nobody uses it any more.
    pub(super) unsafe fn free(&mut self, start: NonNull<u8>, fit: Fit) {
        match fit {
            Fit::Pages(order) => {
                let freed = self.buddy.free(start, order);
                debug_assert!(freed.is_ok(), "freed pages that are not allocated");
            }
            // SAFETY: the caller's promise.
            Fit::Class(class) => unsafe { self.free_object(start, class) },
        }
    }

    /// Gives all empty slabs back to the buddies.
    pub(super) fn release_empty_slabs(&mut self) {
        for class in 0..CLASS_BYTES.len() {
            let mut slab = self.classes[class].partial;
            while !slab.is_null() {
                // SAFETY: slabs on the list are live headers.
                let (next, used) = unsafe { ((*slab).next, (*slab).used) };
                if used == 0 {
                    self.classes[class].empty -= 1;
                    // SAFETY: the slab is on the list, and empty.
                    unsafe { self.destroy(slab, class) };
                }
                slab = next;
            }
        }
    }

    pub(super) fn stats(&self) -> HeapStats {
        let sum = |f: fn(usize, &Class) -> usize| self.classes.iter().enumerate().map(|(k, c)| f(k, c)).sum();
        HeapStats {
            total_bytes: self.buddy.total_bytes(),
            used_bytes: self.buddy.total_bytes() - self.buddy.free_bytes(),
            free_bytes: self.buddy.free_bytes(),
            dirty_free_bytes: self.buddy.dirty_free_bytes(),
            slab_bytes: sum(|k, class| class.slabs * slab_bytes(k)),
            object_bytes: sum(|k, class| class.objects * CLASS_BYTES[k]),
        }
    }

    fn alloc_object(&mut self, class: usize) -> Option<NonNull<u8>> {
        let slab = match NonNull::new(self.classes[class].partial) {
            Some(slab) => slab.as_ptr(),
            None => self.create(class)?,
        };
        self.classes[class].objects += 1;
        // SAFETY: (1) slabs on the list are live headers, reached by nobody else; (2) such a slab has a freed
        // object or one that was never handed out, so `opened` is below the capacity and the object lies
        // within the slab.
        unsafe {
            if (*slab).used == 0 {
                self.classes[class].empty -= 1;
            }
            let object = if (*slab).free.is_null() {
                let offset = first_object(class) + (*slab).opened as usize * CLASS_BYTES[class];
                (*slab).opened += 1;
                slab.cast::<u8>().add(offset)
            } else {
                let object = (*slab).free;
                (*slab).free = (*object).next;
                object.cast()
            };
            (*slab).used += 1;
            if (*slab).used as usize == capacity(class) {
                self.unlink(slab, class);
            }
            NonNull::new(object)
        }
    }

    /// # Safety
    /// As for [`Heap::free`].
    unsafe fn free_object(&mut self, start: NonNull<u8>, class: usize) {
        let inside = start.addr().get() % slab_bytes(class);
        let Some(page) = self.buddy.page_of(start.addr().get() - inside) else {
            debug_assert!(false, "freed an object that is not of this heap");
            return;
        };
        debug_assert!(
            inside >= first_object(class)
                && (inside - first_object(class)).is_multiple_of(CLASS_BYTES[class])
        );
        let slab: *mut Slab = self.buddy.pointer(page).as_ptr().cast();
        self.classes[class].objects -= 1;
        // SAFETY: (1) slabs are aligned to their size, so the object's slab starts there, and it is live as
        // the object was not freed; (2) the object is the caller's to give, large and aligned enough for a
        // link.
        unsafe {
            let object: *mut FreeObject = slab.cast::<u8>().add(inside).cast();
            object.write(FreeObject { next: (*slab).free });
            (*slab).free = object;
            if (*slab).used as usize == capacity(class) {
                self.link(slab, class);
            }
            (*slab).used -= 1;
            if (*slab).used > 0 {
                return;
            }
            if self.classes[class].empty < KEPT_EMPTY_SLABS {
                self.classes[class].empty += 1;
            } else {
                self.destroy(slab, class);
            }
        }
    }

    /// Makes an empty slab and puts it on the list.
    fn create(&mut self, class: usize) -> Option<*mut Slab> {
        let slab: *mut Slab = self.buddy.alloc(slab_order(class))?.start.as_ptr().cast();
        let header =
            Slab { next: ptr::null_mut(), prev: ptr::null_mut(), free: ptr::null_mut(), opened: 0, used: 0 };
        // SAFETY: the pages are fresh from the buddy allocator, page-aligned, and larger than a header.
        unsafe {
            slab.write(header);
            self.link(slab, class);
        }
        self.classes[class].empty += 1;
        self.classes[class].slabs += 1;
        Some(slab)
    }

    /// Takes an empty slab off the list and frees its pages.
    ///
    /// # Safety
    /// The slab is on the list of `class`, and empty.
    unsafe fn destroy(&mut self, slab: *mut Slab, class: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.unlink(slab, class) };
        self.classes[class].slabs -= 1;
        if let Some(start) = NonNull::new(slab.cast()) {
            let freed = self.buddy.free(start, slab_order(class));
            debug_assert!(freed.is_ok(), "a slab without pages");
        }
    }

    /// # Safety
    /// The slab is live, of this class, and on no list.
    unsafe fn link(&mut self, slab: *mut Slab, class: usize) {
        let next = self.classes[class].partial;
        // SAFETY: the caller's promise for `slab`; `next` is on the list, so it is live.
        unsafe {
            ((*slab).next, (*slab).prev) = (next, ptr::null_mut());
            if let Some(next) = next.as_mut() {
                next.prev = slab;
            }
        }
        self.classes[class].partial = slab;
    }

    /// # Safety
    /// The slab is on the list of `class`.
    unsafe fn unlink(&mut self, slab: *mut Slab, class: usize) {
        // SAFETY: the slab is on the list, so it and its neighbours are live.
        unsafe {
            let (next, prev) = ((*slab).next, (*slab).prev);
            match prev.as_mut() {
                Some(prev) => prev.next = next,
                None => self.classes[class].partial = next,
            }
            if let Some(next) = next.as_mut() {
                next.prev = prev;
            }
        }
    }
}
