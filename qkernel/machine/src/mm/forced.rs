//! Memory as a debugger reaches it (`/proc/PID/mem`): what a mapping forbids its program does not bind it.
//!
//! A private mapping can be read whatever its protection, and is written by copy-on-write: the program sees the new
//! content, with the rights that it has. A shared mapping that is not writable stays as it is, since others have it, too.

use super::addr::UserAddr;
use super::aspace::{AddressSpace, Space};
use super::away::Stop;
use super::map::reprotect;
use super::page::{Access, PAGE, page_down};
use super::pagetable::Entry;
use super::physical::frames;
use super::vma::{Prot, Vma, VmaFlags};
use crate::errno::Result;

/// Pages on each side of a fault that it may bring in.
const REACH: u64 = 1024;

impl AddressSpace {
    /// [`Self::copy_in`], also from where the program may not read.
    pub fn copy_in_forced(&self, addr: UserAddr, to: &mut [u8]) -> Result<()> {
        // SAFETY: the slice is writable, and not a program's.
        unsafe { self.copy_to_by(addr, to.as_mut_ptr(), to.len(), Space::reach_forced) }
    }

    /// [`Self::copy_out`], also to private mappings that the program may not write.
    pub fn copy_out_forced(&self, addr: UserAddr, from: &[u8]) -> Result<()> {
        // SAFETY: the slice is readable, and not a program's.
        unsafe { self.copy_from_by(addr, from.as_ptr(), from.len(), Space::reach_forced) }
    }
}

impl Space {
    /// [`Self::reach`], where the mapping need not permit the access.
    fn reach_forced(&mut self, addr: UserAddr, access: Access) -> core::result::Result<u64, Stop> {
        let at = addr.get();
        let page = page_down(at);
        let Some(vma) = self.find(at).cloned() else { return self.reach(addr, access) };
        let is_refused = access == Access::Write && vma.is_shared();
        if vma.permits(access) || is_refused || vma.is_kernels() {
            return self.reach(addr, access);
        }
        if self.table.get(page).has(Entry::PATCHED) {
            self.leave_alone(page);
        }
        let readable = Vma { prot: vma.prot | Prot::READ, flags: vma.flags | VmaFlags::SHOWN, ..vma.clone() };
        self.protect(page, page + PAGE, |entry| reprotect(&readable, entry));
        let brought = self.bring_forced(&readable, page, access);
        if vma.prot.is_empty() {
            let start = page.saturating_sub(REACH * PAGE).max(vma.start);
            let end = (page + REACH * PAGE).min(vma.end);
            self.protect(start, end, |entry| reprotect(&vma, entry));
        }
        brought.map_err(|stop| stop.at(at))?;
        Ok(self.table.get(page).phys() + (at - page))
    }

    /// Has the page of a private mapping there; to be written, as the mapping's own. No entry becomes writable.
    fn bring_forced(&mut self, vma: &Vma, page: u64, access: Access) -> core::result::Result<(), Stop> {
        if !self.table.get(page).has(Entry::PRESENT) {
            self.make_present(vma, page, Access::Read)?;
        }
        let entry = self.table.get(page);
        if access != Access::Write {
            return Ok(());
        }
        if vma.object.is_some() {
            self.mark_own(vma);
        }
        if entry.frame().is_some_and(frames::is_exclusive) {
            return Ok(());
        }
        self.make_writable(vma, page, entry)
    }
}
