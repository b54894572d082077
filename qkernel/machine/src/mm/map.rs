//! Changing mappings: `mmap`, `munmap`, `mprotect`, `mremap`, `madvise`, `brk`.

use abi::layout::{USER_MAX, USER_MIN};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::account;
use super::addr::UserAddr;
use super::aspace::{AddressSpace, Space};
use super::frames::{self, Frame, FrameRef};
use super::object::MemoryObject;
use super::page::{PAGE, PAGE_BYTES, page_up};
use super::pagetable::Entry;
use super::swap_window::SwapWindow;
use super::vma::{Prot, VMA_BYTES, Vma, VmaFlags};
use crate::config::VMAS_MAX;
use crate::errno::{Errno, Result};
use crate::{platform, sched};

/// Pages that are brought in until others are let run.
const POPULATE_BATCH: u32 = 256;

/// The placement of a new mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Anywhere, at the address if it is free.
    Hint(u64),
    /// Exactly there, replacing what is mapped.
    Fixed(u64),
    /// Exactly there, `EEXIST` when something is mapped.
    FixedNoReplace(u64),
    /// Anywhere below 2 GiB.
    Low,
}

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

impl AddressSpace {
    /// `mmap(2)`: makes a mapping and returns its address.
    pub fn map(self: &Arc<Self>, new: NewMapping) -> Result<u64> {
        let len = page_up(new.len).filter(|len| *len != 0).ok_or(Errno::EINVAL)?;
        if let Some(object) = &new.object {
            object.add_mapper(self);
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
        let _ = space.set_brk(to, data_limit);
        self.commit(&mut space);
        space.brk
    }

    /// Drops the pages of a range (`MADV_DONTNEED`): private ones read as zeros or the file's content again.
    pub fn discard(&self, addr: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let end = range_end(addr, len)?;
        let mut space = self.lock();
        space.unpatch(addr, end);
        let covered = space.is_covered(addr, end);
        space.clear(addr, end);
        self.commit(&mut space);
        if covered { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Brings the pages of a range in as far as they are to be had (`MAP_POPULATE`, `mlock`).
    pub fn populate(&self, start: u64, len: u64) {
        let mut pages = (start..start.saturating_add(len).min(USER_MAX)).step_by(PAGE_BYTES).peekable();
        while pages.peek().is_some() {
            let mut batch = POPULATE_BATCH;
            let result = self.attempt(|space| {
                while let Some(page) = pages.peek().copied().filter(|_| batch > 0) {
                    if !space.table.get(page).has(Entry::PATCHED) {
                        let writes = |vma: &Vma| vma.prot.contains(Prot::WRITE) && !vma.is_shared();
                        let write = space.find(page).is_some_and(writes);
                        let access = if write { super::Access::Write } else { super::Access::Read };
                        space.reach(UserAddr::new(page), access)?;
                    }
                    pages.next();
                    batch -= 1;
                }
                Ok(())
            });
            if result.is_err() || sched::go_on().is_err() {
                return;
            }
        }
    }

    /// `MADV_REMOVE`: frees the pages of shared memory under a range, for everyone. `EACCES`: one of the mappings is private
    /// or can never be written to. `EPERM`: the memory is sealed.
    pub fn remove_backing(&self, addr: u64, len: u64) -> Result<()> {
        let end = range_end(addr, len)?;
        let mut holes = Vec::new();
        let mut may = Ok(());
        let covered = self.for_each_in(addr, end, |vma, from, to| match &vma.object {
            _ if may.is_err() => {}
            None => may = Err(Errno::EINVAL),
            Some(_) if !vma.is_shared() || !vma.max_prot.contains(Prot::WRITE) => may = Err(Errno::EACCES),
            Some(MemoryObject::Host(_)) => may = Err(Errno::EINVAL),
            Some(MemoryObject::Store(store)) => {
                holes.push((store.clone(), vma.object_offset(from) / PAGE, vma.object_offset(to) / PAGE));
            }
        });
        // What comes before a mapping that is not such goes, as on Linux.
        for (store, first, last) in holes {
            store.remove_pages(first, last)?;
        }
        may?;
        if covered { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Calls `f` for the mappings that overlap a range, cut to it; false when there are holes.
    pub fn for_each_in(&self, start: u64, end: u64, mut f: impl FnMut(&Vma, u64, u64)) -> bool {
        let space = self.lock();
        for vma in space.vmas.values().filter(|vma| vma.start < end && vma.end > start) {
            f(vma, vma.start.max(start), vma.end.min(end));
        }
        space.is_covered(start, end)
    }

    /// Changes the flags of the mappings of a range (`MADV_DONTFORK`, `mlock`, …).
    pub fn set_flags(&self, addr: u64, len: u64, change: impl Fn(VmaFlags) -> VmaFlags) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let end = range_end(addr, len)?;
        let mut space = self.lock();
        space.yield_slots(addr, end);
        let covered = space.is_covered(addr, end);
        space.split_at(addr)?;
        space.split_at(end)?;
        for (_, vma) in space.vmas.range_mut(addr..end) {
            vma.flags = change(vma.flags);
        }
        if covered { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Which pages of a range are resident (`mincore(2)`); `ENOMEM` when part of it isn't mapped.
    pub fn resident(&self, addr: u64, len: u64) -> Result<Vec<u8>> {
        let end = if len == 0 { addr } else { range_end(addr, len)? };
        let space = self.lock();
        if !space.is_covered(addr, end) {
            return Err(Errno::ENOMEM);
        }
        let pages = (addr..end).step_by(PAGE_BYTES);
        let is_resident = |entry: Entry| entry.holds_page() && !entry.has(Entry::SWAPPED);
        let residents = pages.map(|page| u8::from(is_resident(space.table.get(page))));
        account::collect(((end - addr) / PAGE) as usize, residents)
    }

    /// `mremap(2)`: resizes or moves a mapping; returns its new address.
    pub fn remap(self: &Arc<Self>, old: u64, old_len: u64, new_len: u64, how: Remap) -> Result<u64> {
        let mut space = self.lock();
        let result = space.remap(old, old_len, new_len, how);
        self.commit(&mut space);
        result
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
    /// the file) and offset when shared.
    pub fn shared_key(&self, addr: u64) -> Option<(usize, u64)> {
        let space = self.lock();
        let vma = space.find(addr).filter(|vma| vma.is_shared())?;
        let object = match vma.object.as_ref()? {
            MemoryObject::Store(store) => Arc::as_ptr(store) as usize,
            MemoryObject::Host(file) => file.file_key(),
        };
        Some((object, vma.object_offset(addr)))
    }
}

/// How `mremap(2)` may move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remap {
    /// Only in place.
    InPlace,
    /// Wherever there is room.
    MayMove,
    /// Exactly there.
    Fixed(u64),
}

/// Checks a page-aligned, non-empty user range; returns its end.
pub(super) fn range_end(addr: u64, len: u64) -> Result<u64> {
    let len = page_up(len).filter(|len| *len != 0).ok_or(Errno::EINVAL)?;
    let end = addr.checked_add(len).filter(|end| *end <= USER_MAX).ok_or(Errno::EINVAL)?;
    if addr.is_multiple_of(PAGE) { Ok(end) } else { Err(Errno::EINVAL) }
}

impl Space {
    fn map(&mut self, new: NewMapping, len: u64) -> Result<u64> {
        let commits = new.prot.contains(Prot::WRITE)
            && !new.flags.intersects(VmaFlags::NO_RESERVE | VmaFlags::SHARED)
            && len / PAGE > frames::total() as u64;
        if commits {
            return Err(Errno::ENOMEM);
        }
        let start = self.place(new.placement, len)?;
        let vma = Vma {
            start,
            end: start + len,
            prot: new.prot,
            max_prot: new.max_prot,
            flags: new.flags,
            object: new.object,
            offset: new.offset,
            next_fault: 0,
            window_pages: 0,
            swap_window: SwapWindow::default(),
        };
        self.insert(vma)?;
        Ok(start)
    }

    /// Finds, or makes, room for `len` bytes.
    fn place(&mut self, placement: Placement, len: u64) -> Result<u64> {
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
            Placement::Hint(hint) => {
                let hint = hint & !(PAGE - 1);
                let fits = hint >= USER_MIN && hint.checked_add(len).is_some_and(|end| end <= USER_MAX);
                if fits {
                    self.yield_slots(hint, hint + len);
                }
                if fits && !self.overlaps(hint, hint + len) { Ok(hint) } else { self.find_free(len) }
            }
            Placement::Low => self.search_down(1 << 31, len).ok_or(Errno::ENOMEM),
        }
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.vmas.range(..end).next_back().is_some_and(|(_, vma)| vma.end > start)
    }

    fn find_free(&mut self, len: u64) -> Result<u64> {
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
    fn insert(&mut self, mut vma: Vma) -> Result<()> {
        self.check_vma()?;
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
        self.unpatch(start, end);
        self.split_at(start)?;
        self.split_at(end)?;
        while let Some(key) = self.vmas.range(start..end).next().map(|(key, _)| *key) {
            if let Some(vma) = self.vmas.remove(&key) {
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
        self.unpatch(start, end);
        self.split_at(start)?;
        self.split_at(end)?;
        let mut at = start;
        while at < end {
            let Some(vma) = self.vmas.get_mut(&at) else { return Err(Errno::ENOMEM) };
            if !vma.max_prot.contains(prot) {
                return Err(Errno::EACCES);
            }
            vma.prot = prot;
            let vma = vma.clone();
            self.protect(vma.start, vma.end, |entry| reprotect(&vma, entry));
            at = vma.end;
        }
        self.merge_around(start, end);
        Ok(())
    }

    /// Joins mappings in and next to a range that continue one another.
    fn merge_around(&mut self, start: u64, end: u64) {
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

    fn remap(&mut self, old: u64, old_len: u64, new_len: u64, how: Remap) -> Result<u64> {
        let new_len = page_up(new_len).filter(|len| *len != 0).ok_or(Errno::EINVAL)?;
        let old_len = page_up(old_len).ok_or(Errno::EINVAL)?;
        self.unpatch(old, old.saturating_add(old_len.max(PAGE)));
        let vma = self.find(old).cloned().ok_or(Errno::EFAULT)?;
        if old_len == 0 && !vma.is_shared() {
            return Err(Errno::EINVAL);
        }
        let old_end = old.checked_add(old_len).filter(|end| *end <= vma.end).ok_or(Errno::EFAULT)?;
        // The object's offsets stay numbers of a file's.
        let shown = vma.object_offset(old).checked_add(new_len);
        if shown.is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(Errno::EINVAL);
        }
        if let Remap::Fixed(to) = how {
            let end = range_end(to, new_len)?;
            if to < old_end && end > old {
                return Err(Errno::EINVAL);
            }
            self.unmap(to, end)?;
            return self.move_mapping(old, old_len, to, new_len);
        }
        if new_len <= old_len {
            if new_len < old_len {
                self.unmap(old + new_len, old_end)?;
            }
            return Ok(old);
        }
        let grown_end = old.checked_add(new_len).filter(|end| *end <= USER_MAX);
        if let Some(grown_end) = grown_end {
            self.yield_slots(old_end, grown_end);
        }
        if let Some(grown_end) = grown_end
            && old_len != 0
            && vma.end == old_end
            && !self.overlaps(old_end, grown_end)
        {
            let mut tail = vma.clone();
            tail.offset = vma.object_offset(old_end);
            tail.start = old_end;
            tail.end = grown_end;
            self.insert(tail)?;
            return Ok(old);
        }
        if how == Remap::InPlace {
            return Err(Errno::ENOMEM);
        }
        let to = self.find_free(new_len)?;
        self.move_mapping(old, old_len, to, new_len)
    }

    /// Moves a mapping and its pages to a free range.
    fn move_mapping(&mut self, old: u64, old_len: u64, to: u64, new_len: u64) -> Result<u64> {
        let vma = self.find(old).cloned().ok_or(Errno::EFAULT)?;
        let mut moved = vma.clone();
        moved.offset = vma.object_offset(old);
        moved.start = to;
        moved.end = to + new_len;
        moved.next_fault = 0;
        if old_len != 0 {
            self.split_at(old)?;
            self.split_at(old + old_len)?;
        }
        self.insert(moved)?;
        let mut pages = Vec::new();
        self.table.for_each(old, old + old_len.min(new_len), |addr, entry| {
            if entry.holds_page() {
                pages.push((addr, *entry));
            }
        });
        for (addr, entry) in pages {
            // The new place gets its own reference before the old one is cleared below.
            let target = to + (addr - old);
            let frame = entry.is_frame().then(|| FrameRef::share(Frame::new(entry.phys()))).transpose()?;
            if let Err(error) = self.install(target, Entry(entry.0 & !Entry::MIRRORED)) {
                // Moved pages are still at the old place as well.
                self.unmap(to, to + new_len)?;
                return Err(error);
            }
            frame.map(FrameRef::keep);
        }
        if old_len != 0 {
            self.unmap(old, old + old_len)?;
        }
        Ok(to)
    }
}

/// An entry under a mapping's new protection.
fn reprotect(vma: &Vma, entry: Entry) -> Entry {
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
