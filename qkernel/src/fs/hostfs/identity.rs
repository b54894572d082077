//! Which node of the host a node is.

use abi::hostcall::HostStat;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A node's device, number, and time of birth.
pub(super) struct Identity {
    dev: AtomicU64,
    ino: AtomicU64,
    born_ns: AtomicI64,
}

impl Identity {
    pub fn of(stat: &HostStat) -> Self {
        Self {
            dev: AtomicU64::new(stat.dev),
            ino: AtomicU64::new(stat.ino),
            born_ns: AtomicI64::new(stat.btime_ns),
        }
    }

    pub fn id(&self) -> (u64, u64) {
        (self.dev.load(Ordering::Relaxed), self.ino.load(Ordering::Relaxed))
    }

    pub fn born_ns(&self) -> i64 {
        self.born_ns.load(Ordering::Relaxed)
    }

    pub fn set(&self, stat: &HostStat) {
        self.dev.store(stat.dev, Ordering::Relaxed);
        self.ino.store(stat.ino, Ordering::Relaxed);
        self.born_ns.store(stat.btime_ns, Ordering::Relaxed);
    }
}
