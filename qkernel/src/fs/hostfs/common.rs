//! The state that the kernel keeps of a file of the host, whatever view shows it.
//!
//! Containers of a pod see the same files by views of their own, with an inode for each view. Locks, a bound socket, a
//! FIFO's pipe and the memory of shared mappings belong to the file, so its inodes have one [`Common`] between them.
//! Handles, names and cached attributes stay with each view.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::fs::hostfs::HostInode;
use crate::fs::inode::{Attachment, S_IFIFO, S_IFSOCK};
use crate::fs::locks::HostLocks;
use crate::fs::notify;
use crate::fs::opens::Opens;
use machine::mm::window::HostFileMap;
use machine::sync::{Mutex, Rank, SpinLock};

/// The identity of a file on the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct FileId {
    pub dev: u64,
    pub ino: u64,
    /// With the kind it tells most files from one that has had the number before.
    pub born_ns: i64,
    pub kind: u32,
}

/// A mapping of the content, and the inode whose handle it has: another view's inode must not use it.
struct ViewMap {
    of: Weak<HostInode>,
    map: Weak<HostFileMap>,
}

/// The state of a file that its inodes in all views share.
pub(super) struct Common {
    id: SpinLock<FileId>,
    /// The file is no more, so whoever has its number is another one.
    gone: AtomicBool,
    /// Held while the content is written, so that appends know the end.
    pub io: Mutex<()>,
    /// Mappings of the content in all views.
    maps: SpinLock<Vec<ViewMap>>,
    /// Its descriptions. While one is open for writing the file can't be executed.
    pub opens: Opens,
    /// Of a volume's file: what is locked of it on the host.
    pub locks: HostLocks,
    pub attachment: Attachment,
}

/// The states that are in use.
static ALL: SpinLock<BTreeMap<FileId, Weak<Common>>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

impl Common {
    fn new(id: FileId) -> Arc<Self> {
        Arc::new(Self {
            id: SpinLock::new(Rank::Leaf, id),
            gone: AtomicBool::new(false),
            io: Mutex::new(Rank::Inode, ()),
            maps: SpinLock::new(Rank::Leaf, Vec::new()),
            opens: Opens::default(),
            locks: HostLocks::default(),
            attachment: Attachment::new(Rank::Leaf, None),
        })
    }

    /// The state of a file.
    pub fn of(id: FileId) -> Arc<Self> {
        let new = Self::new(id);
        let mut all = ALL.lock();
        if let Some(known) = all.get(&id).and_then(Weak::upgrade) {
            drop(all);
            return known;
        }
        all.insert(id, Arc::downgrade(&new));
        new
    }

    /// The state of a file, if it is in use.
    pub fn known(id: FileId) -> Option<Arc<Self>> {
        ALL.lock().get(&id).and_then(Weak::upgrade)
    }

    /// The state of a file that was just made. What a file with its number had before is forgotten.
    pub fn of_new(id: FileId) -> Arc<Self> {
        let new = Self::new(id);
        let old = ALL.lock().insert(id, Arc::downgrade(&new));
        if let Some(old) = old.and_then(|old| old.upgrade()) {
            old.gone.store(true, Ordering::Relaxed);
        }
        new
    }

    /// The file was removed. Its users keep the state, and nobody else finds it.
    pub fn forget(&self) {
        self.gone.store(true, Ordering::Relaxed);
        self.unlist();
    }

    /// Lists these states under the names that their files have now, and no others.
    pub fn list_anew(states: impl Iterator<Item = (FileId, Arc<Self>)>) {
        let mut new = BTreeMap::new();
        for (id, state) in states.filter(|(_, state)| !state.is_gone()) {
            *state.id.lock() = id;
            new.insert(id, Arc::downgrade(&state));
        }
        let old = core::mem::replace(&mut *ALL.lock(), new);
        drop(old);
    }

    /// Whether the file was removed.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn unlist(&self) {
        let id = *self.id.lock();
        let mut all = ALL.lock();
        if all.get(&id).is_some_and(|known| core::ptr::eq(known.as_ptr(), self)) {
            all.remove(&id);
        }
    }

    /// The mapping of `inode`, read-only or writable.
    pub fn map_of(&self, inode: &Weak<HostInode>, writable: bool) -> Option<Arc<HostFileMap>> {
        let own: Vec<_> = {
            let maps = self.maps.lock();
            maps.iter()
                .filter(|known| known.of.ptr_eq(inode))
                .filter_map(|known| known.map.upgrade())
                .collect()
        };
        own.into_iter().find(|map| map.is_writable() == writable)
    }

    /// Adds a mapping of `inode`. Of two that meet here at least one sees the other: where one is writable, the read-only one
    /// shows no copies, which would not change with the file.
    pub fn add_map(&self, inode: &Weak<HostInode>, new: &Arc<HostFileMap>) {
        {
            let mut maps = self.maps.lock();
            maps.retain(|known| known.map.strong_count() != 0);
            maps.push(ViewMap { of: inode.clone(), map: Arc::downgrade(new) });
        }
        let all = self.all_maps();
        if all.iter().any(|map| map.is_writable()) {
            all.iter().filter(|map| !map.is_writable()).for_each(|map| map.stop_copying());
        }
    }

    /// All mappings of the content.
    pub fn all_maps(&self) -> Vec<Arc<HostFileMap>> {
        self.maps.lock().iter().filter_map(|known| known.map.upgrade()).collect()
    }
}

impl Drop for Common {
    fn drop(&mut self) {
        self.unlist();
        notify::gone(&raw const *self as usize);
    }
}

/// Whether a file of this kind has a state that outlives the handles which keep its number from being used again.
pub(super) fn outlives_handles(kind: u32) -> bool {
    matches!(kind, S_IFSOCK | S_IFIFO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ino: u64) -> FileId {
        FileId { dev: 0xffff_0001, ino, born_ns: 7, kind: S_IFSOCK }
    }

    fn is_listed(id: FileId) -> bool {
        ALL.lock().contains_key(&id)
    }

    #[test]
    fn a_file_has_one_state_while_it_is_used() {
        let id = id(1);
        let (one, other) = (Common::of(id), Common::of(id));
        assert!(Arc::ptr_eq(&one, &other));
        for other in [FileId { ino: 2, ..id }, FileId { dev: 9, ..id }, FileId { born_ns: 8, ..id }] {
            assert!(!Arc::ptr_eq(&one, &Common::of(other)));
        }
        drop(one);
        assert!(is_listed(id));
        drop(other);
        assert!(!is_listed(id));
    }

    #[test]
    fn a_file_that_is_removed_or_made_anew_leaves_its_number_without_a_state() {
        let id = id(3);
        let removed = Common::of(id);
        removed.forget();
        let next = Common::of(id);
        assert!(removed.is_gone() && !next.is_gone() && !Arc::ptr_eq(&removed, &next));
        drop(removed);
        assert!(Arc::ptr_eq(&next, &Common::of(id)), "the end of the old state takes the new one along");
        let made = Common::of_new(id);
        assert!(next.is_gone() && !made.is_gone());
        drop(next);
        assert!(Arc::ptr_eq(&made, &Common::of(id)));
    }
}
