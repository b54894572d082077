//! Mounts: which file system is seen where.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bitflags::bitflags;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::fs::dentry::{self, Dentry};
use crate::fs::inode::Inode;
use crate::fs::notify;
use crate::fs::path::Path;
use machine::errno::{Errno, Result};
use machine::sync::{Rank, SpinLock};

bitflags! {
    /// Operations that a mount does not allow; numbers as in boot records.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Limits: u32 {
        const READ_ONLY = abi::boot::MOUNT_READ_ONLY;
        const NO_SUID = abi::boot::MOUNT_NO_SUID;
        const NO_DEV = abi::boot::MOUNT_NO_DEV;
        const NO_EXEC = abi::boot::MOUNT_NO_EXEC;
    }
}

impl Limits {
    /// Each with its name in `/proc/PID/mounts` and its bit of `f_flags` (`ST_RDONLY`, `ST_NOSUID`, …).
    const SHOWN: [(Self, &'static [u8], u64); 4] = [
        (Self::READ_ONLY, b"ro", 1),
        (Self::NO_SUID, b"nosuid", 2),
        (Self::NO_DEV, b"nodev", 4),
        (Self::NO_EXEC, b"noexec", 8),
    ];

    /// The options as `/proc/PID/mounts` writes them, with those that every mount has.
    pub fn names(self) -> Vec<u8> {
        let mut text = if self.contains(Self::READ_ONLY) { Vec::new() } else { b"rw,".to_vec() };
        for (_, name, _) in Self::SHOWN.into_iter().filter(|(limit, ..)| self.contains(*limit)) {
            text.extend_from_slice(name);
            text.push(b',');
        }
        text.extend_from_slice(b"relatime");
        text
    }

    /// The flags as `statfs(2)` tells them, with those that every mount has.
    pub fn statfs_flags(self) -> u64 {
        const ST_VALID: u64 = 0x20;
        const ST_RELATIME: u64 = 0x1000;
        let shown = Self::SHOWN.into_iter().filter(|(limit, ..)| self.contains(*limit));
        shown.fold(ST_VALID | ST_RELATIME, |flags, (_, _, bit)| flags | bit)
    }
}

static NEXT_MOUNT: AtomicU64 = AtomicU64::new(1);

/// A file system (or a part of it) at a place of the tree.
pub struct Mount {
    /// As in `/proc/PID/mountinfo`.
    pub id: u64,
    /// Type name (`overlay`, `tmpfs`, `proc`, …) and source, for `/proc/PID/mounts`.
    pub kind: Box<[u8]>,
    pub source: Box<[u8]>,
    pub root: Arc<Dentry>,
    pub root_inode: Arc<dyn Inode>,
    /// The place it covers; `None` for the root of the tree, and once it is unmounted.
    at: SpinLock<Option<(Arc<Mount>, Arc<Dentry>)>>,
    limits: AtomicU32,
}

/// Mounts by the place they cover: mount id and dentry address (which the mount keeps alive).
static TABLE: SpinLock<BTreeMap<(u64, usize), Arc<Mount>>> = SpinLock::new(Rank::Mounts, BTreeMap::new());
/// The root of the tree and all mounts in the order they were made.
static ALL: SpinLock<Vec<Arc<Mount>>> = SpinLock::new(Rank::Mounts, Vec::new());

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
        Arc::new(Self {
            id: NEXT_MOUNT.fetch_add(1, Ordering::Relaxed),
            kind: kind.into(),
            source: source.into(),
            root,
            root_inode,
            at: SpinLock::new(Rank::Leaf, None),
            limits: AtomicU32::new(limits.bits()),
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

    /// The place it covers.
    pub fn place(&self) -> Option<(Arc<Mount>, Arc<Dentry>)> {
        self.at.lock().clone()
    }

    /// The operations that it does not allow.
    pub fn limits(&self) -> Limits {
        Limits::from_bits_truncate(self.limits.load(Ordering::Relaxed))
    }

    /// Changes [`Self::limits`].
    pub fn set_limits(&self, limits: Limits) {
        self.limits.store(limits.bits(), Ordering::Relaxed);
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

    /// Mounts it over `place`.
    pub fn attach(self: &Arc<Self>, place: &Path) {
        *self.at.lock() = Some((place.mount.clone(), place.dentry.clone()));
        place.dentry.add_mount();
        TABLE.lock().insert(key(&place.mount, &place.dentry), self.clone());
        ALL.lock().push(self.clone());
    }

    /// Takes it away; `EINVAL` for the root of the tree, `EBUSY` while something is mounted below it or (unless
    /// `lazy`) it is used.
    pub fn detach(self: &Arc<Self>, lazy: bool) -> Result<()> {
        let Some((parent, dentry)) = self.place() else { return Err(Errno::EINVAL) };
        let covered = {
            let all = ALL.lock();
            all.iter().any(|other| other.place().is_some_and(|(mount, _)| Arc::ptr_eq(&mount, self)))
        };
        // References: the table's, the list's, and the one of the path the caller found it by.
        if covered || (!lazy && Arc::strong_count(self) > 3) {
            return Err(Errno::EBUSY);
        }
        let removed = TABLE.lock().remove(&key(&parent, &dentry));
        ALL.lock().retain(|other| !Arc::ptr_eq(other, self));
        dentry.remove_mount();
        let place = self.at.lock().take();
        drop((removed, place));
        Ok(())
    }
}

impl Drop for Mount {
    /// Who watches files of a file system is told when its last mount goes.
    fn drop(&mut self) {
        if notify::is_any() {
            let tree = self.root.tree();
            if !list().iter().any(|other| other.root.tree() == tree) {
                notify::unmounted(tree);
            }
        }
    }
}

/// The path that is seen at `path`: the root of the mount that covers it, if there is one.
pub fn enter(mut path: Path) -> Path {
    while path.dentry.is_mountpoint() {
        let Some(mount) = TABLE.lock().get(&key(&path.mount, &path.dentry)).cloned() else { break };
        path = mount.path();
    }
    path
}

/// The place that `path` covers, if it is the root of a mount (through several layers of mounts).
pub fn leave(mut path: Path) -> Option<Path> {
    while path.is_mount_root() {
        let (mount, dentry) = path.mount.place()?;
        let inode = dentry.inode()?;
        path = Path { mount, dentry, inode };
    }
    Some(path)
}

/// Takes away the root of a tree that no program sees any more, and everything that is mounted in it.
pub fn remove_tree(root: &Arc<Mount>) {
    let is_in_tree = |mount: &Arc<Mount>| {
        let mut at = Some(mount.clone());
        while let Some(mount) = at {
            if Arc::ptr_eq(&mount, root) {
                return true;
            }
            at = mount.place().map(|(parent, _)| parent);
        }
        false
    };
    let gone: Vec<Arc<Mount>> = list().into_iter().filter(is_in_tree).collect();
    // Children before parents.
    for mount in gone.iter().rev() {
        if let Some((parent, dentry)) = mount.place() {
            let removed = TABLE.lock().remove(&key(&parent, &dentry));
            dentry.remove_mount();
            let place = mount.at.lock().take();
            drop((removed, place));
        }
        ALL.lock().retain(|other| !Arc::ptr_eq(other, mount));
        dentry::forget_tree(&mount.root);
    }
}

/// All mounts, parents before children.
pub fn list() -> Vec<Arc<Mount>> {
    ALL.lock().clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_alike_in_words_and_bits() {
        assert_eq!(
            (Limits::empty().names(), Limits::empty().statfs_flags()),
            (b"rw,relatime".to_vec(), 0x1020)
        );
        let some = Limits::READ_ONLY | Limits::NO_SUID | Limits::NO_EXEC;
        assert_eq!((some.names(), some.statfs_flags()), (b"ro,nosuid,noexec,relatime".to_vec(), 0x102b));
        assert_eq!(
            (Limits::NO_DEV.names(), Limits::NO_DEV.statfs_flags()),
            (b"rw,nodev,relatime".to_vec(), 0x1024)
        );
    }
}
