//! Mounts: which file system is seen where.

mod limits;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::fs::changes::Changes;
use crate::fs::dentry::{self, Dentry};
use crate::fs::inode::Inode;
use crate::fs::notify;
use crate::fs::path::Path;
pub use limits::Limits;
use machine::errno::{Errno, Result};
use machine::mm::account::Charge;
use machine::sched::{self, Urgent, work};
use machine::sync::{Mutex, MutexGuard, Once, Rank, SpinLock};

/// The place that a mount covers: a name in another mount.
type Mountpoint = (Arc<Mount>, Arc<Dentry>);

static NEXT_MOUNT: AtomicU64 = AtomicU64::new(1);

/// A file system (or a part of it) at a place of the tree.
pub struct Mount {
    /// The mount's number, as in `/proc/PID/mountinfo`.
    pub id: u64,
    /// Type name (`overlay`, `tmpfs`, `proc`, …) and source, for `/proc/PID/mounts`.
    pub kind: Box<[u8]>,
    pub source: Box<[u8]>,
    pub root: Arc<Dentry>,
    pub root_inode: Arc<dyn Inode>,
    /// The place it covers; `None` for the root of the tree, and once it is unmounted.
    at: SpinLock<Option<Mountpoint>>,
    limits: AtomicU32,
    /// Files that are open for writing by it.
    writers: AtomicU32,
    /// How often a path led into it.
    entries: AtomicU64,
    /// [`Self::entries`], and one, when it was last marked to go if nobody uses it; 0: it was not.
    expires: AtomicU64,
    /// Of the root of a tree: what changes in the tree, once somebody wants to know.
    changes: Once<Arc<Changes>>,
    /// Of the root of a tree: how many are in the tree beside it.
    members: AtomicU32,
    /// [`Dentry::tree`] of its root.
    names: usize,
    /// Those that programs make are charged.
    _charge: Charge,
}

/// Most mounts in a tree (`/proc/sys/fs/mount-max`).
pub const MOUNTS_MAX: u32 = 10_000;
/// Bytes of kernel memory that a mount takes, its places in the tables and its names' headers included.
const MOUNT_BYTES: usize = 640;

/// Mounts by the place they cover: mount id and dentry address (which the mount keeps alive).
static TABLE: SpinLock<BTreeMap<(u64, usize), Arc<Mount>>> = SpinLock::new(Rank::Mounts, BTreeMap::new());
/// The root of the tree and all mounts in the order they were made.
static ALL: SpinLock<Vec<Arc<Mount>>> = SpinLock::new(Rank::Mounts, Vec::new());
/// Held while a mount that is in the tree comes, goes, moves or changes, so that none comes to be in itself.
static MOVES: Mutex<()> = Mutex::new(Rank::MountMoves, ());

/// Takes [`MOVES`], for which programs of all containers wait.
fn moves() -> (MutexGuard<'static, ()>, Urgent) {
    (MOVES.lock(), sched::be_urgent())
}

fn key(mount: &Mount, dentry: &Arc<Dentry>) -> (u64, usize) {
    (mount.id, Arc::as_ptr(dentry) as usize)
}

impl Mount {
    /// A mount of `root` that is nowhere yet.
    pub fn new(
        root: Arc<Dentry>,
        root_inode: Arc<dyn Inode>,
        kind: &[u8],
        source: &[u8],
        limits: Limits,
    ) -> Arc<Self> {
        Self::charged(root, root_inode, kind, source, limits, Charge::default())
    }

    /// Makes a mount of `root` on behalf of a program. `ENOSPC`: no memory is left for what outlives processes.
    pub fn made(
        root: Arc<Dentry>,
        root_inode: Arc<dyn Inode>,
        kind: &[u8],
        source: &[u8],
        limits: Limits,
    ) -> Result<Arc<Self>> {
        let charge = Charge::lasting(MOUNT_BYTES + kind.len() + source.len())?;
        Ok(Self::charged(root, root_inode, kind, source, limits, charge))
    }

    fn charged(
        root: Arc<Dentry>,
        root_inode: Arc<dyn Inode>,
        kind: &[u8],
        source: &[u8],
        limits: Limits,
        charge: Charge,
    ) -> Arc<Self> {
        let names = root.tree();
        Arc::new(Self {
            id: NEXT_MOUNT.fetch_add(1, Ordering::Relaxed),
            kind: kind.into(),
            source: source.into(),
            root,
            root_inode,
            at: SpinLock::new(Rank::Leaf, None),
            limits: AtomicU32::new(limits.bits()),
            writers: AtomicU32::new(0),
            entries: AtomicU64::new(0),
            expires: AtomicU64::new(0),
            changes: Once::new(),
            members: AtomicU32::new(0),
            names,
            _charge: charge,
        })
    }

    /// A mount of a whole new file system.
    pub fn of(inode: Arc<dyn Inode>, kind: &[u8], source: &[u8], limits: Limits) -> Arc<Self> {
        Self::new(Dentry::root(inode.clone()), inode, kind, source, limits)
    }

    /// Its root.
    pub fn path(self: &Arc<Self>) -> Path {
        Path { mount: self.clone(), dentry: self.root.clone(), inode: self.root_inode.clone() }
    }

    /// The mountpoint that it covers.
    pub fn mountpoint(&self) -> Option<Mountpoint> {
        self.at.lock().clone()
    }

    /// The operations that it does not allow.
    pub fn limits(&self) -> Limits {
        Limits::from_bits_truncate(self.limits.load(Ordering::Relaxed))
    }

    /// Changes [`Self::limits`].
    pub fn set_limits(self: &Arc<Self>, limits: Limits) {
        self.limits.store(limits.bits(), Ordering::SeqCst);
        self.tell_change();
    }

    /// Changes [`Self::limits`] on behalf of a program. `EBUSY`: it is to be read-only, and files are open for writing.
    pub fn change_limits(self: &Arc<Self>, limits: Limits) -> Result<()> {
        // One change at a time, so that none takes back another.
        let _moves = moves();
        let before = self.limits();
        let becomes_read_only = limits.contains(Limits::READ_ONLY) && !before.contains(Limits::READ_ONLY);
        let is_written = || becomes_read_only && self.writers.load(Ordering::SeqCst) > 0;
        if is_written() {
            return Err(Errno::EBUSY);
        }
        // In this order: who opens a file for writing counts it before looking whether that is allowed.
        self.set_limits(limits);
        if is_written() {
            self.set_limits(before);
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    /// A file was opened for writing by it.
    pub fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::SeqCst);
    }

    /// Such a file was closed.
    pub fn remove_writer(&self) {
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Takes it away if nobody has used it since the last time this was asked, which is the last path that led here:
    /// `EAGAIN` the first time.
    pub fn expire(self: &Arc<Self>) -> Result<()> {
        let moves = moves();
        if self.is_busy() {
            return Err(Errno::EBUSY);
        }
        drop(moves);
        let now = self.entries.load(Ordering::Relaxed);
        if self.expires.swap(now + 1, Ordering::Relaxed) != now {
            return Err(Errno::EAGAIN);
        }
        self.detach(false)
    }

    /// Whether something is mounted below it, or others than the caller use it, who has one path to it.
    fn is_busy(self: &Arc<Self>) -> bool {
        // References: the table's, the list's, and the one of the path the caller found it by.
        self.is_covered() || Arc::strong_count(self) > 3
    }

    /// Whether something is mounted in it.
    fn is_covered(self: &Arc<Self>) -> bool {
        let is_in =
            |other: &Arc<Self>| other.at.lock().as_ref().is_some_and(|(mount, _)| Arc::ptr_eq(mount, self));
        ALL.lock().iter().any(is_in)
    }

    /// The root of the tree that it is in.
    fn top(self: &Arc<Self>) -> Arc<Self> {
        let mut top = self.clone();
        while let Some((parent, _)) = top.mountpoint() {
            work::count(1);
            top = parent;
        }
        top
    }

    /// The changes of the tree that it is in.
    pub fn changes(self: &Arc<Self>) -> Arc<Changes> {
        self.top().changes.call_once(Arc::default).clone()
    }

    /// A mount of its tree came, went, or is another.
    fn tell_change(self: &Arc<Self>) {
        if let Some(changes) = self.top().changes.get() {
            changes.tell();
        }
    }

    /// Whether changes answer `EROFS`.
    pub fn is_read_only(&self) -> bool {
        self.limits().contains(Limits::READ_ONLY)
    }

    /// `EROFS` when changes aren't permitted.
    pub fn check_writable(&self) -> Result<()> {
        if self.is_read_only() { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Makes it the root of the tree.
    pub fn become_root(self: &Arc<Self>) {
        ALL.lock().push(self.clone());
    }

    /// Whether both are in one tree: that of the same container.
    pub fn shares_tree(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(&self.top(), &other.top())
    }

    /// Mounts it over what is seen at `place` in the tree of `root`. `EINVAL`: the place is not in the tree any more, `ENOENT`: its
    /// name is gone, `ENOSPC`: the tree has [`MOUNTS_MAX`].
    pub fn mount_over(self: &Arc<Self>, place: &Path, root: &Arc<Mount>) -> Result<()> {
        let _moves = moves();
        let place = enter(place.clone());
        holding_name(&place.dentry, || {
            place.check_mountable(root, 1)?;
            self.attach(&place);
            Ok(())
        })
    }

    /// Mounts what is seen at `from` over `place` as well, both in the tree of `root`; with all that is mounted in it if
    /// `with_mounts`. Errors as of [`Self::mount_over`].
    pub fn bind(from: &Path, place: &Path, with_mounts: bool, root: &Arc<Mount>) -> Result<()> {
        let _moves = moves();
        if !from.mount.shares_tree(root) {
            return Err(Errno::EINVAL);
        }
        let place = enter(place.clone());
        let is_in = |dentry: &Arc<Dentry>| dentry.is_below(&from.dentry);
        let inner = if with_mounts { from.mount.inner(is_in) } else { Vec::new() };
        // Before copies are made for nothing. No mount comes meanwhile.
        place.check_mountable(root, 1 + inner.len())?;
        let first = from.mount.copy(from.dentry.clone(), from.inode.clone())?;
        // Mounts that are copied, by id, with their copies; the copies, parents before children, with their places.
        let mut copies = BTreeMap::from([(from.mount.id, first.clone())]);
        let mut places = alloc::vec![(first, (place.mount.clone(), place.dentry.clone()))];
        for (mount, (parent, dentry)) in inner {
            let Some(parent) = copies.get(&parent.id).cloned() else { continue };
            let copy = mount.copy(mount.root.clone(), mount.root_inode.clone())?;
            copies.insert(mount.id, copy.clone());
            places.push((copy, (parent, dentry)));
            work::count_or_end(1)?;
        }
        holding_name(&place.dentry, || {
            place.check_mountable(root, places.len())?;
            attach_all(&place.mount, places);
            Ok(())
        })
    }

    /// All that is mounted in it and in those, parents before children, with their mountpoints. `is_in`: which of its own names count.
    fn inner(self: &Arc<Self>, is_in: impl Fn(&Arc<Dentry>) -> bool) -> Vec<(Arc<Self>, Mountpoint)> {
        let mut ids = BTreeSet::from([self.id]);
        let mut inner = Vec::new();
        for mount in list() {
            work::count(1);
            let Some(at) = mount.mountpoint().filter(|(parent, _)| ids.contains(&parent.id)) else {
                continue;
            };
            if at.0.id != self.id || is_in(&at.1) {
                ids.insert(mount.id);
                inner.push((mount, at));
            }
        }
        inner
    }

    /// Another mount of something in the same file system.
    fn copy(&self, root: Arc<Dentry>, root_inode: Arc<dyn Inode>) -> Result<Arc<Self>> {
        Self::made(root, root_inode, &self.kind, &self.source, self.limits())
    }

    /// Mounts it over `place`.
    pub fn attach(self: &Arc<Self>, place: &Path) {
        let own = (self.clone(), (place.mount.clone(), place.dentry.clone()));
        attach_all(&place.mount, alloc::vec![own]);
    }

    /// It is seen at a place, as far as paths go.
    fn take_mountpoint(self: &Arc<Self>, place: Mountpoint) {
        *self.at.lock() = Some(place.clone());
        place.1.add_mount();
        TABLE.lock().insert(key(&place.0, &place.1), self.clone());
    }

    /// The opposite of [`Self::take_mountpoint`]; result: the mountpoint.
    fn leave_mountpoint(&self) -> Option<Mountpoint> {
        let place = self.mountpoint()?;
        let removed = TABLE.lock().remove(&key(&place.0, &place.1));
        place.1.remove_mount();
        let held = self.at.lock().take();
        drop((removed, held));
        Some(place)
    }

    /// Takes it away; `EINVAL` for the root of the tree. Unless `lazy`, `EBUSY` while something is mounted in it or it is used;
    /// else what is mounted in it goes as well, each on its own.
    pub fn detach(self: &Arc<Self>, lazy: bool) -> Result<()> {
        let moves = moves();
        let Some((parent, _)) = self.mountpoint() else { return Err(Errno::EINVAL) };
        if !lazy && self.is_busy() {
            return Err(Errno::EBUSY);
        }
        let top = parent.top();
        let removed = remove_all(self);
        top.members.fetch_sub(u32::try_from(removed.len()).unwrap_or(0), Ordering::Relaxed);
        parent.tell_change();
        drop(moves);
        drop_one_by_one(removed, |_| ());
        Ok(())
    }

    /// Mounts it over `place` instead of where it is, with all that is mounted in it. `EINVAL` for the root of the tree or where either
    /// is not in that of `root` any more, `ELOOP` for a place in itself, `ENOENT`: the place's name is gone.
    pub fn move_to(self: &Arc<Self>, place: &Path, root: &Arc<Mount>) -> Result<()> {
        let _moves = moves();
        let Some((parent, dentry)) = self.mountpoint() else { return Err(Errno::EINVAL) };
        if !self.shares_tree(root) {
            return Err(Errno::EINVAL);
        }
        // Others may have mounted there since it was looked up.
        let place = &enter(place.clone());
        if place.mount.is_in(self) {
            return Err(Errno::ELOOP);
        }
        holding_name(&place.dentry, || {
            place.check_mountable(root, 0)?;
            self.leave_mountpoint();
            self.take_mountpoint((place.mount.clone(), place.dentry.clone()));
            Ok(())
        })?;
        // Behind the mount that they are in now.
        let moved = self.tree();
        let ids = ids_of(&moved);
        let mut all = ALL.lock();
        all.retain(|mount| !ids.contains(&mount.id));
        all.extend(moved);
        drop(all);
        drop(dentry);
        parent.tell_change();
        place.mount.tell_change();
        Ok(())
    }

    /// It and all that is mounted in it, parents before children.
    fn tree(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let inner = self.inner(|_| true).into_iter().map(|(mount, _)| mount);
        core::iter::once(self.clone()).chain(inner).collect()
    }

    /// Whether it is `root`, or mounted in it.
    fn is_in(self: &Arc<Self>, root: &Arc<Self>) -> bool {
        let mut at = Some(self.clone());
        while let Some(mount) = at {
            work::count(1);
            if Arc::ptr_eq(&mount, root) {
                return true;
            }
            at = mount.mountpoint().map(|(parent, _)| parent);
        }
        false
    }
}

impl Drop for Mount {
    /// Who watches files of a file system is told when its last mount goes.
    fn drop(&mut self) {
        if notify::is_any() {
            let is_last = !ALL.lock().iter().any(|other| other.names == self.names);
            if is_last {
                notify::unmounted(self.names);
            }
        }
    }
}

impl Path {
    /// Whether programs may mount so many more at this place, which has to be in the tree of `root`.
    fn check_mountable(&self, root: &Arc<Mount>, count: usize) -> Result<()> {
        if !self.mount.shares_tree(root) {
            return Err(Errno::EINVAL);
        }
        if self.dentry.is_gone() {
            return Err(Errno::ENOENT);
        }
        let members = u32::try_from(count)
            .unwrap_or(u32::MAX)
            .saturating_add(root.top().members.load(Ordering::Relaxed));
        if members > MOUNTS_MAX { Err(Errno::ENOSPC) } else { Ok(()) }
    }
}

/// The path that is seen at `path`: the root of the mount that covers it, if there is one.
pub fn enter(mut path: Path) -> Path {
    while path.dentry.is_mountpoint() {
        // Mounts may lie on top of each other.
        work::count(1);
        let Some(mount) = TABLE.lock().get(&key(&path.mount, &path.dentry)).cloned() else { break };
        mount.entries.fetch_add(1, Ordering::Relaxed);
        path = mount.path();
    }
    path
}

/// The place that `path` covers, if it is the root of a mount (through several layers of mounts).
pub fn leave(mut path: Path) -> Option<Path> {
    while path.is_mount_root() {
        work::count(1);
        let (mount, dentry) = path.mount.mountpoint()?;
        let inode = dentry.inode()?;
        path = Path { mount, dentry, inode };
    }
    Some(path)
}

/// Takes away the root of a tree that no program sees any more, and everything that is mounted in it.
pub fn remove_tree(root: &Arc<Mount>) {
    let moves = moves();
    let removed = remove_all(root);
    drop(moves);
    drop_one_by_one(removed, |mount| dentry::forget_tree(&mount.root));
}

/// Drops mounts, children before parents, after `last` was done with each.
fn drop_one_by_one(mut mounts: Vec<Arc<Mount>>, last: impl Fn(&Arc<Mount>)) {
    while let Some(mount) = mounts.pop() {
        last(&mount);
        drop(mount);
        // Who watches files has all mounts looked through.
        work::count(32);
    }
}

/// Takes away a mount and all that is mounted in it; result: those. Parents go first, so that nothing that was covered comes into
/// sight. The caller holds [`MOVES`].
fn remove_all(root: &Arc<Mount>) -> Vec<Arc<Mount>> {
    let removed = root.tree();
    removed.iter().for_each(|mount| drop(mount.leave_mountpoint()));
    let ids = ids_of(&removed);
    ALL.lock().retain(|mount| !ids.contains(&mount.id));
    removed
}

fn ids_of(mounts: &[Arc<Mount>]) -> BTreeSet<u64> {
    mounts.iter().map(|mount| mount.id).collect()
}

/// Mounts the first one in a mount that is there, and the others in those before them. They come into sight together.
fn attach_all(in_mount: &Arc<Mount>, mounts: Vec<(Arc<Mount>, Mountpoint)>) {
    let top = in_mount.top();
    top.members.fetch_add(u32::try_from(mounts.len()).unwrap_or(0), Ordering::Relaxed);
    mounts.iter().rev().for_each(|(mount, place)| mount.take_mountpoint(place.clone()));
    ALL.lock().extend(mounts.into_iter().map(|(mount, _)| mount));
    if let Some(changes) = top.changes.get() {
        changes.tell();
    }
}

/// Does something while the name stays what it is in its directory.
fn holding_name<T>(dentry: &Arc<Dentry>, action: impl FnOnce() -> Result<T>) -> Result<T> {
    loop {
        let Some(parent) = dentry.parent() else { return action() };
        let changes = parent.changes.lock();
        if dentry.parent().is_some_and(|now| Arc::ptr_eq(&now, &parent)) {
            let result = action();
            drop(changes);
            return result;
        }
    }
}

/// All mounts, parents before children.
pub fn list() -> Vec<Arc<Mount>> {
    ALL.lock().clone()
}

/// Up to `most` mounts behind the one with the id `after` (0: from the first on), in the order in which parents come before children.
/// If it has gone meanwhile those are told that were made after it.
pub fn list_after(after: u64, most: usize) -> Vec<Arc<Mount>> {
    let all = ALL.lock();
    let known = if after == 0 { None } else { all.iter().position(|mount| mount.id == after) };
    let begin = known.map_or(0, |at| at + 1);
    let is_next = |mount: &&Arc<Mount>| known.is_some() || mount.id > after;
    all.iter().skip(begin).filter(is_next).take(most).cloned().collect()
}
