//! Advisory locks: POSIX record locks, open-file-description locks, and `flock(2)`.
//!
//! The table here says which owner of the sandbox has which. Locks of files that others may open as well, those in volumes, are the
//! host's besides ([`host`]): there the sandbox is one owner, which has the strongest of what its own have.

pub mod held;
mod host;
mod records;

pub use held::{HostLocks, HostView, holds_exclusive_host_lock};
pub use host::waits_for_host_lock;
pub use records::{END, Lock, Owner};

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::fs::caller;
use crate::fs::caller::PidOf;
use crate::fs::file::{self, File, Keeper, Kept};
use crate::fs::inode::{Inode, S_IFREG};
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};

use host::Waiter;

/// Most record locks of one file.
const LOCKS_MAX: usize = 65_536;

/// Bytes of kernel memory a file's first lock takes.
const LOCK_BYTES: usize = 512;

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
    /// The locks that tasks wait for, by file, and for each file in the order in which the tasks came.
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

/// The outcome of an attempt to lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    Done,
    /// Another owner of the sandbox is in the way.
    Held,
    /// Somebody on the host is, who tells nobody when he is not any more.
    HeldOutside,
}

/// The locks that an operation has removed.
#[derive(Clone, Copy, Default)]
struct Removed {
    is_any: bool,
    /// The first and the last byte of record locks among it.
    span: Option<(u64, u64)>,
}

static TABLE: SpinLock<Option<Table>> = SpinLock::new(Rank::Leaf, None);
static CHANGED: WaitQueue = WaitQueue::new();
/// How often locks have become weaker or fewer.
static CHANGES: AtomicU64 = AtomicU64::new(0);

fn with_table<R>(f: impl FnOnce(&mut Table) -> R) -> R {
    f(TABLE.lock().get_or_insert_with(Table::default))
}

/// Files with locks, and tasks that wait for some.
#[cfg(feature = "harness")]
pub fn count() -> usize {
    with_table(|table| table.files.len() + table.blocked.len())
}

/// A lock that became weaker, or went, may let others in.
fn tell() {
    CHANGES.fetch_add(1, Ordering::SeqCst);
    CHANGED.wake_all();
}

fn inode_of(file: &File) -> usize {
    match &file.path {
        Some(path) => path.inode.lock_key(),
        None => file.ops.lock_key().unwrap_or((&raw const *file).cast::<u8>() as usize),
    }
}

/// Where its locks on the host are kept, if others than the sandbox may open it.
fn host_of(file: &File) -> Option<HostView<'_>> {
    file.path.as_ref()?.inode.host_locks()
}

/// The file's locks of bytes on the host, if others may open it: the host has those of regular files only.
fn records_host_of(file: &File) -> Option<HostView<'_>> {
    host_of(file).filter(|_| file.path.as_ref().is_some_and(|path| path.inode.kind() == S_IFREG))
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

    fn records(&self, file: usize) -> &[Lock] {
        self.files.get(&file).map_or(&[], |locks| &locks.records)
    }

    fn flocks(&self, file: usize) -> &[Lock] {
        self.files.get(&file).map_or(&[], |locks| &locks.flocks)
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

    /// The file's record locks with one more; `None` when it conflicts. `waits`: its process is going to wait then.
    fn prepare(&mut self, file: usize, wanted: &Lock, waits: bool) -> Result<Option<Vec<Lock>>> {
        if let Owner::Table(me) = wanted.owner {
            self.waits.remove(&me);
        }
        let held = self.records(file);
        let Some(holder) = records::conflict(held, wanted) else {
            if held.len() >= LOCKS_MAX {
                return Err(Errno::ENOLCK);
            }
            return records::with(held, wanted).map(Some);
        };
        if let (Owner::Table(me), Owner::Table(other), true) = (wanted.owner, holder.owner, waits) {
            if self.would_deadlock(me, other) {
                return Err(Errno::EDEADLK);
            }
            self.waits.insert(me, other);
        }
        Ok(None)
    }

    /// Replaces the file's record locks, and returns the old ones, which are dropped without the lock.
    fn commit(&mut self, file: usize, new: Vec<Lock>) -> Vec<Lock> {
        let old = core::mem::replace(&mut self.files.entry(file).or_default().records, new);
        self.prune(file);
        old
    }

    /// One attempt to lock, for a file of the sandbox's own.
    fn try_lock(&mut self, file: usize, wanted: &Lock, waits: bool) -> Result<Attempt> {
        let Some(new) = self.prepare(file, wanted, waits)? else { return Ok(Attempt::Held) };
        self.commit(file, new);
        Ok(Attempt::Done)
    }

    fn has_flock_conflict(&self, file: usize, wanted: &Lock) -> bool {
        self.flocks(file).iter().any(|held| held.conflicts(wanted))
    }

    /// Replaces what the owner has of `flock(2)` locks.
    fn set_flock(&mut self, file: usize, owner: Owner, new: Option<Lock>) {
        let flocks = &mut self.files.entry(file).or_default().flocks;
        flocks.retain(|held| held.owner != owner);
        flocks.extend(new);
        self.prune(file);
    }

    /// One attempt at a `flock(2)` lock, or its end; see [`flock`].
    fn try_flock(&mut self, file: usize, owner: Owner, wanted: Option<Lock>, keep: bool) -> Attempt {
        if wanted.is_some_and(|wanted| self.has_flock_conflict(file, &wanted)) {
            if !keep {
                self.set_flock(file, owner, None);
            }
            return Attempt::Held;
        }
        self.set_flock(file, owner, wanted);
        Attempt::Done
    }

    /// Removes the record locks that `which` chooses, and with `flock` those of that description. Takes no memory.
    fn remove(&mut self, file: usize, which: &dyn Fn(&Lock) -> bool, flock: Option<u64>) -> Removed {
        let mut removed = Removed::default();
        let Some(locks) = self.files.get_mut(&file) else { return removed };
        locks.records.retain(|held| {
            if !which(held) {
                return true;
            }
            let (start, end) = removed.span.unwrap_or((held.start, held.end));
            removed.span = Some((start.min(held.start), end.max(held.end)));
            false
        });
        let before = locks.flocks.len();
        locks.flocks.retain(|held| flock != Some(held.file));
        removed.is_any = removed.span.is_some() || before != locks.flocks.len();
        self.prune(file);
        removed
    }
}

/// The lock that keeps `wanted` from being taken (`F_GETLK`). One that is held on the host is no process's here: [`Owner::Outside`].
pub fn test(file: &File, wanted: &Lock) -> Result<Option<Lock>> {
    let key = inode_of(file);
    let own = with_table(|table| records::conflict(table.records(key), wanted));
    match records_host_of(file) {
        Some(view) if own.is_none() => view.locks.query(file, key, wanted),
        _ => Ok(own),
    }
}

/// The first lock that the owner of `wanted` has in its range (`F_OFD_GETLK` of `F_UNLCK`).
pub fn own(file: &File, wanted: &Lock) -> Option<Lock> {
    let key = inode_of(file);
    with_table(|table| records::own(table.records(key), wanted))
}

/// Attempts to lock until that is done, or cannot be; if `waits`, it sleeps between. `EAGAIN`, or interrupted.
fn until_had(
    key: usize,
    shown: Shown,
    waits: bool,
    mut attempt: impl FnMut() -> Result<Attempt>,
) -> Result<()> {
    let (mut blocked, mut waiter) = (None, None);
    loop {
        let seen = CHANGES.load(Ordering::SeqCst);
        let came = attempt()?;
        match came {
            Attempt::Done => return Ok(()),
            _ if !waits => return Err(Errno::EAGAIN),
            _ => _ = blocked.get_or_insert_with(|| Blocked::new(key, shown)),
        }
        if came == Attempt::HeldOutside {
            waiter.get_or_insert_with(Waiter::new).sleep()?;
            continue;
        }
        waiter = None;
        let has_changed = || (CHANGES.load(Ordering::SeqCst) != seen).then_some(());
        CHANGED.wait(has_changed)?;
    }
}

/// Takes a lock (`F_SETLK`; `F_SETLKW` if `waits`). `EAGAIN`, `EDEADLK`, or interrupted.
pub fn lock(file: &File, wanted: &Lock, waits: bool) -> Result<()> {
    file::keep(Kept::Locks, KEEPER);
    let key = inode_of(file);
    account::check(LOCK_BYTES).map_err(|_| Errno::ENOLCK)?;
    let node = Node::of(file);
    let host = records_host_of(file);
    let result = until_had(key, Shown { is_flock: false, lock: *wanted }, waits, || {
        let came = match &host {
            Some(view) => view.locks.lock_record(file, key, wanted, waits),
            None => with_table(|table| table.try_lock(key, wanted, waits)),
        };
        with_table(|table| table.note_node(key, &node));
        came
    });
    if let Owner::Table(me) = wanted.owner {
        with_table(|table| table.waits.remove(&me));
    }
    if result.is_ok() {
        // It may have taken the place of a stronger one.
        tell();
    }
    result
}

/// Gives a range back (`F_UNLCK`).
pub fn unlock(file: &File, owner: Owner, start: u64, end: u64) -> Result<()> {
    let key = inode_of(file);
    if !with_table(|table| table.files.contains_key(&key)) {
        return Ok(());
    }
    let result = match records_host_of(file) {
        Some(view) => view.locks.unlock_record(key, owner, start, end),
        None => with_table(|table| {
            let new = records::without(table.records(key), owner, start, end)?;
            table.commit(key, new);
            Ok(())
        }),
    };
    tell();
    result
}

/// `flock(2)`; `None` unlocks. `EAGAIN` when it would wait and `waits` is false.
pub fn flock(file: &File, kind: Option<bool>, waits: bool) -> Result<()> {
    file::keep(Kept::Locks, KEEPER);
    let key = inode_of(file);
    let owner = Owner::Description(file.id);
    let node = Node::of(file);
    let process = PidOf::of(&*caller::current());
    let wanted = kind.map(|exclusive| Lock { owner, process, file: file.id, start: 0, end: END, exclusive });
    if kind.is_some() {
        account::check(LOCK_BYTES)?;
    }
    let host = host_of(file);
    // Changing a lock gives the old one up first, as on Linux.
    let mut keep = false;
    let lock = wanted.unwrap_or(Lock { owner, process, file: file.id, start: 0, end: END, exclusive: false });
    let result = until_had(key, Shown { is_flock: true, lock }, waits, || {
        let came = match &host {
            Some(view) => view.lock_whole(file, key, wanted, keep),
            None => Ok(with_table(|table| table.try_flock(key, owner, wanted, keep))),
        };
        with_table(|table| table.note_node(key, &node));
        if !keep {
            keep = true;
            tell();
        }
        came
    });
    if let Some(view) = &host {
        view.locks.settle_directory(file);
    }
    result
}

fn release(file: &File, which: &dyn Fn(&Lock) -> bool, flock: Option<u64>) {
    // Whoever closes a file looks here, and mostly nobody locks any.
    if with_table(|table| table.files.is_empty()) {
        return;
    }
    let key = inode_of(file);
    if !with_table(|table| table.files.contains_key(&key)) {
        return;
    }
    let removed = match host_of(file) {
        Some(view) => view.locks.release(key, which, flock),
        None => with_table(|table| table.remove(key, which, flock)),
    };
    if removed.is_any {
        tell();
    }
    if let Some(view) = host_of(file) {
        view.locks.settle_directory(file);
    }
}

/// All record locks of an owner that reach into a range go, for which no memory is needed.
pub fn release_range(file: &File, owner: Owner, start: u64, end: u64) {
    release(file, &|held| held.owner == owner && held.overlaps(start, end), None);
}

/// The locks of open files go with these.
const KEEPER: &Keeper = &Keeper { file_gone: release_file, descriptor_closed: release_posix };

/// A process closed a descriptor of `file`: all its record locks on that file go, whatever descriptor they were made by.
fn release_posix(file: &File, table: u64) {
    release(file, &|held| held.owner == Owner::Table(table), None);
}

/// The description is gone, and its locks with it.
fn release_file(file: &File) {
    release(file, &|held| held.owner == Owner::Description(file.id), Some(file.id));
}

/// The locks of one file.
pub struct Listed {
    /// Where the next one is looked for.
    pub next: usize,
    pub node: Option<Node>,
    pub held: Vec<Shown>,
    /// The locks that tasks wait for.
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

    #[test]
    fn readers_share_and_circles_are_seen() {
        let mut table = Table::default();
        assert_eq!(table.try_lock(1, &lock(1, 0, 0, false), true), Ok(Attempt::Done));
        assert_eq!(table.try_lock(1, &lock(2, 0, 0, false), true), Ok(Attempt::Done));
        assert_eq!(table.try_lock(2, &lock(2, 0, 0, true), true), Ok(Attempt::Done));
        assert_eq!(table.try_lock(1, &lock(2, 0, 0, true), true), Ok(Attempt::Held));
        assert_eq!(table.try_lock(2, &lock(1, 0, 0, true), true), Err(Errno::EDEADLK));
    }

    #[test]
    fn what_is_removed_says_where_it_was() {
        let mut table = Table::default();
        for wanted in [lock(1, 5, 9, true), lock(1, 20, 29, false), lock(2, 25, 40, false)] {
            assert_eq!(table.try_lock(1, &wanted, false), Ok(Attempt::Done));
        }
        let removed = table.remove(1, &|held| held.owner == Owner::Table(1), None);
        assert_eq!((removed.is_any, removed.span), (true, Some((5, 29))));
        assert_eq!(records::next_gap(table.records(1), 5, 29), Some((5, 24)));
        assert!(!table.remove(1, &|held| held.owner == Owner::Table(1), Some(7)).is_any);
        assert!(table.remove(1, &|_| true, None).is_any && table.files.is_empty());
    }
}
