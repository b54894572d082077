//! Adjustments that the end of a process makes (`SEM_UNDO`). The list is a process's, or shared by tasks that were made with
//! `CLONE_SYSVSEM`, as threads are. The numbers themselves stand with each set, under its lock.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::fs::caller;
use crate::fs::caller::PidOf;
use crate::ipc::sem::SemSet;
use machine::sync::{Rank, SpinLock};

/// The sets that hold adjustments of some tasks. Dropped with the last of these tasks, by that task.
pub struct UndoList {
    /// Unique among all lists ever.
    pub(super) id: u64,
    sets: SpinLock<Vec<Weak<SemSet>>>,
}

impl UndoList {
    /// An empty list.
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { id, sets: SpinLock::new(Rank::Leaf, Vec::new()) })
    }

    /// A set holds adjustments from now on.
    pub(super) fn add(&self, set: &Arc<SemSet>) {
        let mut sets = self.sets.lock();
        sets.retain(|other| other.strong_count() != 0);
        sets.push(Arc::downgrade(set));
    }
}

impl Drop for UndoList {
    fn drop(&mut self) {
        let sets = core::mem::take(&mut *self.sets.lock());
        if sets.is_empty() {
            return;
        }
        let pid = PidOf::of(&*caller::current());
        for set in sets.iter().filter_map(Weak::upgrade) {
            set.undo(self.id, pid);
        }
    }
}
