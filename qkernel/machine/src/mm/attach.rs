//! Mappings of System V segments (`shmat(2)`, `shmdt(2)`): the number of mappings, and a segment taken out as a whole.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::aspace::AddressSpace;
use super::object::{MemoryObject, PageStore};
use super::page::{PAGE, page_up};
use super::vma::VmaFlags;
use crate::errno::{Errno, Result};

impl PageStore {
    /// How many mappings show it, in all address spaces. Waits for those that are in use.
    pub fn mappings(&self) -> usize {
        let object = (&raw const *self).cast();
        self.mappers().all().iter().map(|mapper| mapper.mappings_of(object)).sum()
    }
}

impl AddressSpace {
    fn mappings_of(&self, object: *const ()) -> usize {
        let is_of = |mapped: &MemoryObject| mapped.address() == object;
        let space = self.lock();
        space.vmas.values().filter(|vma| vma.object.as_ref().is_some_and(is_of)).count()
    }

    /// Removes what is left of the segment that was attached at `addr`; returns its pages. `EINVAL`: none was.
    pub fn detach(&self, addr: u64) -> Result<Arc<PageStore>> {
        if !addr.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let mut space = self.lock();
        // The first mapping may have been removed, so the segment is found by any that shows the right part of it.
        let mut attached = space.vmas.range(addr..).map(|(_, vma)| vma);
        let first =
            attached.find(|vma| vma.flags.contains(VmaFlags::SEGMENT) && vma.start - addr == vma.offset);
        let Some(MemoryObject::Store(store)) = first.and_then(|vma| vma.object.clone()) else {
            return Err(Errno::EINVAL);
        };
        let end = page_up(store.size()).and_then(|len| addr.checked_add(len)).ok_or(Errno::EINVAL)?;
        let object = Arc::as_ptr(&store).cast();
        let parts = space.vmas.range(addr..end).map(|(_, vma)| vma).filter(|vma| {
            vma.start - addr == vma.offset && vma.object.as_ref().is_some_and(|of| of.address() == object)
        });
        let ranges: Vec<(u64, u64)> = parts.map(|vma| (vma.start, vma.end)).collect();
        let result = ranges.into_iter().try_for_each(|(start, end)| space.unmap(start, end));
        self.commit(&mut space);
        result.map(|()| store)
    }
}
