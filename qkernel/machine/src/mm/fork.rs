//! Copies of address spaces for `fork(2)`: frames are shared until one side writes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::arrival;
use super::aspace::{AddressSpace, Space};
use super::commit;
use super::family::Family;
use super::object::copy_page;
use super::page::{Access, page_down};
use super::pagetable::{Entry, PageTable, Region};
use super::physical::account;
use super::physical::frames::{self, Frame, FrameRef, SCARCE_FRAMES};
use super::vma::{Prot, VMA_BYTES, Vma, VmaFlags};
use crate::errno::{Errno, Result};

/// Flags that a child's mappings do not have.
const NOT_INHERITED: VmaFlags = VmaFlags::SHOWN.union(VmaFlags::LOCKS);

impl AddressSpace {
    /// A copy-on-write copy, of which these will be touched before long, as `expect` has it. `is_alone`: no user code runs here
    /// meanwhile, on another CPU; then the pages that both sides will write soon are copied at once. They would not be of the same
    /// moment otherwise.
    pub fn fork(
        self: &Arc<Self>,
        touches: impl IntoIterator<Item = (u64, Access)> + Clone,
        is_alone: bool,
    ) -> Result<Arc<Self>> {
        let child = Self::new()?;
        let mut written: Vec<u64>;
        {
            let mut ours = self.lock();
            let mut theirs = child.inner.lock_beside();
            let family = ours.family.get_or_insert_with(Family::new).clone();
            let writes = touches.clone().into_iter().filter(|(_, access)| *access == Access::Write);
            let known = writes.map(|(addr, _)| page_down(addr)).chain(family.forked());
            written = known.filter(|_| is_alone && frames::available() >= SCARCE_FRAMES).collect();
            theirs.family = Some(family);
            let result = copy_space(&mut ours, &mut theirs, &written);
            // The child never ran: nothing of it is mirrored or cached.
            theirs.batch.ops.clear();
            theirs.stale = false;
            self.commit(&mut ours);
            result?;
            // Of what was written once, what has not been inherited is not to be there.
            written.retain(|page| theirs.table.get(*page).held().is_some());
            // Before the parent can let go of an object: whoever looks for its mappings finds one of the two.
            theirs
                .vmas
                .values()
                .filter_map(|vma| vma.object.as_ref())
                .for_each(|object| object.add_mapper(&child));
        }
        let written = written.into_iter().map(|page| (page, Access::Write));
        child.expect(touches.into_iter().chain(written));
        Ok(child)
    }
}

fn copy_space(ours: &mut Space, theirs: &mut Space, written: &[u64]) -> Result<()> {
    theirs.brk_start = ours.brk_start;
    theirs.brk = ours.brk;
    theirs.mmap_top = ours.mmap_top;
    theirs.free_hint = ours.free_hint;
    theirs.layout = ours.layout.clone();
    // What is written together lies together.
    let mut run = frames::alloc_any_run(written.len()).into_iter().flatten();
    let mut from = 0;
    while let Some(vma) = ours.vmas.range(from..).next().map(|(_, vma)| vma.clone()) {
        from = vma.end;
        if vma.flags.contains(VmaFlags::DONT_FORK) {
            continue;
        }
        let (start, end) = (vma.start, vma.end);
        let is_written =
            vma.prot.contains(Prot::WRITE) && written.iter().any(|page| (start..end).contains(page));
        // Pages of an object come back by faults, unless some are the mapping's own.
        let own = vma.object.is_none() || vma.flags.contains(VmaFlags::COPIED);
        let copies = own && !vma.is_shared() && !vma.flags.contains(VmaFlags::WIPE_ON_FORK);
        account::check(VMA_BYTES)?;
        commit::check(theirs.promise.owner(), vma.promised_pages())?;
        theirs.promise.add(vma.promised_pages());
        theirs.vmas.insert(start, Vma { flags: vma.flags - NOT_INHERITED, ..vma });
        if !copies {
            continue;
        }
        // First the references: whatever fails, both sides stay consistent.
        let mut failed = None;
        let child_table = &mut theirs.table;
        let mut shared = 0;
        ours.table.for_each(start, end, |addr, entry| {
            // Of others the child's own faults show the file's pages, as of patched ones.
            let Some(frame) = entry.held().filter(|_| !entry.has(Entry::PATCHED) && failed.is_none()) else {
                return;
            };
            let is_copied = is_written && entry.has(Entry::PRESENT) && written.contains(&addr);
            let writable = Entry(entry.0 | Entry::WRITABLE);
            let copied = is_copied && copy_frame(child_table, addr, frame, writable, run.next()).is_ok();
            failed = if copied { None } else { share_frame(child_table, addr, frame, *entry).err() };
            shared += 1;
        });
        theirs.resident_pages += shared;
        theirs.resident_peak = theirs.resident_pages;
        ours.protect(start, end, |entry| match entry.region() {
            Some(Region::Frame(frame)) if frames::is_exclusive(frame) => entry,
            Some(Region::Frame(_)) => Entry(entry.0 & !Entry::WRITABLE),
            // The child has no reference to it, so no write has to be caught; or every write is.
            Some(Region::Window(_) | Region::Template(_)) | None => entry,
        });
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(())
}

/// Gives the child a read-only reference to the entry's frame, or a copy when the frame has too many references.
fn share_frame(table: &mut PageTable, addr: u64, frame: Frame, entry: Entry) -> Result<()> {
    let clean = entry.0 & !(Entry::WRITABLE | Entry::MIRRORED);
    if let Ok(shared) = FrameRef::share(frame) {
        table.set(addr, Entry(clean))?;
        shared.keep();
        return Ok(());
    }
    copy_frame(table, addr, frame, Entry(clean), None)
}

/// Gives the child a copy of the entry's frame, in another one if there is one for it.
fn copy_frame(
    table: &mut PageTable,
    addr: u64,
    frame: Frame,
    entry: Entry,
    to: Option<FrameRef>,
) -> Result<()> {
    let clean = entry.0 & !Entry::MIRRORED;
    let copy = to.or_else(frames::alloc_any).ok_or(Errno::ENOMEM)?;
    let shown = Region::of(entry.phys());
    if !entry.is_of_template() || copy_page(&copy, shown).is_err() {
        arrival::ensure(frame);
        frames::copy(copy.frame(), frame);
    }
    let flags = Entry(clean).brought_in().0 & !entry.phys();
    table.set(addr, Entry(flags | copy.addr()))?;
    copy.keep();
    Ok(())
}
