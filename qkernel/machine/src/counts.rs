//! How many things of a kind each owner has, of which the host gives so many. Containers share them: see [`Counts::fits`].

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use abi::word::{high32, low32};

use crate::owner::{self, OWNERS, Owner};

/// Things left for processes that come in from outside; fewer where there are few in all.
pub(crate) const RESERVE: usize = 64;

/// Containers beside the first one.
static FURTHER: AtomicUsize = AtomicUsize::new(0);

/// There is another container beside the first.
pub(crate) fn container_begins() {
    FURTHER.fetch_add(1, Ordering::Relaxed);
}

/// See [`container_begins`].
pub(crate) fn container_ends() {
    FURTHER.fetch_sub(1, Ordering::Relaxed);
}

/// The account of a thing with whoever had it made; given back when dropped.
#[derive(Debug)]
pub struct Charge {
    of: &'static Counts,
    payer: Payer,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.remove(self.payer);
    }
}

/// An owner that things are counted with, as long as its number means the same container.
#[derive(Clone, Copy, Debug)]
struct Payer {
    owner: Owner,
    generation: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Of each owner: which container has this number by now (the upper half), and how many it has.
    rows: [AtomicU64; OWNERS],
    total: AtomicUsize,
    /// Most of all.
    most: AtomicUsize,
}

impl Counts {
    pub const fn new(most: usize) -> Self {
        Self {
            rows: [const { AtomicU64::new(0) }; OWNERS],
            total: AtomicUsize::new(0),
            most: AtomicUsize::new(most),
        }
    }

    /// For one more thing of the current task's. `None`: its container has its share, or there is none left.
    pub fn take(&'static self) -> Option<Charge> {
        let charge = self.unbounded();
        let has_several = FURTHER.load(Ordering::Relaxed) > 0;
        let reserve = if owner::uses_reserve() { self.reserve() } else { 0 };
        self.fits(charge.payer.owner, has_several, reserve).then_some(charge)
    }

    /// For a thing of the current task's that is there already.
    pub fn unbounded(&'static self) -> Charge {
        Charge { of: self, payer: self.add(owner::current()) }
    }

    /// There are so many from now on.
    pub fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    pub fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    fn row(&self, owner: Owner) -> &AtomicU64 {
        &self.rows[usize::from(owner.number())]
    }

    pub fn of(&self, owner: Owner) -> usize {
        low32(self.row(owner).load(Ordering::Relaxed)) as usize
    }

    fn reserve(&self) -> usize {
        RESERVE.min(self.most.load(Ordering::Relaxed) / 8)
    }

    fn add(&self, owner: Owner) -> Payer {
        self.total.fetch_add(1, Ordering::Relaxed);
        let before = self.row(owner).fetch_add(1, Ordering::Relaxed);
        Payer { owner, generation: high32(before) }
    }

    fn remove(&self, payer: Payer) {
        let is_its = |now: u64| payer.owner == Owner::SANDBOX || high32(now) == payer.generation;
        let less = |now: u64| is_its(now).then(|| now - 1);
        let row = self.row(payer.owner);
        if row.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            self.row(Owner::SANDBOX).fetch_sub(1, Ordering::Relaxed);
        }
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the thing that was counted last for `owner` is one it may have, with so many `more` in all.
    ///
    /// Of several containers each may have as many as nobody has. So one that hoards them gets half, and two get a third each:
    /// whatever the others do, some are left. A container by itself gets all.
    fn fits(&self, owner: Owner, has_several: bool, more: usize) -> bool {
        let most = self.most.load(Ordering::Relaxed).saturating_sub(self.reserve()).saturating_add(more);
        let total = self.total.load(Ordering::Relaxed);
        total <= most && (!has_several || self.of(owner) <= most - total + 1)
    }

    /// The owner's container has ended: what others still hold of its things is the sandbox's from now on.
    pub fn leave_to_sandbox(&self, owner: Owner) {
        let (row, sandbox) = (self.row(owner), self.row(Owner::SANDBOX));
        loop {
            let now = row.load(Ordering::Relaxed);
            let left = u64::from(low32(now));
            let next = u64::from(high32(now).wrapping_add(1)) << 32;
            // First, so that none of them is given back before it is there.
            sandbox.fetch_add(left, Ordering::Relaxed);
            if row.compare_exchange(now, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
            sandbox.fetch_sub(left, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const ONE: Owner = Owner::new(1);
    const TWO: Owner = Owner::new(2);

    fn counts(most: usize) -> Counts {
        Counts::new(most)
    }

    /// Takes things until there are none for `owner`; those it has got.
    fn hoard(counts: &Counts, owner: Owner, has_several: bool) -> Vec<Payer> {
        let mut taken = Vec::new();
        loop {
            let payer = counts.add(owner);
            if !counts.fits(owner, has_several, 0) {
                counts.remove(payer);
                return taken;
            }
            taken.push(payer);
        }
    }

    #[test]
    fn a_container_by_itself_gets_all_but_the_reserve() {
        let counts = counts(1064);
        assert_eq!(hoard(&counts, Owner::SANDBOX, false).len(), 1000);
        counts.add(Owner::SANDBOX);
        assert!(counts.fits(Owner::SANDBOX, false, 64) && !counts.fits(Owner::SANDBOX, false, 0));
    }

    #[test]
    fn of_several_each_leaves_as_many_as_it_has() {
        let counts = counts(1064);
        assert_eq!(hoard(&counts, ONE, true).len(), 500);
        assert_eq!(hoard(&counts, TWO, true).len(), 250);
        assert_eq!(hoard(&counts, Owner::SANDBOX, true).len(), 125);
        assert!(hoard(&counts, ONE, true).is_empty());
    }

    #[test]
    fn two_that_hoard_at_once_leave_a_third() {
        let counts = counts(1064);
        let mut has = [0, 0];
        for at in (0..2000).map(|round| round % 2) {
            let owner = [ONE, TWO][at];
            let payer = counts.add(owner);
            if counts.fits(owner, true, 0) {
                has[at] += 1;
            } else {
                counts.remove(payer);
            }
        }
        assert!(has.iter().all(|count| (333..=334).contains(count)), "{has:?}");
    }

    #[test]
    fn what_an_ended_container_leaves_is_the_sandboxs_and_not_the_next_ones() {
        let counts = counts(1064);
        let old: Vec<_> = (0..3).map(|_| counts.add(ONE)).collect();
        counts.leave_to_sandbox(ONE);
        assert_eq!((counts.of(ONE), counts.of(Owner::SANDBOX)), (0, 3));
        let next = counts.add(ONE);
        old.into_iter().for_each(|payer| counts.remove(payer));
        assert_eq!((counts.of(ONE), counts.of(Owner::SANDBOX)), (1, 0));
        counts.remove(next);
        assert_eq!((counts.of(ONE), counts.total.into_inner()), (0, 0));
    }

    #[test]
    fn things_are_counted_once_while_their_container_ends() {
        let counts = counts(1064);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let payers = [counts.add(ONE), counts.add(ONE)];
                        payers.into_iter().for_each(|payer| counts.remove(payer));
                    }
                });
            }
            (0..2000).for_each(|_| counts.leave_to_sandbox(ONE));
        });
        assert_eq!((counts.of(ONE), counts.of(Owner::SANDBOX)), (0, 0));
        assert_eq!(counts.total.into_inner(), 0);
    }
}
