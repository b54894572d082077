//! Looking below an overlay.
//!
//! Through an overlay the host makes an inode and a name of the overlay's for each node that is asked for, which takes several times
//! as long as to look at the node itself. So what the sandbox has not changed is looked up in the overlay's lower directory, where it
//! is the same but for the device number ([`abi::mount::Handles`]). Only names, attributes and links' targets come from
//! there; whatever is opened is opened through the overlay.
//!
//! A directory is *left* before anything that it shows changes: a name in it, or the attributes of a node in it. From then on the
//! overlay alone is asked what is in it. Since the overlay copies the directories above to its own layer as well, they are left
//! with it. Directories that were left are remembered by inode number, as they may go from the name cache and come back, under
//! another name even; when there are too many, nothing is looked up below any more.

use abi::hostcall::HostStat;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::fs::hostfs::{HostInode, NodeName, O_DIRECTORY, O_PATH, host_inode, with_room};
use crate::fs::inode::{Inode, S_IFCHR, S_IFDIR, S_IFMT};
use machine::errno::{Errno, Result};
use machine::host;
use machine::host::Handle;
use machine::mm::account;
use machine::sync::{Rank, SpinLock};

/// Most directories that are remembered, some 32 bytes each.
const LEFT_MAX: usize = 32_768;
const LEFT_BYTES: usize = 64;

/// The lower side of a mounted overlay.
pub(super) struct LowerSide {
    /// The device number of the nodes there.
    dev: u64,
    /// The one that the overlay shows.
    shown_dev: u64,
    /// The inode numbers of the directories that were left.
    left: SpinLock<BTreeSet<u64>>,
    /// Nothing is looked up below any more.
    is_over: AtomicBool,
    /// The mounts are made.
    has_begun: AtomicBool,
}

impl LowerSide {
    pub(super) fn new(dev: u64, shown_dev: u64) -> Self {
        let left = SpinLock::new(Rank::Leaf, BTreeSet::new());
        Self { dev, shown_dev, left, is_over: AtomicBool::new(false), has_begun: AtomicBool::new(false) }
    }

    /// From now on nothing is looked up below.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn is_left(&self, ino: u64) -> bool {
        self.left.lock().contains(&ino)
    }

    /// Remembers a directory; false when it was remembered before.
    fn leave(&self, ino: u64) -> bool {
        let has_room = account::check(LEFT_BYTES).is_ok();
        let mut left = self.left.lock();
        if left.contains(&ino) {
            return false;
        }
        if has_room && left.len() < LEFT_MAX {
            left.insert(ino);
        } else {
            self.is_over.store(true, Ordering::Release);
        }
        true
    }

    /// Returns the attributes that the overlay shows for a node below with these; `None`: only the overlay can tell.
    fn shown(&self, below: HostStat) -> Option<HostStat> {
        let is_whiteout = below.mode & S_IFMT == S_IFCHR && below.rdev == 0;
        (below.dev == self.dev && !is_whiteout).then_some(HostStat { dev: self.shown_dev, ..below })
    }
}

/// The directory below, as far as it is known.
#[derive(Clone)]
enum Below {
    /// Nothing yet.
    Unknown,
    /// There is none, or it is another one.
    Absent,
    /// The sandbox has made the directory.
    Made,
    Open(Arc<Handle>),
    /// Open so that it can be listed as well.
    Listed(Arc<Handle>),
    /// The VMM may not list it.
    Unlisted(Arc<Handle>),
}

impl Below {
    fn handle(&self) -> Option<&Arc<Handle>> {
        match self {
            Self::Open(handle) | Self::Listed(handle) | Self::Unlisted(handle) => Some(handle),
            Self::Unknown | Self::Absent | Self::Made => None,
        }
    }
}

/// A node's part in it.
pub(super) struct Lower {
    below: SpinLock<Below>,
    /// The directory was left, as far as this inode knows.
    is_left: AtomicBool,
}

impl Lower {
    pub(super) fn unknown() -> Self {
        Self { below: SpinLock::new(Rank::Leaf, Below::Unknown), is_left: AtomicBool::new(false) }
    }

    pub(super) fn open(handle: Handle) -> Self {
        let below = SpinLock::new(Rank::Leaf, Below::Open(Arc::new(handle)));
        Self { below, is_left: AtomicBool::new(false) }
    }

    fn known(&self) -> Below {
        self.below.lock().clone()
    }

    fn is_made(&self) -> bool {
        matches!(&*self.below.lock(), Below::Made)
    }
}

/// The container's mounts are made. Until then directories are left as they are walked through: the VMM makes the places for
/// mounts that the host has none for.
pub fn begin(root: &Arc<dyn Inode>) {
    if let Some(side) = host_inode(root).ok().and_then(|root| root.fs.lower.as_ref()) {
        side.has_begun.store(true, Ordering::Release);
    }
}

impl HostInode {
    /// The sandbox has made the directory: nothing lies below it.
    pub(super) fn is_made(&self) {
        *self.lower.below.lock() = Below::Made;
    }

    /// The attributes of the node of this name; `None`: the overlay has to be asked.
    pub(super) fn stat_below(&self, name: &[u8]) -> Option<Result<HostStat>> {
        match self.look_below(|dir| host::stat(dir, name))? {
            Ok(below) => self.fs.lower.as_ref()?.shown(below).map(Ok),
            Err(Errno::ENOENT) => Some(Err(Errno::ENOENT)),
            Err(_) => None,
        }
    }

    /// [`host::stat_list`] of names; `None`: the overlay has to be asked.
    pub(super) fn stat_list_below(&self, names: &[u8], count: usize) -> Option<Vec<HostStat>> {
        let below = self.look_below(|dir| host::stat_list(dir, names, count))?.ok()?;
        let side = self.fs.lower.as_ref()?;
        Some(below.into_iter().map(|stat| side.shown(stat).unwrap_or_default()).collect())
    }

    /// The target of the link of this name; `None`: the overlay has to be asked.
    pub(super) fn readlink_below(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.look_below(|dir| host::readlink(dir, name))?.ok()
    }

    /// Returns the result of `look` in the directory below; `None`: there is none, or this one was left before or
    /// meanwhile.
    fn look_below<R>(&self, look: impl FnOnce(&Handle) -> Result<R>) -> Option<Result<R>> {
        let side = self.fs.lower.as_ref()?;
        let below = self.below(side, false);
        let dir = below.handle()?;
        if !self.is_as_below(side) {
            return None;
        }
        let seen = look(dir);
        if self.is_as_below(side) { Some(seen) } else { None }
    }

    /// Whether the sandbox has changed nothing in the directory, whose part below is known.
    fn is_as_below(&self, side: &LowerSide) -> bool {
        if !side.has_begun.load(Ordering::Acquire) {
            self.leave_lower();
        }
        !side.is_over() && !self.was_left()
    }

    /// A handle of the directory below that can be listed; `None`: the overlay has to be.
    pub(super) fn listing_below(&self) -> Option<Arc<Handle>> {
        let side = self.fs.lower.as_ref()?;
        let Below::Listed(handle) = self.below(side, true) else { return None };
        self.is_as_below(side).then_some(handle)
    }

    fn was_left(&self) -> bool {
        self.lower.is_left.load(Ordering::Acquire)
    }

    /// The directory below. That of the directory above is known: a name was looked up there. `lists`: it is about to be listed.
    fn below(&self, side: &LowerSide, lists: bool) -> Below {
        let known = self.lower.known();
        if side.is_over() {
            return known;
        }
        let found = match &known {
            Below::Unknown => self.find_below(side, lists),
            Below::Open(handle) if lists && !self.was_left() => {
                let listed =
                    with_room(|| host::open(handle, b"", O_DIRECTORY, 0, self.origin_below(O_DIRECTORY)));
                Some(
                    listed
                        .map_or_else(|_| Below::Unlisted(handle.clone()), |dir| Below::Listed(Arc::new(dir))),
                )
            }
            _ => None,
        };
        let Some(found) = found else { return known };
        if side.is_left(self.id().1) {
            self.lower.is_left.store(true, Ordering::Release);
        }
        let (now, old) = {
            let mut below = self.lower.below.lock();
            let is_better = matches!(
                (&*below, &found),
                (Below::Unknown, _) | (Below::Open(_), Below::Listed(_) | Below::Unlisted(_))
            );
            let old = is_better.then(|| core::mem::replace(&mut *below, found));
            (below.clone(), old)
        };
        drop(old);
        now
    }

    fn find_below(&self, side: &LowerSide, lists: bool) -> Option<Below> {
        let (dir, name) = self.named().ok()?;
        let above = dir.lower.known();
        if matches!(above, Below::Absent | Below::Made) {
            return Some(Below::Absent);
        }
        let above = above.handle()?;
        let absent =
            |error| matches!(error, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP).then_some(Below::Absent);
        if lists {
            match self.open_below(side, above, &name, O_DIRECTORY) {
                Ok(handle) => return Some(Below::Listed(Arc::new(handle))),
                // The VMM may be allowed to look there only.
                Err(Errno::EACCES | Errno::EPERM) => {}
                Err(error) => return absent(error),
            }
        }
        match self.open_below(side, above, &name, O_PATH | O_DIRECTORY) {
            Ok(handle) if lists => Some(Below::Unlisted(Arc::new(handle))),
            Ok(handle) => Some(Below::Open(Arc::new(handle))),
            Err(error) => absent(error),
        }
    }

    fn open_below(&self, side: &LowerSide, above: &Handle, name: &[u8], flags: u32) -> Result<Handle> {
        let handle = with_room(|| host::open(above, name, flags, 0, self.origin_below(flags)))?;
        let stat = host::stat_handle(&handle)?;
        // Where the directory above was left, another one may have got the name.
        if (stat.dev, stat.ino) == (side.dev, self.id().1) { Ok(handle) } else { Err(Errno::ENOENT) }
    }

    /// Gives up the lower side of this directory and of those above, since what this one shows is about to change.
    pub(super) fn leave_lower(&self) {
        self.forget_ahead();
        let Some(side) = &self.fs.lower else { return };
        let mut at = self.me.upgrade();
        while let Some(dir) = at {
            // Whoever left it has left those above, and whoever moved it those above its new place.
            if dir.lower.is_left.swap(true, Ordering::AcqRel)
                || (!dir.lower.is_made() && !side.leave(dir.id().1))
            {
                return;
            }
            at = dir.above();
        }
    }

    /// The attributes of this node are about to change.
    pub(super) fn leave_lower_above(&self) {
        if self.fs.lower.is_some()
            && let Some(dir) = self.above()
        {
            dir.leave_lower();
        }
    }

    fn above(&self) -> Option<Arc<HostInode>> {
        match &*self.name.lock() {
            NodeName::Known { dir, .. } => Some(dir.clone()),
            NodeName::Unknown => None,
        }
    }

    /// The device number of the nodes of an overlay with this root, and of those of its lower directory.
    pub(super) fn lower_side(root: &HostStat, lower: &Handle) -> Result<LowerSide> {
        let below = host::stat_handle(lower)?;
        if below.mode & S_IFMT != S_IFDIR {
            return Err(Errno::ENOTDIR);
        }
        Ok(LowerSide::new(below.dev, root.dev))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_left_once_and_too_many_end_it() {
        let side = LowerSide::new(1, 2);
        assert!(!side.is_left(7) && side.leave(7) && side.is_left(7) && !side.leave(7));
        for ino in 0..LEFT_MAX as u64 - 1 {
            side.leave(1000 + ino);
        }
        assert!(!side.is_over() && side.left.lock().len() == LEFT_MAX);
        assert!(side.leave(8) && side.is_over() && side.left.lock().len() == LEFT_MAX);
    }

    #[test]
    fn the_overlay_is_asked_of_whiteouts_and_other_file_systems() {
        let side = LowerSide::new(1, 2);
        let file = HostStat { dev: 1, ino: 5, mode: 0o100_644, size: 9, ..HostStat::default() };
        assert_eq!(side.shown(file), Some(HostStat { dev: 2, ..file }));
        assert_eq!(side.shown(HostStat { dev: 3, ..file }), None);
        let device = HostStat { mode: S_IFCHR | 0o600, ..file };
        assert_eq!(side.shown(device), None);
        assert!(side.shown(HostStat { rdev: 0x103, ..device }).is_some());
    }
}
