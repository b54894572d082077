//! `mremap(2)`: a mapping grows, shrinks or moves.

use abi::layout::{USER_MAX, USER_MIN};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::aspace::{AddressSpace, Space};
use super::commit;
use super::map::{Placement, range_end};
use super::page::{PAGE, page_up};
use super::pagetable::Entry;
use super::physical::frames::FrameRef;
use super::vma::{Vma, VmaFlags};
use crate::errno::{Errno, Result};

/// How `mremap(2)` may move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remap {
    /// Only in place.
    InPlace,
    /// Wherever there is room.
    MayMove,
    /// Exactly there.
    Fixed(u64),
    /// The pages move, to there if it is free; the mapping stays, empty (`MREMAP_DONTUNMAP`).
    Kept(u64),
    /// The pages move as with `Kept`, exactly there.
    FixedAndKept(u64),
}

impl Remap {
    fn keeps(self) -> bool {
        matches!(self, Self::Kept(_) | Self::FixedAndKept(_))
    }
}

impl AddressSpace {
    /// `mremap(2)`: resizes or moves a mapping; returns its new address.
    pub fn remap(self: &Arc<Self>, old: u64, old_len: u64, new_len: u64, how: Remap) -> Result<u64> {
        let mut space = self.lock();
        let result = space.remap(old, old_len, new_len, how);
        self.commit(&mut space);
        result
    }
}

impl Space {
    fn remap(&mut self, old: u64, old_len: u64, new_len: u64, how: Remap) -> Result<u64> {
        let new_len = page_up(new_len).filter(|len| *len != 0).ok_or(Errno::EINVAL)?;
        let old_len = page_up(old_len).ok_or(Errno::EINVAL)?;
        self.unpatch(old, old.saturating_add(old_len.max(PAGE)));
        let vma = self.find(old).cloned().ok_or(Errno::EFAULT)?;
        if old_len == 0 && !vma.is_shared() {
            return Err(Errno::EINVAL);
        }
        // What is cut off may be of other mappings.
        if matches!(how, Remap::InPlace | Remap::MayMove) && new_len <= old_len {
            let end = old.checked_add(old_len).filter(|end| *end <= USER_MAX).ok_or(Errno::EINVAL)?;
            self.check_unsealed(old, old + PAGE)?;
            if new_len < old_len {
                self.unmap(old + new_len, end)?;
            }
            return Ok(old);
        }
        let old_end = old.checked_add(old_len).filter(|end| *end <= vma.end).ok_or(Errno::EFAULT)?;
        self.check_unsealed(old, old_end.max(old + PAGE))?;
        // The object's offsets stay numbers of a file's.
        let shown = vma.object_offset(old).checked_add(new_len);
        if shown.is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(Errno::EINVAL);
        }
        if new_len > old_len {
            let more = Vma { start: old_end, end: old_end + (new_len - old_len), ..vma.clone() };
            if !self.may_lock(&more) {
                return Err(Errno::EAGAIN);
            }
            commit::check(self.promise.owner(), more.promised_pages())?;
        }
        if let Some(to) = self.chosen_place(how, (old, old_end), new_len)? {
            return self.move_mapping(old, old_len, to, new_len, how);
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
        self.move_mapping(old, old_len, to, new_len, how)
    }

    /// Where the caller has a mapping moved to, with room made there; `None`: it is moved only if it has to be.
    fn chosen_place(&mut self, how: Remap, old: (u64, u64), new_len: u64) -> Result<Option<u64>> {
        match how {
            Remap::InPlace | Remap::MayMove => Ok(None),
            Remap::Fixed(to) | Remap::FixedAndKept(to) => {
                let end = range_end(to, new_len)?;
                if to < old.1 && end > old.0 {
                    return Err(Errno::EINVAL);
                }
                if to < USER_MIN {
                    return Err(Errno::EPERM);
                }
                self.yield_slots(to, end);
                self.unmap(to, end)?;
                Ok(Some(to))
            }
            Remap::Kept(hint) => {
                let end = hint.checked_add(new_len).ok_or(Errno::EINVAL)?;
                if !hint.is_multiple_of(PAGE) || (hint < old.1 && end > old.0) {
                    return Err(Errno::EINVAL);
                }
                self.place(Placement::Hint(hint), new_len).map(Some)
            }
        }
    }

    /// Moves a mapping and its pages to a free range.
    fn move_mapping(&mut self, old: u64, old_len: u64, to: u64, new_len: u64, how: Remap) -> Result<u64> {
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
        if how.keeps() {
            commit::check(self.promise.owner(), moved.promised_pages())?;
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
            let frame = entry.held().map(FrameRef::share).transpose()?;
            if let Err(error) = self.install(target, Entry(entry.0 & !Entry::MIRRORED)) {
                // Moved pages are still at the old place as well.
                self.unmap(to, to + new_len)?;
                return Err(error);
            }
            frame.map(FrameRef::keep);
        }
        if how.keeps() {
            self.clear(old, old + old_len);
            if let Some(left) = self.vmas.get_mut(&old) {
                left.flags -= VmaFlags::LOCKS;
            }
            self.merge_around(old, old + old_len);
        } else if old_len != 0 {
            self.unmap(old, old + old_len)?;
        }
        Ok(to)
    }
}
