//! How vCPU and stub threads wait for each other: spinning on two cores, or sleeping by turns on one.
//!
//! A hand-over between two spinning threads takes the least time, but keeps two cores busy. When there are not two
//! for each busy vCPU, the stub thread follows its vCPU's core and both sleep: the host switches from one to the
//! other without waking an idle core.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// How long either side spins for its turn while cores are free, in TSC cycles: some tens of microseconds.
pub const SPIN_FREE: u64 = 100_000;
/// How long it spins when that has been in vain lately: a microsecond.
const SPIN_BRIEF: u64 = 2_000;
/// Runs in a row that must call for the other way before it is taken: changing costs system calls.
const RUNS_TO_CROWD: u32 = 8;
const RUNS_TO_SPREAD: u32 = 64;
/// Waits in a row that outlasted the spinning before it gets brief.
const VAIN_WAITS: u32 = 4;

/// How to wait this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// In TSC cycles.
    pub spin: u64,
    /// The stub thread stays on the vCPU thread's core.
    pub same_core: bool,
}

/// One vCPU's choice, and what it rests on. Used by that vCPU alone.
#[derive(Debug, Default)]
pub struct Pacing {
    same_core: AtomicU32,
    streak: AtomicU32,
    vain: AtomicU32,
}

impl Pacing {
    /// Chooses for the next run; `crowded`: the busy vCPUs have fewer than two cores each.
    pub fn choose(&self, crowded: bool) -> Pace {
        let mut same_core = self.same_core.load(Relaxed) != 0;
        if crowded == same_core {
            self.streak.store(0, Relaxed);
        } else {
            let streak = self.streak.load(Relaxed) + 1;
            self.streak.store(streak, Relaxed);
            if streak >= if crowded { RUNS_TO_CROWD } else { RUNS_TO_SPREAD } {
                same_core = crowded;
                self.same_core.store(u32::from(same_core), Relaxed);
                self.streak.store(0, Relaxed);
            }
        }
        let brief = crowded || self.vain.load(Relaxed) >= VAIN_WAITS;
        let spin = match (same_core, brief) {
            (true, _) => 0,
            (false, true) => SPIN_BRIEF,
            (false, false) => SPIN_FREE,
        };
        Pace { spin, same_core }
    }

    /// Notes how long the stub had its turn, in TSC cycles.
    pub fn note(&self, cycles: u64) {
        let vain = if cycles < SPIN_FREE { 0 } else { (self.vain.load(Relaxed) + 1).min(VAIN_WAITS) };
        self.vain.store(vain, Relaxed);
    }
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

    #[test]
    fn crowding_is_believed_slowly() {
        let pacing = Pacing::default();
        assert_eq!(pacing.choose(false), Pace { spin: SPIN_FREE, same_core: false });
        for _ in 1..RUNS_TO_CROWD {
            assert!(!pacing.choose(true).same_core);
        }
        assert_eq!(pacing.choose(true), Pace { spin: 0, same_core: true });
        for _ in 1..RUNS_TO_SPREAD {
            assert!(pacing.choose(false).same_core);
        }
        assert!(!pacing.choose(false).same_core);
    }

    #[test]
    fn long_runs_end_the_spinning_and_a_short_one_brings_it_back() {
        let pacing = Pacing::default();
        for _ in 0..VAIN_WAITS {
            assert_eq!(pacing.choose(false).spin, SPIN_FREE);
            pacing.note(SPIN_FREE);
        }
        assert_eq!(pacing.choose(false).spin, SPIN_BRIEF);
        pacing.note(1);
        assert_eq!(pacing.choose(false).spin, SPIN_FREE);
    }
}
