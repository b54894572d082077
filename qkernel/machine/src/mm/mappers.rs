//! Who maps an object, so that truncation and seals reach everybody.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::aspace::AddressSpace;
use crate::rank::Rank;
use crate::spin::SpinLock;

/// The address spaces that map an object, with their ids.
pub struct Mappers {
    listed: SpinLock<Vec<(u64, Weak<AddressSpace>)>>,
    /// How many were ever added. Changed under the lock of the list.
    added: AtomicU64,
}

impl Default for Mappers {
    fn default() -> Self {
        Self::new()
    }
}

impl Mappers {
    /// Nobody maps it.
    pub const fn new() -> Self {
        Self { listed: SpinLock::new(Rank::Mappers, Vec::new()), added: AtomicU64::new(0) }
    }

    pub(super) fn add(&self, aspace: &Arc<AddressSpace>) {
        let mut mappers = self.listed.lock();
        mappers.retain(|(id, mapper)| mapper.strong_count() != 0 || AddressSpace::is_listed(*id));
        if !mappers.iter().any(|(id, _)| *id == aspace.id()) {
            mappers.push((aspace.id(), Arc::downgrade(aspace)));
            self.added.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Removes the pages `[first, last)` of `object` from all of them.
    pub fn unmap(&self, object: *const (), first: u64, last: u64) {
        for mapper in self.all() {
            mapper.unmap_object_pages(object, first, last);
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<AddressSpace>> {
        self.listed.lock().iter().filter_map(|(_, mapper)| mapper.upgrade()).collect()
    }

    /// Whether `found` holds for one of them. A child of one counts that was made meanwhile, while its parent let go.
    pub(super) fn any(&self, found: impl Fn(&AddressSpace) -> bool) -> bool {
        const ROUNDS_MAX: usize = 16;
        for _ in 0..ROUNDS_MAX {
            let before = self.added.load(Ordering::SeqCst);
            if self.any_ends() || self.all().iter().any(|mapper| found(mapper)) {
                return true;
            }
            if self.added.load(Ordering::SeqCst) == before {
                return false;
            }
        }
        true
    }

    /// Whether one of them is about to end: nobody uses it any more, but its stub may not have let go of the pages yet.
    fn any_ends(&self) -> bool {
        self.listed
            .lock()
            .iter()
            .any(|(id, mapper)| mapper.strong_count() == 0 && AddressSpace::is_listed(*id))
    }
}
