//! Advisory locks: POSIX record locks, open-file-description locks, and `flock(2)`.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::fs::caller;
use crate::fs::caller::PidOf;
use crate::fs::file::File;
use crate::fs::inode::Inode;
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};

/// The largest offset a lock can cover: a range up to it has no end.
pub const END: u64 = i64::MAX as u64;

/// Most record locks of one file.
const LOCKS_MAX: usize = 65_536;

/// Bytes of kernel memory a file's first lock takes.
const LOCK_BYTES: usize = 512;

/// The holder of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Owner {
    /// A process (its descriptor table), `fcntl(2)`.
    Table(u64),
    /// An open file description, `fcntl(2)` with `F_OFD_*`.
    Description(u64),
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
            && self.start <= other.end
            && other.start <= self.end
    }
}

/// The file that has locks, for who shows them. It keeps none open.
#[derive(Clone)]
pub enum Node {
    Named(Weak<dyn Inode>),
    /// A pipe or the like, by `st_dev` and `st_ino`.
    Unnamed(u64, u64),
}

impl Node {
    /// That of an open file.
    pub fn of(file: &File) -> Self {
        match &file.path {
            Some(path) => Self::Named(Arc::downgrade(&path.inode)),
            None => file.ops.stat(file).map_or(Self::Unnamed(0, 0), |stat| Self::Unnamed(stat.dev, stat.ino)),
        }
    }

    /// `st_dev` and `st_ino`, while it is there. May ask the host.
    pub fn numbers(&self) -> Option<(u64, u64)> {
        match self {
            Self::Named(inode) => inode.upgrade()?.stat().ok().map(|stat| (stat.dev, stat.ino)),
            Self::Unnamed(dev, ino) => Some((*dev, *ino)),
        }
    }
}

/// The locks of one file.
#[derive(Default)]
struct FileLocks {
    node: Option<Node>,
    records: Vec<Lock>,
    /// Those of `flock(2)`.
    flocks: Vec<Lock>,
}

impl FileLocks {
    fn conflict(&self, wanted: &Lock) -> Option<Lock> {
        self.records.iter().find(|held| held.conflicts(wanted)).copied()
    }

    /// Removes `range` from `owner`'s locks, splitting locks that it covers only in part.
    fn unlock(&mut self, owner: Owner, start: u64, end: u64) -> Result<()> {
        let mut kept = account::vec(self.records.len() + 2).map_err(|_| Errno::ENOLCK)?;
        for held in self.records.drain(..) {
            if held.owner != owner || held.end < start || end < held.start {
                kept.push(held);
                continue;
            }
            if held.start < start {
                kept.push(Lock { end: start - 1, ..held });
            }
            if held.end > end {
                kept.push(Lock { start: end + 1, ..held });
            }
        }
        self.records = kept;
        Ok(())
    }

    /// Adds a lock that conflicts with none, replacing the owner's locks in its range and joining neighbours.
    fn lock(&mut self, new: Lock) -> Result<()> {
        if self.records.len() >= LOCKS_MAX {
            return Err(Errno::ENOLCK);
        }
        self.unlock(new.owner, new.start, new.end)?;
        let mut joined = new;
        self.records.retain(|held| {
            let alike = held.owner == new.owner && held.exclusive == new.exclusive;
            let touches =
                held.end.saturating_add(1) >= joined.start && joined.end.saturating_add(1) >= held.start;
            if alike && touches {
                joined.start = joined.start.min(held.start);
                joined.end = joined.end.max(held.end);
            }
            !(alike && touches)
        });
        let at = self.records.partition_point(|held| held.start <= joined.start);
        // There is room: unlocking left it.
        self.records.insert(at, joined);
        Ok(())
    }

    fn flock_conflict(&self, wanted: &Lock) -> bool {
        self.flocks.iter().any(|held| held.conflicts(wanted))
    }

    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.flocks.is_empty()
    }
}

#[derive(Default)]
struct Table {
    /// By [`crate::fs::inode::Inode::lock_key`]. A file with locks is open, so the key stays its own.
    files: BTreeMap<usize, FileLocks>,
    /// The process (descriptor table) that each waiting process waits for.
    waits: BTreeMap<u64, u64>,
    /// What tasks wait for, by file, and there in the order in which they came.
    blocked: BTreeMap<(usize, u64), Shown>,
}

/// A lock as others see it.
#[derive(Clone, Copy)]
pub struct Shown {
    pub is_flock: bool,
    pub lock: Lock,
}

/// While it lives others see that its task waits for a lock.
struct Blocked((usize, u64));

impl Blocked {
    fn new(file: usize, shown: Shown) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let place = (file, NEXT.fetch_add(1, Ordering::Relaxed));
        with_table(|table| table.blocked.insert(place, shown));
        Self(place)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        with_table(|table| table.blocked.remove(&self.0));
    }
}

static TABLE: SpinLock<Option<Table>> = SpinLock::new(Rank::Leaf, None);
static CHANGED: WaitQueue = WaitQueue::new();

fn with_table<R>(f: impl FnOnce(&mut Table) -> R) -> R {
    f(TABLE.lock().get_or_insert_with(Table::default))
}

/// Files with locks, and tasks that wait for some.
#[cfg(feature = "harness")]
pub fn count() -> usize {
    with_table(|table| table.files.len() + table.blocked.len())
}

fn inode_of(file: &File) -> usize {
    match &file.path {
        Some(path) => path.inode.lock_key(),
        None => file.ops.lock_key().unwrap_or((&raw const *file).cast::<u8>() as usize),
    }
}

impl Table {
    fn note_node(&mut self, file: usize, node: &Node) {
        if let Some(locks) = self.files.get_mut(&file)
            && locks.node.is_none()
        {
            locks.node = Some(node.clone());
        }
    }

    fn prune(&mut self, file: usize) {
        if self.files.get(&file).is_some_and(FileLocks::is_empty) {
            self.files.remove(&file);
        }
    }

    /// Whether waiting for `holder` would close a circle back to `waiter`.
    fn would_deadlock(&self, waiter: u64, holder: u64) -> bool {
        let mut at = holder;
        for _ in 0..64 {
            if at == waiter {
                return true;
            }
            match self.waits.get(&at) {
                Some(next) => at = *next,
                None => return false,
            }
        }
        false
    }

    /// One attempt to lock: `EAGAIN` when it conflicts.
    fn try_lock(&mut self, file: usize, wanted: &Lock, waits: bool) -> Result<()> {
        if let Owner::Table(me) = wanted.owner {
            self.waits.remove(&me);
        }
        let locks = self.files.entry(file).or_default();
        let Some(holder) = locks.conflict(wanted) else {
            let result = locks.lock(*wanted);
            self.prune(file);
            return result;
        };
        if let (Owner::Table(me), Owner::Table(other), true) = (wanted.owner, holder.owner, waits) {
            if self.would_deadlock(me, other) {
                return Err(Errno::EDEADLK);
            }
            self.waits.insert(me, other);
        }
        Err(Errno::EAGAIN)
    }
}

/// The lock that keeps `wanted` from being taken (`F_GETLK`).
pub fn test(file: &File, wanted: &Lock) -> Result<Option<Lock>> {
    let file = inode_of(file);
    Ok(with_table(|table| table.files.get(&file).and_then(|locks| locks.conflict(wanted))))
}

/// Takes a lock (`F_SETLK`; `F_SETLKW` if `waits`). `EAGAIN`, `EDEADLK`, or interrupted.
pub fn lock(file: &File, wanted: &Lock, waits: bool) -> Result<()> {
    let inode = inode_of(file);
    account::check(LOCK_BYTES).map_err(|_| Errno::ENOLCK)?;
    let node = Node::of(file);
    let attempt = || {
        with_table(|table| {
            let result = table.try_lock(inode, wanted, waits);
            table.note_node(inode, &node);
            result
        })
    };
    let mut result = attempt();
    if waits && result == Err(Errno::EAGAIN) {
        let _blocked = Blocked::new(inode, Shown { is_flock: false, lock: *wanted });
        let woken = CHANGED.wait(|| match attempt() {
            Err(Errno::EAGAIN) => None,
            done => Some(done),
        });
        if let Owner::Table(me) = wanted.owner {
            with_table(|table| table.waits.remove(&me));
        }
        result = woken.and_then(|done| done);
    }
    // A lock that became weaker may let others in.
    CHANGED.wake_all();
    result
}

/// Gives a range back (`F_UNLCK`).
pub fn unlock(file: &File, owner: Owner, start: u64, end: u64) -> Result<()> {
    let inode = inode_of(file);
    let result = with_table(|table| {
        let locks = table.files.get_mut(&inode);
        let result = locks.map_or(Ok(()), |locks| locks.unlock(owner, start, end));
        table.prune(inode);
        result
    });
    CHANGED.wake_all();
    result
}

/// `flock(2)`; `None` unlocks. `EAGAIN` when it would wait and `waits` is false.
pub fn flock(file: &File, kind: Option<bool>, waits: bool) -> Result<()> {
    let inode = inode_of(file);
    let owner = Owner::Description(file.id);
    let node = Node::of(file);
    let process = PidOf::of(&*caller::current());
    let wanted = kind.map(|exclusive| Lock { owner, process, file: file.id, start: 0, end: END, exclusive });
    if kind.is_some() {
        account::check(LOCK_BYTES)?;
    }
    let attempt = |keep: bool| {
        with_table(|table| {
            let locks = table.files.entry(inode).or_default();
            let result = match wanted {
                Some(wanted) if locks.flock_conflict(&wanted) => {
                    // Changing a lock gives the old one up first, as on Linux.
                    if !keep {
                        locks.flocks.retain(|held| held.owner != owner);
                    }
                    Err(Errno::EAGAIN)
                }
                wanted => {
                    locks.flocks.retain(|held| held.owner != owner);
                    locks.flocks.extend(wanted);
                    Ok(())
                }
            };
            table.note_node(inode, &node);
            table.prune(inode);
            result
        })
    };
    let mut result = attempt(false);
    CHANGED.wake_all();
    if waits
        && result == Err(Errno::EAGAIN)
        && let Some(lock) = wanted
    {
        let _blocked = Blocked::new(inode, Shown { is_flock: true, lock });
        result = CHANGED
            .wait(|| match attempt(true) {
                Err(Errno::EAGAIN) => None,
                done => Some(done),
            })
            .and_then(|done| done);
    }
    result
}

fn release(file: &File, which: impl Fn(&Lock) -> bool, flock: bool) {
    // Whoever closes a file looks here, and mostly nobody locks any.
    if with_table(|table| table.files.is_empty()) {
        return;
    }
    let inode = inode_of(file);
    let changed = with_table(|table| {
        let Some(locks) = table.files.get_mut(&inode) else { return false };
        let before = locks.records.len() + locks.flocks.len();
        locks.records.retain(|held| !which(held));
        if flock {
            locks.flocks.retain(|held| held.file != file.id);
        }
        let changed = before != locks.records.len() + locks.flocks.len();
        table.prune(inode);
        changed
    });
    if changed {
        CHANGED.wake_all();
    }
}

/// A process closed a descriptor of `file`: all its record locks on that file go, whatever descriptor they were made by.
pub fn release_posix(file: &File, table: u64) {
    release(file, |held| held.owner == Owner::Table(table), false);
}

/// The description is gone, and its locks with it.
pub fn release_file(file: &File) {
    release(file, |held| held.owner == Owner::Description(file.id), true);
}

/// The locks of one file.
pub struct Listed {
    /// Where the next one is looked for.
    pub next: usize,
    pub node: Option<Node>,
    pub held: Vec<Shown>,
    /// What tasks wait for.
    pub blocked: Vec<Shown>,
}

/// The first file with locks from `from` on, for `/proc/locks`.
pub fn list(from: usize) -> Result<Option<Listed>> {
    with_table(|table| {
        let Some((&key, locks)) = table.files.range(from..).next() else { return Ok(None) };
        listed(table, key, locks).map(Some)
    })
}

/// The locks of the file that is open as `file`.
pub fn list_of(file: &File) -> Result<Option<Listed>> {
    let key = inode_of(file);
    with_table(|table| table.files.get(&key).map(|locks| listed(table, key, locks)).transpose())
}

fn listed(table: &Table, key: usize, locks: &FileLocks) -> Result<Listed> {
    let mut held = account::vec(locks.records.len() + locks.flocks.len())?;
    held.extend(locks.records.iter().map(|lock| Shown { is_flock: false, lock: *lock }));
    held.extend(locks.flocks.iter().map(|lock| Shown { is_flock: true, lock: *lock }));
    let waiting = || table.blocked.range((key, 0)..=(key, u64::MAX)).map(|(_, shown)| *shown);
    let mut blocked = account::vec(waiting().count())?;
    blocked.extend(waiting());
    Ok(Listed { next: key.saturating_add(1), node: locks.node.clone(), held, blocked })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(owner: u64, start: u64, end: u64, exclusive: bool) -> Lock {
        Lock { owner: Owner::Table(owner), process: PidOf::default(), file: owner, start, end, exclusive }
    }

    fn ranges(locks: &FileLocks) -> Vec<(u64, u64, bool)> {
        locks.records.iter().map(|held| (held.start, held.end, held.exclusive)).collect()
    }

    #[test]
    fn unlocking_the_middle_splits() {
        let mut locks = FileLocks::default();
        locks.lock(lock(1, 0, 99, true)).unwrap();
        locks.unlock(Owner::Table(1), 10, 19).unwrap();
        assert_eq!(ranges(&locks), [(0, 9, true), (20, 99, true)]);
        assert!(locks.conflict(&lock(2, 10, 19, true)).is_none());
        assert!(locks.conflict(&lock(2, 9, 9, false)).is_some());
    }

    #[test]
    fn neighbours_of_one_kind_join_and_other_kinds_replace() {
        let mut locks = FileLocks::default();
        locks.lock(lock(1, 0, 9, false)).unwrap();
        locks.lock(lock(1, 10, END, false)).unwrap();
        assert_eq!(ranges(&locks), [(0, END, false)]);
        locks.lock(lock(1, 5, 6, true)).unwrap();
        assert_eq!(ranges(&locks), [(0, 4, false), (5, 6, true), (7, END, false)]);
    }

    #[test]
    fn readers_share_and_circles_are_seen() {
        let mut table = Table::default();
        assert_eq!(table.try_lock(1, &lock(1, 0, 0, false), true), Ok(()));
        assert_eq!(table.try_lock(1, &lock(2, 0, 0, false), true), Ok(()));
        assert_eq!(table.try_lock(2, &lock(2, 0, 0, true), true), Ok(()));
        assert_eq!(table.try_lock(1, &lock(2, 0, 0, true), true), Err(Errno::EAGAIN));
        assert_eq!(table.try_lock(2, &lock(1, 0, 0, true), true), Err(Errno::EDEADLK));
    }
}
