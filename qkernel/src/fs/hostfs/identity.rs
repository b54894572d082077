//! Which node of the host a node is.

use abi::hostcall::HostStat;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A node's device, number, and time of birth.
pub(super) struct Identity {
    dev: AtomicU64,
    ino: AtomicU64,
    born_ns: AtomicI64,
    /// The number that programs know; 0: the host's.
    known: AtomicU64,
}

impl Identity {
    pub fn of(stat: &HostStat) -> Self {
        Self {
            dev: AtomicU64::new(stat.dev),
            ino: AtomicU64::new(stat.ino),
            born_ns: AtomicI64::new(stat.btime_ns),
            known: AtomicU64::new(0),
        }
    }

    /// The number for programs of a node that has this one on the host.
    pub fn known(&self, ino: u64) -> u64 {
        match self.known.load(Ordering::Relaxed) {
            0 => ino,
            known => known,
        }
    }

    pub fn id(&self) -> (u64, u64) {
        (self.dev.load(Ordering::Relaxed), self.ino.load(Ordering::Relaxed))
    }

    pub fn born_ns(&self) -> i64 {
        self.born_ns.load(Ordering::Relaxed)
    }

    /// It is this node now. Programs, which have compared its number with what they noted when they opened it, find the one that it had.
    pub fn set(&self, stat: &HostStat) {
        let known = self.known(self.ino.load(Ordering::Relaxed));
        self.known.store(if known == stat.ino { 0 } else { known }, Ordering::Relaxed);
        self.dev.store(stat.dev, Ordering::Relaxed);
        self.ino.store(stat.ino, Ordering::Relaxed);
        self.born_ns.store(stat.btime_ns, Ordering::Relaxed);
    }
}
