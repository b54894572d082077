//! Lists of record locks: those of one file, in the order of their first bytes. No function changes a list in place.

use alloc::vec::Vec;

use crate::fs::pid_of::PidOf;
use machine::errno::{Errno, Result};
use machine::mm::account;

/// The largest offset a lock can cover: a range up to it has no end.
pub const END: u64 = i64::MAX as u64;

/// The holder of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// A process (its descriptor table), `fcntl(2)`.
    Table(u64),
    /// An open file description, `fcntl(2)` with `F_OFD_*`.
    Description(u64),
    /// Somebody on the host; `is_process`: by `fcntl(2)` of a process.
    Outside { is_process: bool },
}

/// A locked range, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    pub owner: Owner,
    pub process: PidOf,
    /// The description by which it was taken.
    pub file: u64,
    pub start: u64,
    pub end: u64,
    pub exclusive: bool,
}

impl Lock {
    /// Whether one of them cannot be had with the other.
    pub fn conflicts(&self, other: &Lock) -> bool {
        self.owner != other.owner
            && (self.exclusive || other.exclusive)
            && self.overlaps(other.start, other.end)
    }

    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start <= end && start <= self.end
    }
}

/// A lock that keeps `wanted` from being had.
pub(super) fn conflict(records: &[Lock], wanted: &Lock) -> Option<Lock> {
    records.iter().find(|held| held.conflicts(wanted)).copied()
}

/// The first lock of the same owner in the range of `wanted`.
pub(super) fn own(records: &[Lock], wanted: &Lock) -> Option<Lock> {
    let is_own = |held: &&Lock| held.owner == wanted.owner && held.overlaps(wanted.start, wanted.end);
    records.iter().find(is_own).copied()
}

/// The list without what `owner` has from `start` to `end`. Locks of which that is a part are split.
pub(super) fn without(records: &[Lock], owner: Owner, start: u64, end: u64) -> Result<Vec<Lock>> {
    // One lock at most is split, and one more comes in `with`.
    let mut kept: Vec<Lock> = account::vec(records.len() + 2).map_err(|_| Errno::ENOLCK)?;
    for held in records {
        if held.owner != owner || !held.overlaps(start, end) {
            kept.push(*held);
            continue;
        }
        if held.start < start {
            kept.push(Lock { end: start - 1, ..*held });
        }
        if held.end > end {
            kept.push(Lock { start: end + 1, ..*held });
        }
    }
    kept.sort_unstable_by_key(|held| held.start);
    Ok(kept)
}

/// The list with a lock that conflicts with none: it replaces the owner's locks in its range, and joins neighbours of its kind.
pub(super) fn with(records: &[Lock], new: &Lock) -> Result<Vec<Lock>> {
    let mut list = without(records, new.owner, new.start, new.end)?;
    let mut joined = *new;
    list.retain(|held| {
        let alike = held.owner == new.owner && held.exclusive == new.exclusive;
        let touches =
            held.end.saturating_add(1) >= joined.start && joined.end.saturating_add(1) >= held.start;
        if alike && touches {
            joined.start = joined.start.min(held.start);
            joined.end = joined.end.max(held.end);
        }
        !(alike && touches)
    });
    let at = list.partition_point(|held| held.start <= joined.start);
    // There is room: see `without`.
    list.insert(at, joined);
    Ok(list)
}

/// The first bytes from `from` to `end` that no lock covers, whosever it is.
pub(super) fn next_gap(records: &[Lock], from: u64, end: u64) -> Option<(u64, u64)> {
    let mut at = from;
    for held in records {
        if held.start > end || held.start > at {
            break;
        }
        if held.end >= at {
            if held.end >= end || held.end == END {
                return None;
            }
            at = held.end + 1;
        }
    }
    if at > end {
        return None;
    }
    let next = records.iter().map(|held| held.start).find(|start| *start > at);
    Some((at, next.map_or(end, |next| end.min(next - 1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(owner: u64, start: u64, end: u64, exclusive: bool) -> Lock {
        Lock { owner: Owner::Table(owner), process: PidOf::default(), file: owner, start, end, exclusive }
    }

    fn ranges(locks: &[Lock]) -> Vec<(u64, u64, bool)> {
        locks.iter().map(|held| (held.start, held.end, held.exclusive)).collect()
    }

    #[test]
    fn unlocking_the_middle_splits() {
        let locks = with(&[], &lock(1, 0, 99, true)).unwrap();
        let locks = without(&locks, Owner::Table(1), 10, 19).unwrap();
        assert_eq!(ranges(&locks), [(0, 9, true), (20, 99, true)]);
        assert!(conflict(&locks, &lock(2, 10, 19, true)).is_none());
        assert!(conflict(&locks, &lock(2, 9, 9, false)).is_some());
    }

    #[test]
    fn neighbours_of_one_kind_join_and_other_kinds_replace() {
        let locks = with(&[], &lock(1, 0, 9, false)).unwrap();
        let locks = with(&locks, &lock(1, 10, END, false)).unwrap();
        assert_eq!(ranges(&locks), [(0, END, false)]);
        let locks = with(&locks, &lock(1, 5, 6, true)).unwrap();
        assert_eq!(ranges(&locks), [(0, 4, false), (5, 6, true), (7, END, false)]);
    }

    #[test]
    fn a_list_stays_in_order_where_locks_of_several_owners_overlap() {
        let locks = with(&[], &lock(1, 0, 100, false)).unwrap();
        let locks = with(&locks, &lock(2, 5, 6, false)).unwrap();
        let locks = without(&locks, Owner::Table(1), 10, 20).unwrap();
        assert_eq!(ranges(&locks), [(0, 9, false), (5, 6, false), (21, 100, false)]);
        assert_eq!(own(&locks, &lock(1, 8, 30, false)).map(|held| held.start), Some(0));
        assert_eq!(own(&locks, &lock(2, 8, 30, false)), None);
    }

    /// Each byte that nobody has locked is in one gap, and no other is.
    #[test]
    fn gaps_are_what_nobody_has_locked() {
        let mut seed = 7_u64;
        let mut number = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let mut locks = Vec::new();
            for _ in 0..number(7) {
                let (start, len) = (number(30), number(10));
                locks = with(&locks, &lock(number(3), start, start + len, false)).unwrap();
            }
            let (from, end) = (number(20), 20 + number(25));
            let (mut at, mut gaps) = (from, Vec::new());
            while let Some((first, last)) = next_gap(&locks, at, end) {
                gaps.extend(first..=last);
                at = last + 1;
                if at > end {
                    break;
                }
            }
            let is_free = |at: &u64| !locks.iter().any(|held| held.overlaps(*at, *at));
            assert_eq!(gaps, (from..=end).filter(is_free).collect::<Vec<_>>(), "{:?}", ranges(&locks));
        }
        let all = with(&[], &lock(1, 5, END, true)).unwrap();
        assert_eq!((next_gap(&all, 0, END), next_gap(&all, 5, END)), (Some((0, 4)), None));
        assert_eq!(next_gap(&[], 3, END), Some((3, END)));
    }
}
