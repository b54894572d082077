//! The template: the pages of the snapshot that the sandbox began with, as all sandboxes share them that began with it (SnapBPF). A
//! private mapping shows the template's page as long as nobody has written to it; the frame of that number stays allocated and absent
//! meanwhile, and the entry has its reference. Copying on a write is this kernel's work, since all address spaces and the kernel itself
//! must see one content.
//!
//! An entry shows a frame's page of the template only while the frame, if its content is in memory as well, still has the very same: who
//! writes to a frame is the only one with a reference to it.

use core::sync::atomic::{AtomicU32, Ordering};

use abi::layout::{USER_MAX, USER_MIN};
use alloc::vec::Vec;

use super::addr::UserAddr;
use super::arrival::{self, Arrival, How};
use super::aspace::{AddressSpace, Space};
use super::away::{Away, Stop};
use super::object::{MemoryObject, copy_page, copy_to};
use super::page::{PAGE, page_down};
use super::pagetable::{Entry, Region};
use super::physical::frames::{self, Frame, SCARCE_FRAMES};
use super::physical::residency::{self, Residence};
use super::touches::{self, NO_SPACE, Touch};
use super::vma::Vma;
use crate::errno::Errno;
use crate::mutex::MutexGuard;
use crate::{host, platform};

/// After so many pages that were written one behind the other, half as many as there are come along with the next.
const AHEAD_FROM: u64 = 4;
const AHEAD_MAX: u64 = 32;

/// How often a space that is in use is tried.
const LOCK_ATTEMPTS: u32 = 1000;

/// Frames of which there may be a page, as the VMM says; 0: there is no template.
static FRAMES: AtomicU32 = AtomicU32::new(0);

/// Under a VMM there are pages of so many frames at most, from 0 on; 0: there is no template.
pub fn set(frames: u32) {
    FRAMES.store(frames, Ordering::Relaxed);
}

/// Whether there is a template.
pub(super) fn is_there() -> bool {
    FRAMES.load(Ordering::Relaxed) != 0
}

/// Whether the template may have the page of a frame.
pub(super) fn may_have(frame: Frame) -> bool {
    frames::index(frame).is_some_and(|index| index < FRAMES.load(Ordering::Relaxed))
}

/// Whether a mapping may show pages of the template. A file in memory is written by those who share it, through a frame that all of them
/// have, and the kernel writes to its own mappings without a fault.
pub(super) fn serves(vma: &Vma) -> bool {
    is_there() && !vma.is_shared() && !matches!(vma.object, Some(MemoryObject::Store(_))) && !vma.is_kernels()
}

/// Whether an entry goes on to show the template's page while the sandbox sleeps: the page is no memory of the sandbox's, and nothing has to be
/// done when it wakes. What the host keeps of the mapping is bounded by who keeps it (`AddressSpace::drop_mirror_but_template`).
/// Of a frame whose content is in memory the host has to say first that the template has it.
pub fn outlasts_sleep(entry: Entry) -> bool {
    entry.is_of_template() && entry.held().is_some_and(residency::is_shown)
}

/// The template is gone with the VMM, and with the stubs what they showed of it. All sandboxes' memories sleep.
pub fn lose() {
    for space in AddressSpace::all() {
        // Nobody uses one that sleeps.
        let Some(mut locked) = space.try_lock() else { host::die("a memory that sleeps is in use") };
        locked.table.for_each(USER_MIN, USER_MAX, |_, entry| {
            if entry.is_of_template() {
                *entry = entry.swapped();
                entry.0 &= !Entry::MIRRORED;
            }
        });
        locked.shown.clear();
    }
    touches::doubt_shown();
}

/// Has the host say which it shows of those of `members` that were only read, before any of them comes back. No task runs if `alone`.
pub(super) fn show_set(members: &[Touch], alone: bool) {
    if !is_there() {
        return;
    }
    let mut list: Vec<u32> = Vec::new();
    for of_space in members.chunk_by(|a, b| a.space == b.space) {
        let Some(space) = of_space.first().filter(|touch| touch.space != NO_SPACE) else { continue };
        let Some(space) = AddressSpace::find(space.space) else { continue };
        // Of one that stays in use, all come.
        let Some(locked) = lock_soon(&space) else { continue };
        let mut last: Option<&Vma> = None;
        for touch in of_space {
            if last.is_none_or(|vma| !(vma.start..vma.end).contains(&touch.page)) {
                last = locked.find(touch.page);
            }
            if touch.is_read
                && last.is_some_and(serves)
                && may_have(frames::at(touch.frame))
                && list.try_reserve(1).is_ok()
            {
                list.push(touch.frame);
            }
        }
    }
    list.sort_unstable();
    list.dedup();
    arrival::show_set(&list, alone);
}

/// Locks a space where nobody may sleep. A task that is about to rest may still use it on another CPU.
fn lock_soon(space: &AddressSpace) -> Option<MutexGuard<'_, Space>> {
    for _ in 0..LOCK_ATTEMPTS {
        if let Some(locked) = space.try_lock() {
            return Some(locked);
        }
        platform::relax();
    }
    None
}

impl Space {
    /// A write to a page that the template shows: the content comes into the frame that the entry has a reference to, or if others have one
    /// as well, into another one.
    pub(super) fn write_to_template(&mut self, vma: &Vma, page: u64, entry: Entry) -> Result<(), Stop> {
        let (Some(frame), Some(shown)) = (entry.held(), entry.region()) else {
            return Err(Errno::EFAULT.into());
        };
        if let Some(family) = &self.family {
            family.note(page);
        }
        touches::wrote(frame);
        match self.copy_of_template((page, vma.entry_flags(true)), frame, shown) {
            // The file is not what it was.
            Err(Stop::Failed(Errno::EFAULT)) => Err(self.lose_template(page)),
            Ok(()) => {
                self.copy_behind(vma, page);
                Ok(())
            }
            copied => copied,
        }
    }

    /// Has the content of a page that the template shows in a frame, which is shown from then on; result: the physical address.
    pub(super) fn bring_frame(&mut self, addr: UserAddr) -> Result<u64, Stop> {
        let page = page_down(addr.get());
        let entry = self.table.get(page);
        let (Some(frame), Some(vma)) = (entry.held(), self.find(page)) else {
            return Err(Errno::EFAULT.into());
        };
        let flags = vma.entry_flags(false) | entry.0 & Entry::PATCHED;
        match self.copy_of_template((page, flags), frame, Region::of(entry.phys())) {
            Err(Stop::Failed(Errno::EFAULT)) => Err(self.lose_template(page)),
            copied => copied.map(|()| self.table.get(page).phys() + (addr.get() - page)),
        }
    }

    /// Copies pages behind one that has been written, as if they were, where those before it were: who writes page by page has fewer faults.
    fn copy_behind(&mut self, vma: &Vma, page: u64) {
        let before = (1..=AHEAD_MAX).take_while(|count| {
            let Some(addr) = page.checked_sub(count * PAGE).filter(|addr| *addr >= vma.start) else {
                return false;
            };
            let entry = self.table.get(addr);
            entry.has(Entry::WRITABLE) && entry.frame().is_some()
        });
        let count = before.count() as u64;
        if count < AHEAD_FROM || touches::sees_writes() || frames::available() < SCARCE_FRAMES {
            return;
        }
        let flags = vma.entry_flags(true);
        for addr in (1..=count / 2).map(|count| page + count * PAGE).take_while(|addr| *addr < vma.end) {
            let entry = self.table.get(addr);
            let (Some(frame), true) = (entry.held(), entry.is_of_template() && entry.has(Entry::PRESENT))
            else {
                return;
            };
            let shown = Region::of(entry.phys());
            if !frames::is_exclusive(frame) || self.copy_of_template((addr, flags), frame, shown).is_err() {
                return;
            }
        }
    }

    /// Has a page that the template shows in a frame, by an entry with these flags.
    fn copy_of_template(
        &mut self,
        (page, flags): (u64, u64),
        frame: Frame,
        shown: Region,
    ) -> Result<(), Stop> {
        if frames::is_exclusive(frame) {
            if residency::residence(frame) == Residence::Resident {
                return Ok(self.install(page, Entry::new(frame.addr(), flags))?);
            }
            if let Some(arrival) = Arrival::of_held(frame) {
                arrival.fill(|| copy_to(frame, shown))?;
                return Ok(self.install(page, Entry::new(frame.addr(), flags))?);
            }
            if residency::residence(frame) == Residence::Arriving {
                return Err(Stop::Away(Away::Arriving(frame)));
            }
        }
        let own = frames::alloc_any().ok_or(Errno::ENOMEM)?;
        copy_page(&own, shown)?;
        self.install_frame(page, own, flags)?;
        self.freed.push(frame);
        Ok(())
    }

    /// The template's page does not come any more: it is not shown, and whoever touches it has the host bring it, which says why it cannot.
    pub(super) fn lose_template(&mut self, page: u64) -> Stop {
        let Some(frame) = self.table.get(page).held() else { return Errno::EIO.into() };
        self.protect(page, page + PAGE, Entry::swapped);
        residency::hide(frame);
        // Where the content is in the frame as well, it serves.
        let away = Away::of(frame, core::iter::empty(), How::All);
        Stop::Away(away.unwrap_or(Away::Arriving(frame)))
    }
}

impl AddressSpace {
    /// The host could not give user code the page that it has touched at an address. True: it was the template's, is not shown any more, and
    /// is to be touched again.
    pub fn lost_template(&self, addr: u64) -> bool {
        let page = page_down(addr);
        let mut was_shown = false;
        let lost = self.attempt(|space| {
            let entry = space.table.get(page);
            if !entry.is_of_template() {
                // Another thread has met it just before: a frame is always there.
                was_shown |= entry.frame().is_some() && space.find(page).is_some_and(serves);
                return Ok(());
            }
            was_shown = true;
            Err(space.lose_template(page))
        });
        lost.is_ok() && was_shown
    }
}
