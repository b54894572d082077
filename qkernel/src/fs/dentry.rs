//! The dentry cache: names below directories, found and known to be absent.
//!
//! A directory's dentry owns its children; a child keeps its parent. Dentries nobody uses are dropped, longest unused
//! first, once there are too many: each may hold a host handle.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use hashbrown::HashMap;

use crate::fs::inode::Inode;
use crate::fs::inode::S_IFDIR;
use machine::sched::work;
use machine::sync::{Mutex, Rank, SpinLock};

/// Most cached names that aren't directories (absent ones included).
const LEAVES_MAX: usize = 24_576;
/// Most cached directories, each of which may hold a host handle.
const DIRS_MAX: usize = 4_096;
/// Candidates looked at for each new name once the cache is full.
const EVICTION_TRIES: usize = 8;

/// A name in a directory.
pub struct Dentry {
    in_parent: SpinLock<NameInParent>,
    /// `None`: known to be absent.
    inode: SpinLock<Option<Arc<dyn Inode>>>,
    children: SpinLock<HashMap<Box<[u8]>, Arc<Dentry>>>,
    /// Held while names below this directory are looked up at their file system, made, removed or moved.
    pub changes: Mutex<()>,
    mounts: AtomicU32,
    watches: AtomicU32,
    pinned: AtomicBool,
    used: AtomicBool,
    /// The file never had a name, and may get one.
    linkable: AtomicBool,
}

/// The name of a dentry, and the directory that it is in.
struct NameInParent {
    parent: Option<Arc<Dentry>>,
    name: Box<[u8]>,
    gone: bool,
}

impl Dentry {
    fn with(parent: Option<Arc<Dentry>>, name: &[u8], inode: Option<Arc<dyn Inode>>) -> Arc<Self> {
        Arc::new(Self {
            in_parent: SpinLock::new(Rank::Leaf, NameInParent { parent, name: name.into(), gone: false }),
            inode: SpinLock::new(Rank::Leaf, inode),
            children: SpinLock::new(Rank::Leaf, HashMap::new()),
            changes: Mutex::new(Rank::Directory, ()),
            mounts: AtomicU32::new(0),
            watches: AtomicU32::new(0),
            pinned: AtomicBool::new(false),
            used: AtomicBool::new(true),
            linkable: AtomicBool::new(false),
        })
    }

    /// The root of a file system.
    pub fn root(inode: Arc<dyn Inode>) -> Arc<Self> {
        Self::with(None, b"", Some(inode))
    }

    /// A name that no lookup finds: one of a directory that is never cached.
    pub fn detached(parent: &Arc<Dentry>, name: &[u8], inode: Arc<dyn Inode>) -> Arc<Self> {
        Self::with(Some(parent.clone()), name, Some(inode))
    }

    /// The place of a file without a name (`O_TMPFILE`), which may get one if `linkable`.
    pub fn unnamed(parent: &Arc<Dentry>, name: &[u8], inode: Arc<dyn Inode>, linkable: bool) -> Arc<Self> {
        let dentry = Self::detached(parent, name, inode);
        dentry.in_parent.lock().gone = true;
        dentry.linkable.store(linkable, Ordering::Relaxed);
        dentry
    }

    /// Whether the file may get its first name: [`Self::named`] ends that.
    pub fn is_linkable(&self) -> bool {
        self.linkable.load(Ordering::Relaxed)
    }

    /// The file has got a name.
    pub fn named(&self) {
        self.linkable.store(false, Ordering::Relaxed);
    }

    /// The inode that the name refers to; `None` when the name is known to be absent.
    pub fn inode(&self) -> Option<Arc<dyn Inode>> {
        self.inode.lock().clone()
    }

    /// The directory it is in; `None` for the root of a file system.
    pub fn parent(&self) -> Option<Arc<Dentry>> {
        self.in_parent.lock().parent.clone()
    }

    /// Its name; empty for the root of a file system.
    pub fn name(&self) -> Vec<u8> {
        self.in_parent.lock().name.to_vec()
    }

    /// Whether the name was removed (or the file never had one).
    pub fn is_gone(&self) -> bool {
        self.in_parent.lock().gone
    }

    /// Whether it is `ancestor`, or lies below it. The caller may sleep.
    pub fn is_below(self: &Arc<Self>, ancestor: &Arc<Dentry>) -> bool {
        let mut at = self.clone();
        loop {
            work::count(1);
            if Arc::ptr_eq(&at, ancestor) {
                return true;
            }
            let Some(parent) = at.parent() else { return false };
            at = parent;
        }
    }

    /// A number that all names of its file system have in common, while they are in use. The caller may sleep.
    pub fn tree(self: &Arc<Self>) -> usize {
        let mut at = self.clone();
        while let Some(parent) = at.parent() {
            work::count(1);
            at = parent;
        }
        Arc::as_ptr(&at) as usize
    }

    /// Whether something is mounted on it (in some mount).
    pub fn is_mountpoint(&self) -> bool {
        self.mounts.load(Ordering::Acquire) != 0
    }

    /// Counts a mount on it.
    pub fn add_mount(&self) {
        self.mounts.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a mount less.
    pub fn remove_mount(&self) {
        self.mounts.fetch_sub(1, Ordering::AcqRel);
    }

    /// Keeps the dentry in the cache, whatever its file system says of the name.
    pub fn pin(&self) {
        self.pinned.store(true, Ordering::Release);
    }

    /// Whether the cached entry is valid without asking the file system.
    pub fn is_fixed(&self) -> bool {
        self.is_mountpoint() || self.pinned.load(Ordering::Acquire)
    }

    /// The cached child of this name.
    pub fn cached(&self, name: &[u8]) -> Option<Arc<Dentry>> {
        let child = self.children.lock().get(name).cloned()?;
        child.used.store(true, Ordering::Relaxed);
        Some(child)
    }

    /// Whether lookups find this entry, as long as it is cached: it is a root or its directory knows it.
    pub fn is_found_again(self: &Arc<Self>) -> bool {
        let (parent, name) = {
            let at = self.in_parent.lock();
            (at.parent.clone(), at.name.clone())
        };
        let Some(parent) = parent else { return true };
        let known = parent.children.lock().get(&name).cloned();
        known.is_some_and(|known| Arc::ptr_eq(&known, self))
    }

    /// Makes `name` known, replacing the cached entry of that name. The caller holds [`Self::changes`].
    pub fn insert(self: &Arc<Self>, name: &[u8], inode: Option<Arc<dyn Inode>>) -> Arc<Dentry> {
        let is_dir = inode.as_ref().is_some_and(|inode| inode.kind() == S_IFDIR);
        let child = Self::with(Some(self.clone()), name, inode);
        let old =
            if self.is_gone() { None } else { self.children.lock().insert(Box::from(name), child.clone()) };
        if let Some(old) = old {
            old.in_parent.lock().gone = true;
        }
        remember(&child, is_dir);
        child
    }

    /// Forgets the child: its name was removed. Users keep it as a deleted one. The caller holds [`Self::changes`].
    pub fn remove(&self, child: &Arc<Dentry>) {
        let (name, kept) = {
            let mut at = child.in_parent.lock();
            at.gone = true;
            (at.name.clone(), child.clone())
        };
        let removed = {
            let mut children = self.children.lock();
            match children.get(&name) {
                Some(found) if Arc::ptr_eq(found, child) => children.remove(&name),
                _ => None,
            }
        };
        drop((removed, kept));
        // The cached names below a removed directory are of no use any more.
        let below = core::mem::take(&mut *child.children.lock());
        drop(below);
    }

    /// Drops the cached entry of `name` without calling it deleted (the host may have changed it).
    pub fn forget(&self, name: &[u8]) {
        let removed = self.children.lock().remove(name);
        drop(removed);
    }

    /// Moves `child` of this directory to `new_dir` as `new_name`. The caller holds [`Self::changes`] of both.
    pub fn move_child(self: &Arc<Self>, child: &Arc<Dentry>, new_dir: &Arc<Dentry>, new_name: &[u8]) {
        let old_name = child.in_parent.lock().name.clone();
        let taken = self.children.lock().remove(&old_name);
        let old_parent = {
            let mut at = child.in_parent.lock();
            at.name = Box::from(new_name);
            at.parent.replace(new_dir.clone())
        };
        let replaced = new_dir.children.lock().insert(Box::from(new_name), child.clone());
        if let Some(replaced) = replaced.filter(|replaced| !Arc::ptr_eq(replaced, child)) {
            replaced.in_parent.lock().gone = true;
        }
        drop((taken, old_parent));
    }

    /// Exchanges two children of two directories. The caller holds [`Self::changes`] of both.
    pub fn exchange(a_dir: &Arc<Dentry>, a: &Arc<Dentry>, b_dir: &Arc<Dentry>, b: &Arc<Dentry>) {
        let a_name = a.in_parent.lock().name.clone();
        let b_name = b.in_parent.lock().name.clone();
        {
            let mut at = a.in_parent.lock();
            at.name = b_name.clone();
            at.parent = Some(b_dir.clone());
        }
        {
            let mut at = b.in_parent.lock();
            at.name = a_name.clone();
            at.parent = Some(a_dir.clone());
        }
        // One after the other: both may be the same directory.
        let old_a = a_dir.children.lock().insert(a_name, b.clone());
        let old_b = b_dir.children.lock().insert(b_name, a.clone());
        drop((old_a, old_b));
    }

    /// How many users it has besides the cache; `held` references are the caller's own.
    pub fn is_used_beyond(self: &Arc<Self>, held: usize) -> bool {
        Arc::strong_count(self) > held + 1
    }
}

/// A watch's hold on a name: it keeps the dentry, which counts it as long as it lives.
pub struct Watched(Arc<Dentry>);

impl Watched {
    pub fn new(dentry: &Arc<Dentry>) -> Self {
        dentry.watches.fetch_add(1, Ordering::Relaxed);
        Self(dentry.clone())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Dentry {
    /// Ancestors that only this dentry kept go one by one: a path may be deeper than the stack.
    fn drop(&mut self) {
        let mut next = self.in_parent.lock().parent.take();
        while let Some(parent) = next.and_then(Arc::into_inner) {
            next = parent.in_parent.lock().parent.take();
        }
    }
}

struct Queue {
    dentries: SpinLock<VecDeque<Weak<Dentry>>>,
    most: usize,
}

static LEAVES: Queue = Queue { dentries: SpinLock::new(Rank::Leaf, VecDeque::new()), most: LEAVES_MAX };
static DIRS: Queue = Queue { dentries: SpinLock::new(Rank::Leaf, VecDeque::new()), most: DIRS_MAX };

/// Puts a new dentry under the cache's limit.
fn remember(dentry: &Arc<Dentry>, is_dir: bool) {
    let queue = if is_dir { &DIRS } else { &LEAVES };
    let full = {
        let mut dentries = queue.dentries.lock();
        dentries.push_back(Arc::downgrade(dentry));
        dentries.len() > queue.most
    };
    if full {
        queue.shrink(EVICTION_TRIES, false);
    }
}

/// Drops all entries that nobody uses, and handles of watched directories that can be opened again; for when the host has
/// no more handles.
pub fn shrink() {
    for queue in [&LEAVES, &DIRS] {
        let len = queue.dentries.lock().len();
        queue.shrink(len, true);
    }
}

impl Queue {
    fn shrink(&self, tries: usize, even_used: bool) {
        for _ in 0..tries {
            if tries > EVICTION_TRIES {
                work::count(1);
            }
            let Some(candidate) = self.dentries.lock().pop_front() else { return };
            let Some(dentry) = candidate.upgrade() else { continue };
            let recently = dentry.used.swap(false, Ordering::Relaxed) && !even_used;
            let stays = recently || !evict(&dentry);
            if stays && even_used && dentry.watches.load(Ordering::Relaxed) != 0 {
                // Watched directories may be many, and no descriptor is counted for them.
                if let Some(inode) = dentry.inode() {
                    inode.spare_handle();
                }
            }
            if stays {
                self.dentries.lock().push_back(candidate);
            }
        }
    }
}

/// Forgets everything below the root of a file system that nobody sees any more. It refers to its root, which would stay as
/// long as the cache does.
pub fn forget_tree(root: &Arc<Dentry>) {
    let mut left = alloc::vec![root.clone()];
    while let Some(dentry) = left.pop() {
        work::count(1);
        let children = core::mem::take(&mut *dentry.children.lock());
        left.extend(children.into_values());
    }
}

/// Takes a dentry nobody uses out of the cache.
fn evict(dentry: &Arc<Dentry>) -> bool {
    let (parent, name) = {
        let at = dentry.in_parent.lock();
        (at.parent.clone(), at.name.clone())
    };
    let Some(parent) = parent else { return false };
    let removed = {
        let mut children = parent.children.lock();
        match children.get(&name) {
            // New references are made under this lock only, so the count stays while it says that there is no user: one
            // reference is the directory's, one ours.
            Some(found) if Arc::ptr_eq(found, dentry) => {
                if Arc::strong_count(dentry) > 2 || dentry.is_fixed() {
                    return false;
                }
                children.remove(&name)
            }
            // Detached already; it goes with its last user.
            _ => None,
        }
    };
    drop(removed);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::file::{FileOps, OpenFlags};
    use crate::fs::tmpfs;
    use core::any::Any;
    use machine::errno::{Errno, Result};

    /// A directory that counts how often it was asked for its handle.
    #[derive(Default)]
    struct Asked(AtomicU32);

    impl Inode for Asked {
        fn stat(&self) -> Result<crate::fs::inode::Stat> {
            Err(Errno::ENOENT)
        }
        fn kind(&self) -> u32 {
            S_IFDIR
        }
        fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Box<dyn FileOps>> {
            Err(Errno::ENOENT)
        }
        fn statfs(&self) -> Result<abi::hostcall::HostStatFs> {
            Err(Errno::ENOENT)
        }
        fn spare_handle(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    #[test]
    fn only_watched_directories_that_stay_are_asked_for_their_handles() {
        let root = Dentry::root(tmpfs::new(0o755));
        let asked = Arc::new(Asked::default());
        let dir = root.insert(b"a", Some(asked.clone()));
        let queue = Queue { dentries: SpinLock::new(Rank::Leaf, [Arc::downgrade(&dir)].into()), most: 1 };
        let shrink = |even_used| {
            queue.shrink(1, even_used);
            (asked.0.load(Ordering::Relaxed), root.cached(b"a").is_some())
        };
        assert_eq!(shrink(true), (0, true), "one that is used");
        let (watch, other) = (Watched::new(&dir), Watched::new(&dir));
        drop(dir);
        assert_eq!(shrink(false), (0, true), "while there are handles");
        assert_eq!(shrink(true), (1, true));
        drop(watch);
        assert_eq!(shrink(true), (2, true));
        drop(other);
        assert_eq!(shrink(true), (2, false), "one that nobody watches any more");
    }
}
