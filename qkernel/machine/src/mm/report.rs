//! Figures about an address space for `/proc`.

use alloc::vec::Vec;

use super::aspace::AddressSpace;
use super::object::MemoryObject;
use super::page::PAGE;
use super::pagetable::{Entry, Region};
use super::physical::account;
use super::physical::frames::{self, Frame};
use super::vma::{Prot, Vma, VmaFlags};
use crate::errno::Result;
use abi::word::to_usize;

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
pub struct Mapping {
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
    /// Up to `most` mappings, in order, from the first on that ends above an address. The caller may sleep.
    pub fn mappings(&self, from: u64, most: usize, count_pages: bool) -> Result<Vec<Mapping>> {
        let mut space = self.lock();
        let space = &mut *space;
        let first = space.vmas.range(..=from).next_back().filter(|(_, vma)| vma.end > from);
        let first = first.map_or(from, |(start, _)| *start);
        let mut mappings: Vec<Mapping> = account::vec(most.min(space.vmas.len()))?;
        for vma in space.vmas.range(first..).map(|(_, vma)| vma).take(most) {
            let mut pages = Pages::default();
            if count_pages {
                space.table.for_each(vma.start, vma.end, |_, entry| pages.count(*entry));
            }
            mappings.push(Mapping {
                start: vma.start,
                end: vma.end,
                prot: vma.prot,
                flags: vma.flags,
                offset: vma.offset,
                object: vma.object.clone(),
                pages,
            });
        }
        Ok(mappings)
    }
}

/// Bits of a word of `/proc/PID/pagemap`.
const MAP_EXCLUSIVE: u64 = 1 << 56;
const MAP_FILE: u64 = 1 << 61;
const MAP_SWAPPED: u64 = 1 << 62;
const MAP_PRESENT: u64 = 1 << 63;

impl AddressSpace {
    /// The words of `/proc/PID/pagemap` for the pages from `start` on, without frame numbers, into `words` that are 0.
    pub fn page_map(&self, start: u64, words: &mut [u64]) {
        let mut space = self.lock();
        let space = &mut *space;
        let end = start + words.len() as u64 * PAGE;
        let below = space.vmas.range(..start).next_back().map_or(start, |(key, _)| *key);
        for vma in space.vmas.range(below..end).map(|(_, vma)| vma) {
            let (first, last) = (vma.start.max(start), vma.end.min(end));
            if first < last {
                space.table.for_each(first, last, |addr, entry| {
                    words[to_usize((addr - start) / PAGE)] = page_word(vma, addr, *entry);
                });
            }
        }
    }
}

fn page_word(vma: &Vma, addr: u64, entry: Entry) -> u64 {
    let (is_files, is_exclusive) = match entry.region() {
        None => return 0,
        Some(Region::Window(_)) => (vma.object.is_some(), false),
        Some(Region::Frame(_) | Region::Template(_)) => entry
            .held()
            .map_or((false, false), |frame| (is_objects(vma, addr, frame), frames::is_exclusive(frame))),
    };
    let mut word = if entry.has(Entry::SWAPPED) { MAP_SWAPPED } else { MAP_PRESENT };
    if is_exclusive {
        word |= MAP_EXCLUSIVE;
    }
    if is_files {
        word |= MAP_FILE;
    }
    word
}

/// Whether the frame that a mapping shows at an address is its object's, and not the mapping's own.
fn is_objects(vma: &Vma, addr: u64, frame: Frame) -> bool {
    let index = vma.object_offset(addr) / PAGE;
    match &vma.object {
        None => false,
        Some(_) if vma.is_shared() => true,
        Some(MemoryObject::Host(file)) => file.copies().is_some_and(|copies| copies.shows(index, frame)),
        Some(MemoryObject::Store(store)) => {
            store.frame_in_memory(index).is_some_and(|shown| shown.frame() == frame)
        }
    }
}

impl Pages {
    fn count(&mut self, entry: Entry) {
        match (entry.region(), entry.held()) {
            (Some(_), _) if entry.has(Entry::SWAPPED) => self.swapped += 1,
            (Some(_), Some(frame)) if frames::is_exclusive(frame) => self.own += 1,
            (Some(_), Some(_)) => self.shared += 1,
            (Some(_), None) => self.file += 1,
            (None, _) => {}
        }
    }

    /// Pages in memory.
    pub fn resident(&self) -> u64 {
        self.own + self.shared + self.file
    }
}
