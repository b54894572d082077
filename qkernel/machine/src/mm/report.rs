//! Figures about an address space for `/proc`.

use alloc::vec::Vec;

use super::account;
use super::aspace::AddressSpace;
use super::frames::{self, Frame};
use super::object::MemoryObject;
use super::pagetable::Entry;
use super::vma::{Prot, VmaFlags};
use crate::errno::Result;

/// Pages of a mapping by what they are.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pages {
    /// User frames nobody else refers to.
    pub own: u64,
    /// User frames others refer to as well: a parent's or child's, or a shared object's.
    pub shared: u64,
    /// Pages of mapped host files.
    pub file: u64,
    /// Pages in the swap file.
    pub swapped: u64,
}

/// A mapping as it was when asked.
#[derive(Clone)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    pub prot: Prot,
    pub flags: VmaFlags,
    /// Offset in the object, in bytes.
    pub offset: u64,
    pub object: Option<MemoryObject>,
    /// Counted only when asked for.
    pub pages: Pages,
}

impl AddressSpace {
    /// All mappings, in order.
    pub fn regions(&self, count_pages: bool) -> Result<Vec<Region>> {
        let mut space = self.lock();
        let space = &mut *space;
        let mut regions: Vec<Region> = account::vec(space.vmas.len())?;
        for vma in space.vmas.values() {
            let mut pages = Pages::default();
            if count_pages {
                space.table.for_each(vma.start, vma.end, |_, entry| pages.count(*entry));
            }
            regions.push(Region {
                start: vma.start,
                end: vma.end,
                prot: vma.prot,
                flags: vma.flags,
                offset: vma.offset,
                object: vma.object.clone(),
                pages,
            });
        }
        Ok(regions)
    }
}

impl Pages {
    fn count(&mut self, entry: Entry) {
        if entry.has(Entry::SWAPPED) {
            self.swapped += 1;
        } else if entry.is_frame() {
            if frames::is_exclusive(Frame::new(entry.phys())) {
                self.own += 1;
            } else {
                self.shared += 1;
            }
        } else if entry.holds_page() {
            self.file += 1;
        }
    }

    /// Pages in memory.
    pub fn resident(&self) -> u64 {
        self.own + self.shared + self.file
    }
}
