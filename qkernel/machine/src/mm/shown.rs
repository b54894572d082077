//! The host's descriptions of the mappings that a stub shows (systrap), one for each run of pages. They are charged,
//! and while memory is short a stub with many of them drops all it shows; faults bring back what is used.

use abi::layout::{USER_MAX, USER_MIN};
use abi::run::{MAP_OP_PROTECT, MAP_OP_UNMAP_ALL, MapOp};
use alloc::vec::Vec;

use super::aspace::Space;
use super::page::PAGE;
use super::pagetable::Entry;
use super::physical::account;
use crate::owner::Owner;

/// A mapping's description on the host.
const RUN_BYTES: usize = 256;
/// With fewer runs than this there is nothing to be gained.
const MANY_RUNS: usize = 4096;

/// How many runs of pages a stub shows, at most.
pub struct Shown {
    runs: usize,
    /// For whom the host keeps them.
    owner: Owner,
    /// The number from which on they are counted anew: operations tell how many come, but not how many go.
    recount_at: usize,
}

impl Shown {
    pub const fn new(owner: Owner) -> Self {
        Self { runs: 0, owner, recount_at: MANY_RUNS }
    }

    fn set(&mut self, runs: usize) {
        account::add_host_side(self.owner, runs * RUN_BYTES);
        account::remove_host_side(self.owner, self.runs * RUN_BYTES);
        self.runs = runs;
    }

    /// The stub shows nothing any more.
    pub fn clear(&mut self) {
        self.set(0);
    }

    /// The host's memory for them.
    pub fn bytes(&self) -> usize {
        self.runs * RUN_BYTES
    }

    /// The most runs that operations leave of `runs`.
    fn after(runs: usize, ops: &[MapOp]) -> usize {
        ops.iter().fold(runs, |runs, op| match op.kind {
            MAP_OP_UNMAP_ALL => 0,
            // Each may split a run, in two or in three.
            MAP_OP_PROTECT => runs + 2,
            _ => runs + 1,
        })
    }
}

/// Whether a page and the next one that is shown are of one run: neighbours in memory with the same protection.
pub(super) fn joins((at, before): (u64, Entry), (addr, entry): (u64, Entry)) -> bool {
    let same = Entry::WRITABLE | Entry::NO_EXECUTE;
    at + PAGE == addr && before.phys() + PAGE == entry.phys() && before.0 & same == entry.0 & same
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Space {
    /// Charges for operations that are about to go to the stub; what goes to it instead.
    pub(super) fn charge_mirror(&mut self, ops: Vec<MapOp>) -> Vec<MapOp> {
        let mut runs = Shown::after(self.shown.runs, &ops);
        if runs >= self.shown.recount_at {
            runs = self.count_runs();
            self.shown.recount_at = MANY_RUNS.max(2 * runs);
        }
        self.shown.set(runs);
        if runs < MANY_RUNS || account::check(0).is_ok() {
            return ops;
        }
        self.shown.clear();
        alloc::vec![MapOp { kind: MAP_OP_UNMAP_ALL, ..Default::default() }]
    }

    /// The stub has given up a part of what it showed.
    pub(super) fn recount_mirror(&mut self) {
        let runs = self.count_runs();
        self.shown.set(runs);
    }

    /// Runs of pages that the stub may show.
    fn count_runs(&mut self) -> usize {
        let mut runs = 0;
        let mut last = (0, Entry::NONE);
        self.table.for_each(USER_MIN, USER_MAX, |addr, entry| {
            if !entry.has(Entry::MIRRORED) {
                return;
            }
            runs += usize::from(!joins(last, (addr, *entry)));
            last = (addr, *entry);
        });
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::run::{MAP_OP_MAP, MAP_OP_UNMAP};

    #[test]
    fn runs_are_never_fewer_than_operations_leave() {
        let op = |kind| MapOp { kind, ..Default::default() };
        let (map, unmap, all) = (op(MAP_OP_MAP), op(MAP_OP_UNMAP), op(MAP_OP_UNMAP_ALL));
        // Inside a run, an unmapped page leaves two, and a page with another protection three.
        assert_eq!(Shown::after(1, &[unmap]), 2);
        assert_eq!(Shown::after(1, &[op(MAP_OP_PROTECT)]), 3);
        assert_eq!(Shown::after(0, &[map, map, unmap]), 3);
        assert_eq!(Shown::after(9, &[map, all, map]), 1);
    }
}
