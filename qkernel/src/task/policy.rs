//! Scheduling policies and priorities of programs: kept, inherited and reported. The scheduler itself is round robin.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Scheduling parameters of a task (`sched(7)`).
pub struct SchedPolicy {
    /// `nice` value, -20 to 19.
    pub nice: AtomicI32,
    /// Policy with its reset-on-fork flag.
    pub policy: AtomicU32,
    pub rt_priority: AtomicU32,
    pub io_priority: AtomicU32,
    /// The CPUs that its owner asked for, one bit each. While it lives the scheduler has them.
    pub affinity: AtomicU64,
}

impl Default for SchedPolicy {
    fn default() -> Self {
        Self {
            nice: AtomicI32::new(0),
            policy: AtomicU32::new(0),
            rt_priority: AtomicU32::new(0),
            io_priority: AtomicU32::new(0),
            affinity: AtomicU64::new(u64::MAX),
        }
    }
}

impl SchedPolicy {
    /// Takes over from a parent what its owner asked for.
    pub fn inherit(&self, parent: &Self) {
        const RESET_ON_FORK: u32 = 0x4000_0000;
        let copy =
            |to: &AtomicU32, from: &AtomicU32| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        self.affinity.store(parent.affinity.load(Ordering::Relaxed), Ordering::Relaxed);
        copy(&self.io_priority, &parent.io_priority);
        let nice = parent.nice.load(Ordering::Relaxed);
        if parent.policy.load(Ordering::Relaxed) & RESET_ON_FORK != 0 {
            self.nice.store(nice.max(0), Ordering::Relaxed);
        } else {
            self.nice.store(nice, Ordering::Relaxed);
            copy(&self.policy, &parent.policy);
            copy(&self.rt_priority, &parent.rt_priority);
        }
    }
}
