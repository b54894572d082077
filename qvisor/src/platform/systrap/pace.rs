//! How vCPU and stub threads wait for each other: spinning on two cores, or sleeping by turns on one.
//!
//! A hand-over between two spinning threads takes the least time, but keeps two cores busy. When there are not two
//! for each busy vCPU, or the host lets one side wait for a core, or user code runs longer than anyone should spin,
//! the stub thread follows its vCPU's core and both sleep: the host then switches from one to the other without
//! waking an idle core, which takes longer than the switch.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// How long either side spins for its turn, in TSC cycles: some tens of microseconds.
pub const SPIN_FREE: u64 = 100_000;
/// And while the sandbox itself is short of cores, before that is believed.
const SPIN_CROWDED: u64 = 2_000;
/// Crowded runs in a row until the threads share a core: changing costs system calls.
const RUNS_TO_CROWD: u32 = 8;
/// Waits in a row that outlasted the spinning until they share a core.
const VAIN_WAITS: u32 = 4;
/// Short waits in a row until spinning is tried again; doubled each time that turns out to be in vain.
const PATIENCE: u32 = 64;
const PATIENCE_MAX: u32 = 1 << 14;
/// Successes in a row that make up for failures.
const GOOD_WAITS: u32 = 1 << 12;

/// How to wait this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// In TSC cycles.
    pub spin: u64,
    /// The stub thread stays on the vCPU thread's core.
    pub same_core: bool,
}

/// One vCPU's choice, and what it rests on. Used by that vCPU alone.
#[derive(Debug)]
pub struct Pacing {
    same_core: AtomicU32,
    /// Runs in a row that spoke for the other way.
    streak: AtomicU32,
    vain: AtomicU32,
    good: AtomicU32,
    patience: AtomicU32,
}

impl Default for Pacing {
    fn default() -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            same_core: zero(),
            streak: zero(),
            vain: zero(),
            good: zero(),
            patience: AtomicU32::new(PATIENCE),
        }
    }
}

impl Pacing {
    /// Chooses for the next run; `crowded`: the busy vCPUs have fewer than two cores each.
    pub fn choose(&self, crowded: bool) -> Pace {
        if self.same_core.load(Relaxed) != 0 {
            if !crowded && self.streak.load(Relaxed) >= self.patience.load(Relaxed) {
                self.change(false);
            }
        } else if crowded {
            if increment(&self.streak) >= RUNS_TO_CROWD {
                self.change(true);
            }
        } else {
            self.streak.store(0, Relaxed);
        }
        let same_core = self.same_core.load(Relaxed) != 0;
        let spin = match (same_core, crowded) {
            (true, _) => 0,
            (false, true) => SPIN_CROWDED,
            (false, false) => SPIN_FREE,
        };
        Pace { spin, same_core }
    }

    fn change(&self, same_core: bool) {
        self.same_core.store(u32::from(same_core), Relaxed);
        for counter in [&self.streak, &self.vain, &self.good] {
            counter.store(0, Relaxed);
        }
    }

    /// Notes how long the stub had its turn, in TSC cycles.
    pub fn note(&self, cycles: u64) {
        let short = cycles < SPIN_FREE;
        match (self.same_core.load(Relaxed) != 0, short) {
            (true, true) => _ = increment(&self.streak),
            (true, false) => self.streak.store(0, Relaxed),
            (false, true) => {
                self.vain.store(0, Relaxed);
                if increment(&self.good) == GOOD_WAITS {
                    self.patience.store(PATIENCE, Relaxed);
                }
            }
            (false, false) => {
                self.good.store(0, Relaxed);
                if increment(&self.vain) >= VAIN_WAITS {
                    self.change(true);
                    let patience = self.patience.load(Relaxed);
                    self.patience.store((2 * patience).min(PATIENCE_MAX), Relaxed);
                }
            }
        }
    }
}

/// Adds one to a counter that only this thread writes.
fn increment(counter: &AtomicU32) -> u32 {
    let value = counter.load(Relaxed).saturating_add(1);
    counter.store(value, Relaxed);
    value
}

/// A set of cores.
#[derive(Clone, Copy)]
pub struct Affinity(libc::cpu_set_t);

impl Affinity {
    /// The cores the calling thread may use.
    pub fn of_this_thread() -> Self {
        // SAFETY: all zeros is a valid set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is this function's own.
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
        Self(set)
    }

    /// The core the calling thread runs on, and the set of it alone.
    pub fn current_core() -> Option<(u32, Self)> {
        // SAFETY: touches no memory of ours.
        let core = u32::try_from(unsafe { libc::sched_getcpu() }).ok()?;
        // SAFETY: all zeros is a valid set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        let index = usize::try_from(core).ok().filter(|index| *index < 8 * size_of::<libc::cpu_set_t>())?;
        // SAFETY: the index was checked.
        unsafe { libc::CPU_SET(index, &mut set) };
        Some((core, Self(set)))
    }

    /// Binds a thread of a child to the cores.
    pub fn apply(&self, tid: i32) {
        // SAFETY: reads the set.
        unsafe { libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), &raw const self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Pace = Pace { spin: 0, same_core: true };
    const SPIN: Pace = Pace { spin: SPIN_FREE, same_core: false };

    #[test]
    fn crowding_is_believed_slowly() {
        let pacing = Pacing::default();
        assert_eq!(pacing.choose(false), SPIN);
        for _ in 1..RUNS_TO_CROWD {
            assert!(!pacing.choose(true).same_core);
        }
        assert_eq!(pacing.choose(true), SHARE);
        for _ in 0..PATIENCE {
            assert_eq!(pacing.choose(false), SHARE);
            pacing.note(1);
        }
        assert_eq!(pacing.choose(true), SHARE);
        assert_eq!(pacing.choose(false), SPIN);
    }

    #[test]
    fn spinning_in_vain_ends_and_is_tried_again_ever_more_seldom() {
        let pacing = Pacing::default();
        for round in 1..4 {
            for _ in 0..VAIN_WAITS {
                assert_eq!(pacing.choose(false), SPIN);
                pacing.note(SPIN_FREE);
            }
            pacing.note(SPIN_FREE);
            for _ in 0..PATIENCE << round {
                assert_eq!(pacing.choose(false), SHARE);
                pacing.note(1);
            }
        }
        for _ in 0..GOOD_WAITS {
            assert_eq!(pacing.choose(false), SPIN);
            pacing.note(1);
        }
        assert_eq!(pacing.patience.load(Relaxed), PATIENCE);
    }
}
