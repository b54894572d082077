//! Changing mappings: `mmap`, `munmap`, `mprotect`, `brk`.

use abi::layout::{USER_MAX, USER_MIN};
use alloc::sync::Arc;

use super::aspace::{AddressSpace, Space};
use super::commit;
use super::object::MemoryObject;
use super::page::{Access, PAGE, page_down, page_up};
use super::pagetable::Entry;
use super::physical::account;
use super::swap_window::SwapWindow;
use super::vma::{Prot, VMA_BYTES, Vma, VmaFlags};
use crate::config::VMAS_MAX;
use crate::errno::{Errno, Result};
use crate::platform;

/// The placement of a new mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Anywhere, at the address if it is free.
    Hint(u64),
    /// Exactly there, replacing what is mapped.
    Fixed(u64),
    /// Exactly there, `EEXIST` when something is mapped.
    FixedNoReplace(u64),
    /// Anywhere in the second GiB, or at the address if it is free and ends below 2 GiB.
    Low(u64),
}

/// Where `MAP_32BIT` has mappings placed.
const LOW_BOTTOM: u64 = 1 << 30;
const LOW_TOP: u64 = 1 << 31;

/// A mapping to be made.
pub struct NewMapping {
    pub placement: Placement,
    /// Bytes; rounded up to pages.
    pub len: u64,
    pub prot: Prot,
    pub max_prot: Prot,
    pub flags: VmaFlags,
    pub object: Option<MemoryObject>,
    pub offset: u64,
}

impl NewMapping {
    /// Whether a program may write through it, now or after `mprotect(2)`, to what others see.
    fn may_write_to_object(&self) -> bool {
        self.flags.contains(VmaFlags::SHARED) && self.max_prot.contains(Prot::WRITE)
    }

    fn give_up_writing(&mut self) -> Result<()> {
        if self.prot.contains(Prot::WRITE) {
            return Err(Errno::EPERM);
        }
        self.max_prot -= Prot::WRITE;
        Ok(())
    }
}

impl AddressSpace {
    /// `mmap(2)`: makes a mapping and returns its address. `EPERM`: its object is sealed.
    pub fn map(self: &Arc<Self>, mut new: NewMapping) -> Result<u64> {
        let len = page_up(new.len).filter(|len| *len != 0).ok_or(Errno::EINVAL)?;
        let object = new.object.clone();
        if let Some(object) = &object {
            object.add_mapper(self);
        }
        let seal = match &object {
            Some(MemoryObject::Store(store)) if new.may_write_to_object() => Some(store.hold_seal()),
            _ => None,
        };
        if matches!(seal, Some((true, _))) {
            new.give_up_writing()?;
        }
        let mut space = self.lock();
        let result = space.map(new, len);
        self.commit(&mut space);
        result
    }

    /// `munmap(2)`.
    pub fn unmap(&self, addr: u64, len: u64) -> Result<()> {
        let end = range_end(addr, len)?;
        let mut space = self.lock();
        let result = space.unmap(addr, end);
        self.commit(&mut space);
        result
    }

    /// `mprotect(2)`.
    pub fn protect(&self, addr: u64, len: u64, prot: Prot, grows_down: bool) -> Result<()> {
        if len == 0 && addr.is_multiple_of(PAGE) {
            return Ok(());
        }
        let end = range_end(addr, len)
            .map_err(|error| if addr.is_multiple_of(PAGE) { Errno::ENOMEM } else { error })?;
        let mut space = self.lock();
        let result = space.mprotect(addr, end, prot, grows_down);
        self.commit(&mut space);
        result
    }

    /// `brk(2)`: moves the heap's end; returns where it is now.
    pub fn set_brk(&self, to: u64, data_limit: u64) -> u64 {
        let mut space = self.lock();
        let end = page_up(space.brk);
        let grown = space.set_brk(to, data_limit).is_ok();
        let brk = space.brk;
        // Who asks for more of it writes there at once.
        if let Some(end) = end.filter(|end| grown && *end < brk) {
            space.expect([(end, Access::Write)]);
        }
        self.commit(&mut space);
        brk
    }

    /// Calls `f` for the mappings that overlap a range, cut to it; false when there are holes.
    pub fn for_each_in(&self, start: u64, end: u64, mut f: impl FnMut(&Vma, u64, u64)) -> bool {
        let space = self.lock();
        for vma in space.vmas.values().filter(|vma| vma.start < end && vma.end > start) {
            f(vma, vma.start.max(start), vma.end.min(end));
        }
        space.is_covered(start, end)
    }

    /// Sets up where things go in a new program's address space.
    pub fn set_bounds(&self, brk_start: u64, mmap_top: u64) {
        let mut space = self.lock();
        space.brk_start = brk_start;
        space.brk = brk_start;
        space.mmap_top = mmap_top;
        space.free_hint = mmap_top;
    }

    /// A fork-independent key of the memory word at `addr` for futexes: the object (of a host file, what stands for
    /// the file) and offset when shared. `EFAULT`: there is nothing to read.
    pub fn shared_key(&self, addr: u64) -> Result<Option<(usize, u64)>> {
        let space = self.lock();
        let vma = space.find(addr).filter(|vma| vma.prot.contains(Prot::READ)).ok_or(Errno::EFAULT)?;
        let Some(object) = vma.object.as_ref().filter(|_| vma.is_shared()) else { return Ok(None) };
        let object = match object {
            MemoryObject::Store(store) => Arc::as_ptr(store) as usize,
            MemoryObject::Host(file) => file.file_key(),
        };
        Ok(Some((object, vma.object_offset(addr))))
    }
}

/// Checks a page-aligned, non-empty user range; returns its end.
pub(super) fn range_end(addr: u64, len: u64) -> Result<u64> {
    let len = page_up(len).filter(|len| *len != 0).ok_or(Errno::EINVAL)?;
    let end = addr.checked_add(len).filter(|end| *end <= USER_MAX).ok_or(Errno::EINVAL)?;
    if addr.is_multiple_of(PAGE) { Ok(end) } else { Err(Errno::EINVAL) }
}

impl Space {
    fn map(&mut self, new: NewMapping, len: u64) -> Result<u64> {
        let owner = self.promise.owner();
        let mut flags = new.flags;
        if commit::mode(owner) == commit::Mode::Never {
            flags -= VmaFlags::NO_RESERVE;
        }
        if !flags.contains(VmaFlags::SPECIAL) {
            flags |= self.future_locks;
        }
        let mut vma = Vma {
            start: 0,
            end: len,
            prot: new.prot,
            max_prot: new.max_prot,
            flags,
            object: new.object,
            offset: new.offset,
            next_fault: 0,
            window_pages: 0,
            swap_window: SwapWindow::default(),
        };
        commit::check(owner, vma.promised_pages())?;
        let start = self.place(new.placement, len)?;
        (vma.start, vma.end) = (start, start + len);
        self.insert(vma)?;
        Ok(start)
    }

    /// Finds, or makes, room for `len` bytes.
    pub(super) fn place(&mut self, placement: Placement, len: u64) -> Result<u64> {
        match placement {
            Placement::Fixed(addr) | Placement::FixedNoReplace(addr) => {
                let end = range_end(addr, len)
                    .map_err(|error| if addr.is_multiple_of(PAGE) { Errno::ENOMEM } else { error })?;
                if addr < USER_MIN {
                    return Err(Errno::EPERM);
                }
                self.yield_slots(addr, end);
                if placement == Placement::Fixed(addr) {
                    self.unmap(addr, end)?;
                } else if self.overlaps(addr, end) {
                    return Err(Errno::EEXIST);
                }
                Ok(addr)
            }
            Placement::Hint(hint) => match self.at_hint(hint, len, USER_MAX) {
                Some(start) => Ok(start),
                None => self.find_free(len),
            },
            Placement::Low(hint) => match self.at_hint(hint, len, LOW_TOP) {
                Some(start) => Ok(start),
                None => {
                    self.search_down(LOW_TOP, len).filter(|start| *start >= LOW_BOTTOM).ok_or(Errno::ENOMEM)
                }
            },
        }
    }

    /// The page of an address that a caller would like, if `len` bytes there are free and end below `top`.
    fn at_hint(&mut self, hint: u64, len: u64, top: u64) -> Option<u64> {
        let start = page_down(hint);
        let end = start.checked_add(len).filter(|end| start >= USER_MIN && *end <= top)?;
        self.yield_slots(start, end);
        (!self.overlaps(start, end)).then_some(start)
    }

    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.vmas.range(..end).next_back().is_some_and(|(_, vma)| vma.end > start)
    }

    pub(super) fn find_free(&mut self, len: u64) -> Result<u64> {
        let found = self.search_down(self.free_hint, len).or_else(|| self.search_down(self.mmap_top, len));
        let start = found.or_else(|| self.search_down(USER_MAX, len)).ok_or(Errno::ENOMEM)?;
        self.free_hint = start;
        Ok(start)
    }

    /// The highest free range of `len` bytes below `top`.
    fn search_down(&self, top: u64, len: u64) -> Option<u64> {
        let mut end = top;
        for (_, vma) in self.vmas.range(..top).rev() {
            if vma.end <= end && end - vma.end >= len {
                break;
            }
            // A stack needs room to grow below it.
            let margin = if vma.flags.contains(VmaFlags::GROWS_DOWN) { 256 * PAGE } else { 0 };
            end = end.min(vma.start.saturating_sub(margin));
        }
        end.checked_sub(len).filter(|start| *start >= USER_MIN && !self.overlaps(*start, *start + len))
    }

    /// Adds a mapping where nothing is mapped, merging it with its neighbours.
    pub(super) fn insert(&mut self, mut vma: Vma) -> Result<()> {
        self.check_vma()?;
        self.promise.add(vma.promised_pages());
        if let Some((_, before)) = self.vmas.range(..vma.start).next_back()
            && before.continues_with(&vma)
        {
            let start = before.start;
            if let Some(mut before) = self.vmas.remove(&start) {
                before.end = vma.end;
                vma = before;
            }
        }
        if let Some(after) = self.vmas.get(&vma.end)
            && vma.continues_with(after)
        {
            let end = after.end;
            self.vmas.remove(&vma.end);
            vma.end = end;
        }
        self.vmas.insert(vma.start, vma);
        Ok(())
    }

    /// Whether there may be another mapping; `ENOMEM`.
    pub(super) fn check_vma(&self) -> Result<()> {
        if self.vmas.len() < VMAS_MAX { account::check(VMA_BYTES) } else { Err(Errno::ENOMEM) }
    }

    /// Makes `addr` a border between mappings.
    pub(super) fn split_at(&mut self, addr: u64) -> Result<()> {
        let Some((start, vma)) = self.vmas.range(..addr).next_back() else { return Ok(()) };
        if vma.end <= addr {
            return Ok(());
        }
        let start = *start;
        self.check_vma()?;
        if let Some(tail) = self.vmas.get_mut(&start).map(|vma| vma.split_off(addr)) {
            self.vmas.insert(tail.start, tail);
        }
        Ok(())
    }

    /// Removes all mappings in a range.
    pub(super) fn unmap(&mut self, start: u64, end: u64) -> Result<()> {
        if !self.overlaps(start, end) {
            return Ok(());
        }
        self.check_unsealed(start, end)?;
        self.unpatch(start, end);
        self.split_at(start)?;
        self.split_at(end)?;
        while let Some(key) = self.vmas.range(start..end).next().map(|(key, _)| *key) {
            if let Some(vma) = self.vmas.remove(&key) {
                self.promise.take_back(vma.promised_pages());
                self.clear(vma.start, vma.end);
                let file = vma.object.filter(|object| matches!(object, MemoryObject::Host(_)));
                let is_new = |file: &MemoryObject| self.removed.last().is_none_or(|last| !last.same(file));
                self.removed.extend(file.filter(is_new));
            }
        }
        self.unmapped.push((start, end));
        if end > self.free_hint {
            self.free_hint = end.min(self.mmap_top);
        }
        Ok(())
    }

    /// Frees the page tables of what was unmapped, where nothing is mapped now.
    ///
    /// Not on kvm: a processor that runs kernel code with these tables may look at them ahead of time, and is not told.
    pub(super) fn prune_tables(&mut self) {
        if !platform::current().mirrors() {
            self.unmapped.clear();
        }
        while let Some((start, end)) = self.unmapped.pop() {
            let next = self.vmas.range(start..).next().map_or(USER_MAX, |(key, _)| *key);
            let last = self.vmas.range(..start).next_back().map_or(0, |(_, vma)| vma.end);
            if last <= start && end <= next {
                self.table.prune(start, end, (last, next));
            }
        }
    }

    /// Whether every byte of a range is mapped.
    pub(super) fn is_covered(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            match self.find(at) {
                Some(vma) => at = vma.end,
                None => return false,
            }
        }
        true
    }

    fn mprotect(&mut self, addr: u64, end: u64, prot: Prot, grows_down: bool) -> Result<()> {
        let mut start = addr;
        if grows_down {
            let vma = self.find(addr).ok_or(Errno::ENOMEM)?;
            if !vma.flags.contains(VmaFlags::GROWS_DOWN) {
                return Err(Errno::EINVAL);
            }
            start = vma.start;
        }
        self.check_unsealed(start, end)?;
        self.unpatch(start, end);
        self.split_at(start)?;
        self.split_at(end)?;
        let mut at = start;
        while at < end {
            let Some(vma) = self.vmas.get_mut(&at) else { return Err(Errno::ENOMEM) };
            if !vma.max_prot.contains(prot) {
                return Err(Errno::EACCES);
            }
            let before = vma.promised_pages();
            let changed = Vma { prot, ..vma.clone() };
            let more = changed.promised_pages().saturating_sub(before);
            commit::check(self.promise.owner(), more)?;
            vma.prot = prot;
            let vma = changed;
            self.promise.add(more);
            self.promise.take_back(before.saturating_sub(vma.promised_pages()));
            self.protect(vma.start, vma.end, |entry| reprotect(&vma, entry));
            at = vma.end;
        }
        self.merge_around(start, end);
        Ok(())
    }

    /// Joins mappings in and next to a range that continue one another.
    pub(super) fn merge_around(&mut self, start: u64, end: u64) {
        let mut at = self.vmas.range(..start).next_back().map_or(start, |(key, _)| *key);
        while at < end {
            let mut here = self.vmas.range(at..=end).map(|(key, vma)| (*key, vma));
            let (Some((before, vma)), Some((after, next))) = (here.next(), here.next()) else { return };
            if !vma.continues_with(next) {
                at = after;
                continue;
            }
            let joined_end = next.end;
            self.vmas.remove(&after);
            if let Some(vma) = self.vmas.get_mut(&before) {
                vma.end = joined_end;
            }
            at = before;
        }
    }

    fn set_brk(&mut self, to: u64, data_limit: u64) -> Result<()> {
        if to < self.brk_start || to - self.brk_start > data_limit {
            return Err(Errno::ENOMEM);
        }
        let old_end = page_up(self.brk).ok_or(Errno::ENOMEM)?;
        let new_end = page_up(to).filter(|end| *end < USER_MAX).ok_or(Errno::ENOMEM)?;
        if new_end < old_end {
            self.unmap(new_end, old_end)?;
        } else if new_end > old_end {
            self.yield_slots(old_end, new_end + PAGE);
            if self.overlaps(old_end, new_end + PAGE) {
                return Err(Errno::ENOMEM);
            }
            let new = NewMapping {
                placement: Placement::FixedNoReplace(old_end),
                len: new_end - old_end,
                prot: Prot::READ | Prot::WRITE,
                max_prot: Prot::all(),
                flags: VmaFlags::HEAP,
                object: None,
                offset: 0,
            };
            self.map(new, new_end - old_end)?;
        }
        self.brk = to;
        Ok(())
    }
}

/// An entry under a mapping's new protection.
pub(super) fn reprotect(vma: &Vma, entry: Entry) -> Entry {
    if !entry.holds_page() {
        return entry;
    }
    let keep = entry.0 & (Entry::ACCESSED | Entry::DIRTY | Entry::MIRRORED);
    // Private pages become writable by their next write fault, which knows whether they are shared.
    let writable = entry.has(Entry::WRITABLE) && vma.prot.contains(Prot::WRITE);
    let flags = if vma.prot.is_empty() { Entry::KEPT } else { vma.entry_flags(writable) };
    let changed = Entry::new(entry.phys(), flags | keep);
    if entry.has(Entry::SWAPPED) { changed.swapped() } else { changed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_changes_leave_swapped_pages_swapped() {
        let vma = |prot| Vma {
            start: 0x10000,
            end: 0x20000,
            prot,
            max_prot: Prot::all(),
            flags: VmaFlags::empty(),
            object: None,
            offset: 0,
            next_fault: 0,
            window_pages: 0,
            swap_window: SwapWindow::default(),
        };
        let all = vma(Prot::READ | Prot::WRITE);
        let entry = Entry::new(abi::layout::USER_PHYS, all.entry_flags(true)).swapped();
        for prot in [Prot::empty(), Prot::READ, Prot::READ | Prot::WRITE] {
            let changed = reprotect(&vma(prot), entry);
            assert!(changed.has(Entry::SWAPPED) && !changed.has(Entry::PRESENT), "{prot:?}");
            assert_eq!(changed.has(Entry::KEPT), prot.is_empty());
            assert_eq!(changed.has(Entry::WRITABLE), prot.contains(Prot::WRITE));
        }
        // From no access back to reading: the page is still away.
        let back = reprotect(&vma(Prot::READ), reprotect(&vma(Prot::empty()), entry));
        assert!(back.has(Entry::SWAPPED) && !back.has(Entry::KEPT | Entry::PRESENT));
    }
}
