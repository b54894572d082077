//! Room that many share: the pages of a tmpfs, or its nodes.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::errno::{Errno, Result};

/// A number of units that many have between them: of pages, the stores of a tmpfs.
pub struct Quota {
    most: AtomicU64,
    used: AtomicU64,
}

impl Quota {
    /// Room for `most` units.
    pub fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { most: AtomicU64::new(most), used: AtomicU64::new(0) })
    }

    /// Units that there are in all, and that are left.
    pub fn room(&self) -> (u64, u64) {
        let most = self.most.load(Ordering::Relaxed);
        (most, most.saturating_sub(self.used.load(Ordering::Relaxed)))
    }

    /// Changes how many there are in all; `EINVAL`: more are used.
    pub fn set_most(&self, most: u64) -> Result<()> {
        if self.used.load(Ordering::Relaxed) > most {
            return Err(Errno::EINVAL);
        }
        self.most.store(most, Ordering::Relaxed);
        Ok(())
    }

    /// Takes some; `ENOSPC`.
    pub fn take(&self, units: u64) -> Result<()> {
        let most = self.most.load(Ordering::Relaxed);
        let more = |used: u64| used.checked_add(units).filter(|used| *used <= most);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(drop).map_err(|_| Errno::ENOSPC)
    }

    /// Gives back what was taken.
    pub fn give_back(&self, units: u64) {
        let less = |used: u64| Some(used.saturating_sub(units));
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}
