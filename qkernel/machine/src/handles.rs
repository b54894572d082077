//! How many handles of the VMM's each owner has. The VMM's table has a bound, which containers share: see [`Counts::fits`].

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use abi::word::{high32, low32};

use crate::errno::{Errno, Result};
use crate::owner::{self, OWNERS, Owner};

/// Handles left for processes that come in from outside; fewer where there are few in all.
const RESERVE: usize = 64;

static COUNTS: Counts = Counts::new();
/// Containers beside the first one.
static FURTHER: AtomicUsize = AtomicUsize::new(0);

/// Tells how many handles programs may have. Called once, before there are any but those of the boot records.
pub(crate) fn init(most: u32) {
    COUNTS.most.store(most as usize, Ordering::Relaxed);
}

/// There is another container beside the first.
pub(crate) fn container_begins() {
    FURTHER.fetch_add(1, Ordering::Relaxed);
}

/// See [`container_begins`].
pub(crate) fn container_ends() {
    FURTHER.fetch_sub(1, Ordering::Relaxed);
}

/// Open files that one process may be promised: there are as many handles, if others do not take them.
#[must_use]
pub fn most_for_one() -> u64 {
    let most = COUNTS.most.load(Ordering::Relaxed);
    most.saturating_sub(4 * RESERVE).max(most / 2) as u64
}

/// Handles that programs may have in all.
#[must_use]
pub fn most() -> usize {
    COUNTS.most.load(Ordering::Relaxed)
}

/// Handles in use.
#[must_use]
pub fn in_use() -> usize {
    COUNTS.total.load(Ordering::Relaxed)
}

/// Handles of one owner.
#[must_use]
pub fn in_use_by(owner: Owner) -> usize {
    COUNTS.of(owner)
}

/// The owner's container has ended: what others still hold of its handles is the sandbox's from now on.
pub(crate) fn leave_to_sandbox(owner: Owner) {
    COUNTS.leave_to_sandbox(owner);
}

/// A handle's place in the account of whoever had it opened; given back when dropped.
#[derive(Debug)]
pub(crate) struct Charge(Place);

impl Charge {
    /// For a handle that the current task is about to open. `ENFILE`: its container has its share, or there is none left.
    pub(crate) fn take() -> Result<Self> {
        let charge = Self::unbounded();
        let place = charge.0;
        let has_several = FURTHER.load(Ordering::Relaxed) > 0;
        let reserve = if owner::uses_reserve() { COUNTS.reserve() } else { 0 };
        if COUNTS.fits(place.owner, has_several, reserve) { Ok(charge) } else { Err(Errno::ENFILE) }
    }

    /// For a handle that the VMM has opened already.
    pub(crate) fn unbounded() -> Self {
        Self(COUNTS.add(owner::current()))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        COUNTS.remove(self.0);
    }
}

/// Where a handle is counted: with an owner, as long as that number means the same container.
#[derive(Clone, Copy, Debug)]
struct Place {
    owner: Owner,
    generation: u32,
}

/// See the module.
struct Counts {
    /// Of each owner: which container has this number by now (the upper half), and how many handles it has.
    rows: [AtomicU64; OWNERS],
    total: AtomicUsize,
    /// Most handles of all; the VMM keeps some more for itself.
    most: AtomicUsize,
}

impl Counts {
    const fn new() -> Self {
        Self {
            rows: [const { AtomicU64::new(0) }; OWNERS],
            total: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
        }
    }

    fn row(&self, owner: Owner) -> &AtomicU64 {
        &self.rows[usize::from(owner.number())]
    }

    fn of(&self, owner: Owner) -> usize {
        low32(self.row(owner).load(Ordering::Relaxed)) as usize
    }

    fn reserve(&self) -> usize {
        RESERVE.min(self.most.load(Ordering::Relaxed) / 8)
    }

    fn add(&self, owner: Owner) -> Place {
        self.total.fetch_add(1, Ordering::Relaxed);
        let before = self.row(owner).fetch_add(1, Ordering::Relaxed);
        Place { owner, generation: high32(before) }
    }

    fn remove(&self, place: Place) {
        let is_its = |now: u64| place.owner == Owner::SANDBOX || high32(now) == place.generation;
        let less = |now: u64| is_its(now).then(|| now - 1);
        let row = self.row(place.owner);
        if row.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            self.row(Owner::SANDBOX).fetch_sub(1, Ordering::Relaxed);
        }
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the handle that was counted last for `owner` is one it may have, with so many `more` in all.
    ///
    /// Of several containers each may have as many as nobody has. So one that hoards them gets half, and two get a third each:
    /// whatever the others do, some are left. A container by itself gets all.
    fn fits(&self, owner: Owner, has_several: bool, more: usize) -> bool {
        let most = self.most.load(Ordering::Relaxed).saturating_sub(self.reserve()).saturating_add(more);
        let total = self.total.load(Ordering::Relaxed);
        total <= most && (!has_several || self.of(owner) <= most - total + 1)
    }

    fn leave_to_sandbox(&self, owner: Owner) {
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

/// Checks that no owner but the sandbox has any left, and that each is counted once.
///
/// # Panics
///
/// When it is not so.
#[cfg(feature = "harness")]
pub fn check_settled() {
    let all = (0..OWNERS).filter_map(|number| u8::try_from(number).ok()).map(Owner::new);
    for owner in all.filter(|owner| *owner != Owner::SANDBOX) {
        assert_eq!(in_use_by(owner), 0, "handles of {owner:?}");
    }
    assert_eq!(in_use_by(Owner::SANDBOX), in_use(), "handles of all owners");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const ONE: Owner = Owner::new(1);
    const TWO: Owner = Owner::new(2);

    fn counts(most: usize) -> Counts {
        let counts = Counts::new();
        counts.most.store(most, Ordering::Relaxed);
        counts
    }

    /// Takes handles until there are none for `owner`; those it has got.
    fn hoard(counts: &Counts, owner: Owner, has_several: bool) -> Vec<Place> {
        let mut taken = Vec::new();
        loop {
            let place = counts.add(owner);
            if !counts.fits(owner, has_several, 0) {
                counts.remove(place);
                return taken;
            }
            taken.push(place);
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
            let place = counts.add(owner);
            if counts.fits(owner, true, 0) {
                has[at] += 1;
            } else {
                counts.remove(place);
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
        old.into_iter().for_each(|place| counts.remove(place));
        assert_eq!((counts.of(ONE), counts.of(Owner::SANDBOX)), (1, 0));
        counts.remove(next);
        assert_eq!((counts.of(ONE), counts.total.into_inner()), (0, 0));
    }

    #[test]
    fn handles_are_counted_once_while_their_container_ends() {
        let counts = counts(1064);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let places = [counts.add(ONE), counts.add(ONE)];
                        places.into_iter().for_each(|place| counts.remove(place));
                    }
                });
            }
            (0..2000).for_each(|_| counts.leave_to_sandbox(ONE));
        });
        assert_eq!((counts.of(ONE), counts.of(Owner::SANDBOX)), (0, 0));
        assert_eq!(counts.total.into_inner(), 0);
    }
}
