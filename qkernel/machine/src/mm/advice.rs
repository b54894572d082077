//! Advice about memory (`madvise(2)`), and pages brought in ahead.

use abi::layout::USER_MAX;
use abi::word::to_usize;
use alloc::vec::Vec;

use super::addr::UserAddr;
use super::aspace::{AddressSpace, Space};
use super::map::range_end;
use super::object::MemoryObject;
use super::page::{Access, Fault, PAGE, PAGE_BYTES};
use super::pagetable::Entry;
use super::physical::account;
use super::vma::{Prot, Vma, VmaFlags};
use crate::errno::{Errno, Result};
use crate::sched;

/// Pages that are brought in until others are let run.
const POPULATE_BATCH: u32 = 256;

/// Advice that a program gives about a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Something that changes nothing here.
    Nothing,
    /// Something that changes nothing here, and that locked memory forbids.
    Cold,
    /// The pages go: private ones read as zeros or the file's content again. Those of locked mappings only if it says so.
    Discard { even_locked: bool },
    /// The pages of private memory without a file may go at any time, unless it is locked: they go at once, as with
    /// `Discard`.
    Free,
    /// Children get none of it, or all.
    Inherit(bool),
    /// Children get zeros instead.
    Wipe(bool),
    /// Core dumps have it.
    Dump(bool),
}

impl AddressSpace {
    /// Carries out advice about `[start, end)`. `ENOMEM`: part of it is not mapped, and the rest was advised.
    pub fn advise(&self, start: u64, end: u64, advice: Advice) -> Result<()> {
        if start >= USER_MAX {
            return Err(Errno::ENOMEM);
        }
        let mut space = self.lock();
        let result = space.advise(start, end.min(USER_MAX), advice);
        self.commit(&mut space);
        if end > USER_MAX { result.and(Err(Errno::ENOMEM)) } else { result }
    }

    /// Brings the pages of a range in as far as they are to be had (`MAP_POPULATE`, `mlock`), up to the first that is not.
    pub fn populate(&self, start: u64, len: u64) -> core::result::Result<(), Fault> {
        let end = start.saturating_add(len).min(USER_MAX);
        self.bring_in(start, end, |vma| {
            let writes = vma.prot.contains(Prot::WRITE) && !vma.is_shared();
            if writes { Access::Write } else { Access::Read }
        })
    }

    fn bring_in(
        &self,
        start: u64,
        end: u64,
        access: impl Fn(&Vma) -> Access,
    ) -> core::result::Result<(), Fault> {
        let mut pages = (start..end).step_by(PAGE_BYTES).peekable();
        while pages.peek().is_some() {
            let mut batch = POPULATE_BATCH;
            self.attempt(|space| {
                while let Some(page) = pages.peek().copied().filter(|_| batch > 0) {
                    let access = space.find(page).map(&access).ok_or(Fault::NotMapped { addr: page })?;
                    if access == Access::Write || !space.table.get(page).has(Entry::PATCHED) {
                        space.reach(UserAddr::new(page), access)?;
                    }
                    pages.next();
                    batch -= 1;
                }
                Ok(())
            })?;
            if sched::go_on().is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// `MADV_POPULATE_READ`, `MADV_POPULATE_WRITE`: brings all pages of a range in as by a touch. `EINVAL`: a mapping does not
    /// permit it. `EFAULT`: a touch would be a signal. `ENOMEM`: part of it is not mapped, or there is no memory.
    pub fn touch_all(&self, start: u64, end: u64, access: Access) -> Result<()> {
        let mut at = start;
        while at < end {
            let (to, is_permitted) = {
                let space = self.lock();
                let vma = space.find(at).ok_or(Errno::ENOMEM)?;
                (vma.end.min(end), vma.permits(access) && !vma.flags.contains(VmaFlags::SPECIAL))
            };
            if !is_permitted {
                return Err(Errno::EINVAL);
            }
            self.bring_in(at, to, |_| access).map_err(|fault| match fault {
                Fault::Bus { .. } => Errno::EFAULT,
                Fault::Forbidden { .. } => Errno::EINVAL,
                Fault::NotMapped { .. } | Fault::NoMemory => Errno::ENOMEM,
            })?;
            sched::go_on()?;
            at = to;
        }
        Ok(())
    }

    /// Which pages of a range are in memory (`mincore(2)`), a byte each, up to the first address that is not mapped. Pages of the
    /// host's files that nobody has touched are said to be, as Linux does of files that are not the caller's.
    pub fn resident(&self, start: u64, end: u64) -> Result<Vec<u8>> {
        let space = self.lock();
        let mut out = account::vec(to_usize((end - start) / PAGE))?;
        let mut at = start;
        while at < end {
            let Some(vma) = space.find(at) else { break };
            let to = vma.end.min(end);
            let is_resident = |page: u64| {
                let entry = space.table.get(page);
                match &vma.object {
                    _ if entry.holds_page() => !entry.has(Entry::SWAPPED),
                    None => false,
                    Some(MemoryObject::Store(store)) => store.is_in_memory(vma.object_offset(page) / PAGE),
                    Some(MemoryObject::Host(_)) => true,
                }
            };
            out.extend((at..to).step_by(PAGE_BYTES).map(|page| u8::from(is_resident(page))));
            at = to;
        }
        Ok(out)
    }

    /// `MADV_REMOVE`: frees the pages of shared memory under a range, for everyone. `EACCES`: one of the mappings is private
    /// or can never be written to. `EPERM`: the memory is sealed. `EINVAL`: it is locked, or no file's.
    pub fn remove_backing(&self, addr: u64, len: u64) -> Result<()> {
        let end = range_end(addr, len)?;
        let mut holes = Vec::new();
        let mut may = Ok(());
        let covered = self.for_each_in(addr, end, |vma, from, to| match &vma.object {
            _ if may.is_err() => {}
            _ if vma.flags.contains(VmaFlags::LOCKED) => may = Err(Errno::EINVAL),
            None => may = Err(Errno::EINVAL),
            Some(_) if !vma.is_shared() || !vma.max_prot.contains(Prot::WRITE) => may = Err(Errno::EACCES),
            Some(object) => holes.push((object.clone(), vma.object_offset(from), vma.object_offset(to))),
        });
        // What comes before a mapping that is not such goes, as on Linux.
        for (object, from, to) in holes {
            match object {
                MemoryObject::Store(store) => store.remove_pages(from / PAGE, to / PAGE)?,
                MemoryObject::Host(file) => file.punch(from, to - from)?,
            }
        }
        may?;
        if covered { Ok(()) } else { Err(Errno::ENOMEM) }
    }
}

impl Space {
    fn advise(&mut self, start: u64, end: u64, advice: Advice) -> Result<()> {
        if matches!(advice, Advice::Discard { .. } | Advice::Free) {
            self.unpatch(start, end);
        } else {
            self.yield_slots(start, end);
        }
        let mut has_hole = false;
        let mut result = Ok(());
        let mut at = start;
        while at < end && result.is_ok() {
            let next = match self.find(at) {
                Some(vma) => Some(vma),
                None => self.vmas.range(at..end).next().map(|(_, vma)| vma),
            };
            let Some((vma_start, vma_end)) = next.map(|vma| (vma.start, vma.end)) else {
                has_hole = true;
                break;
            };
            has_hole |= vma_start > at;
            let to = vma_end.min(end);
            result = self.advise_one(vma_start.max(at), to, advice);
            at = to;
        }
        self.merge_around(start, end);
        result?;
        if has_hole { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    /// Advice about `[from, to)`, which lies in one mapping.
    fn advise_one(&mut self, from: u64, to: u64, advice: Advice) -> Result<()> {
        let vma = self.find(from).ok_or(Errno::ENOMEM)?;
        may_be_advised(vma, advice)?;
        let flags = vma.flags;
        let changed = match advice {
            Advice::Nothing | Advice::Cold => return Ok(()),
            Advice::Discard { .. } | Advice::Free => {
                self.clear(from, to);
                return Ok(());
            }
            Advice::Inherit(true) => flags - VmaFlags::DONT_FORK,
            Advice::Inherit(false) => flags | VmaFlags::DONT_FORK,
            Advice::Wipe(true) => flags | VmaFlags::WIPE_ON_FORK,
            Advice::Wipe(false) => flags - VmaFlags::WIPE_ON_FORK,
            Advice::Dump(true) => flags - VmaFlags::DONT_DUMP,
            Advice::Dump(false) => flags | VmaFlags::DONT_DUMP,
        };
        if changed != flags {
            self.split_at(from)?;
            self.split_at(to)?;
            if let Some(vma) = self.vmas.get_mut(&from) {
                vma.flags = changed;
            }
        }
        Ok(())
    }
}

/// Whether a mapping takes the advice; `EINVAL`. Sealed memory that its program could not clear itself is not cleared by
/// advice either: `EPERM`.
fn may_be_advised(vma: &Vma, advice: Advice) -> Result<()> {
    let is_locked = vma.flags.contains(VmaFlags::LOCKED);
    let is_anonymous = vma.object.is_none() && !vma.is_shared();
    let loses = !matches!(
        advice,
        Advice::Nothing | Advice::Cold | Advice::Inherit(true) | Advice::Wipe(false) | Advice::Dump(_)
    );
    if loses && vma.flags.contains(VmaFlags::SEALED) && is_anonymous && !vma.prot.contains(Prot::WRITE) {
        return Err(Errno::EPERM);
    }
    let is_fit = match advice {
        Advice::Nothing | Advice::Inherit(_) | Advice::Wipe(false) | Advice::Dump(_) => true,
        Advice::Cold | Advice::Discard { even_locked: false } => !is_locked,
        Advice::Discard { even_locked: true } => true,
        Advice::Free => is_anonymous && !is_locked,
        Advice::Wipe(true) => is_anonymous,
    };
    if is_fit { Ok(()) } else { Err(Errno::EINVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mm::swap_window::SwapWindow;

    fn vma(prot: Prot, flags: VmaFlags) -> Vma {
        Vma {
            start: 0x10000,
            end: 0x20000,
            prot,
            max_prot: Prot::all(),
            flags,
            object: None,
            offset: 0,
            next_fault: 0,
            window_pages: 0,
            swap_window: SwapWindow::default(),
        }
    }

    #[test]
    fn locked_and_sealed_memory_is_not_taken_by_advice() {
        let discard = Advice::Discard { even_locked: false };
        let locked = vma(Prot::all(), VmaFlags::LOCKED);
        assert_eq!(may_be_advised(&locked, discard), Err(Errno::EINVAL));
        assert_eq!(may_be_advised(&locked, Advice::Discard { even_locked: true }), Ok(()));
        assert_eq!(may_be_advised(&locked, Advice::Free), Err(Errno::EINVAL));
        assert_eq!(may_be_advised(&locked, Advice::Dump(false)), Ok(()));
        let sealed = vma(Prot::READ, VmaFlags::SEALED);
        for advice in [discard, Advice::Free, Advice::Inherit(false), Advice::Wipe(true)] {
            assert_eq!(may_be_advised(&sealed, advice), Err(Errno::EPERM));
        }
        assert_eq!(may_be_advised(&vma(Prot::all(), VmaFlags::SEALED), discard), Ok(()));
        assert_eq!(
            may_be_advised(&vma(Prot::all(), VmaFlags::SHARED), Advice::Wipe(true)),
            Err(Errno::EINVAL)
        );
    }
}
