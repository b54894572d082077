//! Copies of address spaces for `fork(2)`: frames are shared until one side writes.

use alloc::sync::Arc;

use super::account;
use super::arrival;
use super::aspace::{AddressSpace, Space};
use super::frames::{self, Frame, FrameRef};
use super::object::MemoryObject;
use super::page::page_down;
use super::pagetable::{Entry, PageTable};
use super::vma::{VMA_BYTES, Vma, VmaFlags};
use crate::errno::{Errno, Result};

impl AddressSpace {
    /// A copy-on-write copy. The page of the address that both will write first is copied at once.
    pub fn fork(self: &Arc<Self>, written: u64) -> Result<Arc<Self>> {
        let child = Self::new()?;
        {
            let mut ours = self.lock();
            let mut theirs = child.inner.lock_beside();
            let result = copy_space(&mut ours, &mut theirs, page_down(written));
            // The child never ran: nothing of it is mirrored or cached.
            theirs.batch.ops.clear();
            theirs.stale = false;
            self.commit(&mut ours);
            result?;
        }
        child.for_each_object(|object| object.add_mapper(&child));
        Ok(child)
    }

    fn for_each_object(&self, f: impl Fn(&MemoryObject)) {
        self.lock().vmas.values().filter_map(|vma| vma.object.as_ref()).for_each(f);
    }
}

fn copy_space(ours: &mut Space, theirs: &mut Space, written: u64) -> Result<()> {
    theirs.brk_start = ours.brk_start;
    theirs.brk = ours.brk;
    theirs.mmap_top = ours.mmap_top;
    theirs.free_hint = ours.free_hint;
    theirs.layout = ours.layout.clone();
    let mut from = 0;
    while let Some(vma) = ours.vmas.range(from..).next().map(|(_, vma)| vma.clone()) {
        from = vma.end;
        if vma.flags.contains(VmaFlags::DONT_FORK) {
            continue;
        }
        let (start, end) = (vma.start, vma.end);
        // Pages of an object come back by faults, unless some are the mapping's own.
        let own = vma.object.is_none() || vma.flags.contains(VmaFlags::COPIED);
        let copies = own && !vma.is_shared() && !vma.flags.contains(VmaFlags::WIPE_ON_FORK);
        account::check(VMA_BYTES)?;
        theirs.vmas.insert(start, Vma { flags: vma.flags - VmaFlags::SHOWN, ..vma });
        if !copies {
            continue;
        }
        // First the references: whatever fails, both sides stay consistent.
        let mut failed = None;
        let child_table = &mut theirs.table;
        let mut shared = 0;
        ours.table.for_each(start, end, |addr, entry| {
            // The child begins with the file's own pages.
            if !entry.is_frame() || entry.has(Entry::PATCHED) || failed.is_some() {
                return;
            }
            let is_copied = addr == written && entry.has(Entry::PRESENT) && entry.has(Entry::WRITABLE);
            let copied = is_copied && copy_frame(child_table, addr, *entry).is_ok();
            failed = if copied { None } else { share_frame(child_table, addr, *entry).err() };
            shared += 1;
        });
        theirs.resident_pages += shared;
        ours.protect(start, end, |entry| {
            let is_ours = entry.is_frame() && frames::is_exclusive(Frame::new(entry.phys()));
            if entry.is_frame() && !is_ours { Entry(entry.0 & !Entry::WRITABLE) } else { entry }
        });
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(())
}

/// Gives the child a read-only reference to the frame, or a copy when the frame has too many references.
fn share_frame(table: &mut PageTable, addr: u64, entry: Entry) -> Result<()> {
    let frame = Frame::new(entry.phys());
    let clean = entry.0 & !(Entry::WRITABLE | Entry::MIRRORED);
    if let Ok(shared) = FrameRef::share(frame) {
        table.set(addr, Entry(clean))?;
        shared.keep();
        return Ok(());
    }
    copy_frame(table, addr, Entry(clean))
}

/// Gives the child a copy of the frame.
fn copy_frame(table: &mut PageTable, addr: u64, entry: Entry) -> Result<()> {
    let frame = Frame::new(entry.phys());
    let clean = entry.0 & !Entry::MIRRORED;
    arrival::ensure(frame);
    let copy = frames::alloc_any().ok_or(Errno::ENOMEM)?;
    frames::copy(copy.frame(), frame);
    let flags = Entry(clean).brought_in().0 & !entry.phys();
    table.set(addr, Entry(flags | copy.addr()))?;
    copy.keep();
    Ok(())
}
