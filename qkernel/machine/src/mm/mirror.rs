//! The stub's mirror of an address space (systrap): what is queued for the stub, and when the stub carries it out.

use abi::layout::{USER_MAX, USER_MIN};
use abi::run::{MAP_OP_MAP, MAP_OP_UNMAP, MAP_OP_UNMAP_ALL, MapOp};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::aspace::{AddressSpace, Space};
use super::page::PAGE;
use super::pagetable::Entry;
use super::physical::account;
use super::physical::frames::Frame;
use super::physical::residency;
use super::shown;
use super::template;
use super::vma::mirror_prot;
use crate::errno::Result;
use crate::platform;
use crate::sync::MutexGuard;

/// Most operations by which a stub gives up a part of what it shows, and most runs of pages that it keeps.
const WITHDRAWALS_MAX: usize = 1024;
const KEPT_MAX: usize = 1024;

impl AddressSpace {
    /// Makes the stub give up all mappings, at once; faults bring back what is used.
    ///
    /// On return the stub has confirmed, or it is gone: then its tasks cannot run any more, which they hear when they try.
    pub fn drop_mirror(&self, space: &mut Space) {
        if !platform::current().mirrors() {
            return;
        }
        let mut queued = self.mirror.lock();
        // Mappings that are still queued would show frames that are about to be given back.
        queued.clear();
        space.batch.ops.clear();
        let all = MapOp { kind: MAP_OP_UNMAP_ALL, ..Default::default() };
        if platform::current().sync_mirror(&self.machine, &[all]).is_err() {
            crate::info!("address space {}: its stub is gone", self.id());
        }
        self.is_queued.store(false, Ordering::SeqCst);
        space.shown.clear();
        self.has_dropped.store(false, Ordering::SeqCst);
        space.table.for_each(USER_MIN, USER_MAX, |_, entry| entry.0 &= !Entry::MIRRORED);
    }

    /// Makes the stub give up, at once, all mappings but those of the template that outlast a sleep ([`template::outlasts_sleep`]).
    pub fn drop_mirror_but_template(&self, space: &mut Space) {
        if !platform::current().mirrors() {
            return;
        }
        // Where something waits to be shown it has not run since, and where all was dropped nobody knows what is shown.
        let is_known = !self.has_dropped.swap(false, Ordering::SeqCst)
            && self.mirror.lock().is_empty()
            && space.batch.ops.is_empty();
        let withdrawn = if is_known { space.all_but_template() } else { None };
        let result = withdrawn.map(|ops| platform::current().sync_mirror(&self.machine, &ops));
        if !matches!(result, Some(Ok(()))) {
            return self.drop_mirror(space);
        }
        space.table.for_each(USER_MIN, USER_MAX, |_, entry| {
            if !template::outlasts_sleep(*entry) {
                entry.0 &= !Entry::MIRRORED;
            }
        });
        space.recount_mirror();
    }

    /// Has the stub carry out what is queued; user code runs next. Who finds nothing takes no lock: threads of one space that wait
    /// for each other here, and come again because they have waited, would keep each other from user code.
    pub fn flush_mirror(&self) {
        if !self.is_queued.load(Ordering::SeqCst) {
            return;
        }
        let queued = self.mirror.lock();
        if queued.is_empty() {
            return;
        }
        if self.carry_out(queued).is_err() {
            // The stub ran out of mappings: drop them all, as one drops a TLB, and let faults bring back what is used.
            self.drop_mirror(&mut self.lock());
        }
    }

    /// Has the stub carry out what is queued, as [`Self::flush_mirror`] does, but ahead of time, and unless somebody is
    /// at it. For an idle CPU, which may not sleep.
    pub(super) fn flush_mirror_if_free(&self) {
        let Some(mut queued) = self.mirror.try_lock() else { return };
        if queued.is_empty() {
            return;
        }
        let result = platform::current().sync_mirror(&self.machine, &queued);
        queued.clear();
        self.is_queued.store(result.is_err(), Ordering::SeqCst);
        if result.is_err() {
            self.has_dropped.store(true, Ordering::SeqCst);
            // Before it runs next it gives up all mappings, and faults bring back what is used.
            queued.push(MapOp { kind: MAP_OP_UNMAP_ALL, ..Default::default() });
        }
    }

    /// Makes the swapped entries of `pages` present whose frame's content is there, and shows them to the stub with one
    /// order. Nothing, if the space is in use: false. For an idle CPU as well, which may not sleep.
    pub fn bring_in_entries(
        &self,
        pages: impl Iterator<Item = u64>,
        is_absent: impl Fn(Frame) -> bool,
    ) -> bool {
        let Some(mut space) = self.try_lock() else { return false };
        let Some(mut queued) = self.mirror.try_lock() else { return false };
        for page in pages {
            let entry = space.table.get(page);
            let Some(frame) = entry.coming() else { continue };
            if residency::is_shown(frame) && space.find(page).is_some_and(template::serves) {
                space.show(page, entry.shown_by_template());
            } else if !is_absent(frame) {
                space.show(page, entry.brought_in());
            }
        }
        self.queue(&mut space, &mut queued);
        drop(queued);
        self.commit(&mut space);
        true
    }

    /// Operations that withdraw access are carried out at once, behind all that were queued before them.
    pub(super) fn commit_mirror(&self, space: &mut Space, withdraws: bool) {
        if space.batch.ops.is_empty() {
            return;
        }
        let mut queued = self.mirror.lock();
        self.queue(space, &mut queued);
        if !withdraws {
            return;
        }
        if self.carry_out(queued).is_err() {
            self.drop_mirror(space);
        }
    }

    /// Has the stub carry out what is queued, and lets go of the queue.
    fn carry_out(&self, mut queued: MutexGuard<'_, Vec<MapOp>>) -> Result<()> {
        let result = platform::current().sync_mirror(&self.machine, &queued);
        queued.clear();
        self.is_queued.store(false, Ordering::SeqCst);
        result
    }

    /// Queues the operations of `space` behind those that are queued.
    fn queue(&self, space: &mut Space, queued: &mut Vec<MapOp>) {
        let ops = core::mem::take(&mut space.batch.ops);
        if ops.is_empty() {
            return;
        }
        let ops = space.charge_mirror(ops);
        if ops.iter().any(|op| op.kind == MAP_OP_UNMAP_ALL) {
            self.has_dropped.store(true, Ordering::SeqCst);
        }
        if queued.len() + ops.len() > 2 * platform::OPS_MAX {
            // It drops what it shows, and what is new comes back by faults as well.
            *queued = alloc::vec![MapOp { kind: MAP_OP_UNMAP_ALL, ..Default::default() }];
            self.has_dropped.store(true, Ordering::SeqCst);
        } else if queued.is_empty() {
            *queued = ops;
        } else {
            queued.extend(ops);
        }
        self.is_queued.store(true, Ordering::SeqCst);
    }
}

impl Space {
    /// Operations that withdraw all that the stub may show but what outlasts a sleep. `None`: they are too many, too much would stay, or
    /// memory is short.
    fn all_but_template(&mut self) -> Option<Vec<MapOp>> {
        account::check(0).ok()?;
        let mut ops: Vec<MapOp> = Vec::new();
        ops.try_reserve_exact(WITHDRAWALS_MAX).ok()?;
        let (mut kept, mut last, mut is_full) = (0, (0, Entry::NONE), false);
        // Where the last page that stays ends, and whether the stub may show something since.
        let (mut since, mut is_shown) = (USER_MIN, false);
        let mut withdraw = |since: u64, end: u64| {
            is_full |= ops.len() == WITHDRAWALS_MAX;
            if !is_full {
                ops.push(MapOp { kind: MAP_OP_UNMAP, addr: since, len: end - since, ..Default::default() });
            }
        };
        self.table.for_each(USER_MIN, USER_MAX, |addr, entry| {
            if !template::outlasts_sleep(*entry) {
                is_shown |= entry.has(Entry::MIRRORED);
                return;
            }
            if is_shown {
                withdraw(since, addr);
            }
            kept += usize::from(entry.has(Entry::MIRRORED) && !shown::joins(last, (addr, *entry)));
            last = (addr, *entry);
            (since, is_shown) = (addr + PAGE, false);
        });
        if is_shown {
            withdraw(since, USER_MAX);
        }
        (!is_full && kept <= KEPT_MAX).then_some(ops)
    }

    /// Replaces an entry that was not present by one that is, and shows it to the stub.
    fn show(&mut self, addr: u64, entry: Entry) {
        let mut entry = entry;
        if platform::current().mirrors() {
            entry.0 |= Entry::MIRRORED;
            let prot = mirror_prot(entry);
            self.batch.push(MapOp { kind: MAP_OP_MAP, prot, addr, len: PAGE, phys: entry.phys() });
        }
        // The table is there: the entry was in it.
        let _ = self.table.set(addr, entry);
    }
}
