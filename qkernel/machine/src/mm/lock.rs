//! Locked memory (`mlock(2)`), and sealed mappings (`mseal(2)`).
//!
//! Memory stays where it is anyway, until the sandbox hibernates: then locked pages are stored like all others. So locking
//! brings pages in, counts against a limit, and protects them from advice that would free them.

use abi::layout::{USER_MAX, USER_MIN};
use alloc::vec::Vec;

use super::aspace::{AddressSpace, Space};
use super::map::range_end;
use super::page::page_up;
use super::physical::account;
use super::vma::{Vma, VmaFlags};
use crate::errno::{Errno, Result};
use crate::upcall;

impl AddressSpace {
    /// Bytes of locked mappings.
    pub fn locked_bytes(&self) -> u64 {
        self.lock().locked_bytes()
    }

    /// Locks the mappings of a range, or unlocks them if `locks` is empty. `ENOMEM`: part of it is not mapped (what comes before
    /// is locked), or it would be more than `limit` bytes in all.
    pub fn set_locks(&self, start: u64, len: u64, locks: VmaFlags, limit: u64) -> Result<()> {
        let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
        let mut space = self.lock();
        if !locks.is_empty() && limit != u64::MAX {
            let locked = |vma: &Vma| {
                let inside = vma.end.min(end).saturating_sub(vma.start.max(start));
                if vma.flags.contains(VmaFlags::LOCKED) { inside } else { 0 }
            };
            let already: u64 = space.vmas.values().map(locked).sum();
            if space.locked_bytes().saturating_add(len) - already > limit {
                return Err(Errno::ENOMEM);
            }
        }
        let result = space.change_flags(start, end, |vma| {
            if vma.is_kernels() { vma.flags } else { (vma.flags - VmaFlags::LOCKS) | locks }
        });
        self.commit(&mut space);
        result
    }

    /// Locks all mappings that there are, and says how those are that come (`mlockall(2)`): `None` leaves the former alone.
    pub fn set_all_locks(&self, now: Option<VmaFlags>, future: VmaFlags) {
        let mut space = self.lock();
        space.future_locks = future;
        if let Some(locks) = now {
            for vma in space.vmas.values_mut().filter(|vma| !vma.is_kernels()) {
                vma.flags = (vma.flags - VmaFlags::LOCKS) | locks;
            }
            space.merge_around(USER_MIN, USER_MAX);
        }
    }

    /// How new mappings are locked.
    pub fn future_locks(&self) -> VmaFlags {
        self.lock().future_locks
    }

    /// The ranges of locked mappings whose pages are to be there.
    pub fn locked_ranges(&self) -> Result<Vec<(u64, u64)>> {
        let space = self.lock();
        let is_full = |vma: &&Vma| vma.flags & VmaFlags::LOCKS == VmaFlags::LOCKED && !vma.prot.is_empty();
        account::collect(
            space.vmas.len(),
            space.vmas.values().filter(is_full).map(|vma| (vma.start, vma.end)),
        )
    }

    /// The mode of the memory policy of the mapping at `addr`.
    pub fn policy_at(&self, addr: u64) -> Option<u32> {
        self.lock().find(addr).map(|vma| vma.flags.policy())
    }

    /// Whether the pages of the mapping at `addr` are to be there.
    pub fn is_fully_locked(&self, addr: u64) -> bool {
        self.lock().find(addr).is_some_and(|vma| vma.flags & VmaFlags::LOCKS == VmaFlags::LOCKED)
    }

    /// The mapping, if it is a shared one of an object, of all of `[start, end)`.
    pub fn shared_region(&self, start: u64, end: u64) -> Option<Vma> {
        let space = self.lock();
        let vma = space.find(start).filter(|vma| vma.is_shared() && vma.end >= end && !vma.is_kernels())?;
        vma.object.is_some().then(|| vma.clone())
    }

    /// From now on the range keeps its addresses and its protection (`mseal(2)`). `ENOMEM`: part of it is not mapped.
    pub fn seal(&self, start: u64, len: u64) -> Result<()> {
        let end = start.checked_add(page_up(len).ok_or(Errno::EINVAL)?).ok_or(Errno::EINVAL)?;
        let mut space = self.lock();
        space.yield_slots(start, end);
        let result = if space.is_covered(start, end) {
            space.change_flags(start, end, |vma| vma.flags | VmaFlags::SEALED)
        } else {
            Err(Errno::ENOMEM)
        };
        self.commit(&mut space);
        result
    }

    /// Changes the flags of the mappings of a range. `ENOMEM`: part of it is not mapped; what comes before has changed.
    pub fn set_flags(&self, addr: u64, len: u64, change: impl Fn(VmaFlags) -> VmaFlags) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let end = range_end(addr, len)?;
        let mut space = self.lock();
        let result = space.change_flags(addr, end, |vma| change(vma.flags));
        self.commit(&mut space);
        result
    }
}

impl Space {
    pub(super) fn locked_bytes(&self) -> u64 {
        self.vmas.values().filter(|vma| vma.flags.contains(VmaFlags::LOCKED)).map(Vma::len).sum()
    }

    /// Whether a mapping may be added, as far as it is locked.
    pub(super) fn may_lock(&self, added: &Vma) -> bool {
        !added.flags.contains(VmaFlags::LOCKED)
            || self.locked_bytes().saturating_add(added.len()) <= upcall::lock_limit()
    }

    /// `EPERM`: something in the range is sealed.
    pub(super) fn check_unsealed(&self, start: u64, end: u64) -> Result<()> {
        let first = self.find(start).map_or(start, |vma| vma.start);
        let is_sealed = |vma: &Vma| vma.flags.contains(VmaFlags::SEALED);
        let found = self.vmas.range(first..end.max(first)).any(|(_, vma)| is_sealed(vma));
        if found { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// See [`AddressSpace::set_flags`].
    fn change_flags(&mut self, start: u64, end: u64, change: impl Fn(&Vma) -> VmaFlags) -> Result<()> {
        self.yield_slots(start, end);
        self.split_at(start)?;
        self.split_at(end)?;
        let mut at = start;
        while at < end {
            let Some(vma) = self.vmas.get_mut(&at) else { break };
            vma.flags = change(vma);
            at = vma.end;
        }
        self.merge_around(start, end);
        if at < end { Err(Errno::ENOMEM) } else { Ok(()) }
    }
}
