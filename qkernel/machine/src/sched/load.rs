//! How many tasks ran or wanted to, on average over 1, 5 and 15 minutes (`proc_loadavg(5)`).
//!
//! No timer takes the samples, since it would keep an idle sandbox awake. Whoever is about to change what runs takes those that
//! are due: all of them see what there was since the last change.

use crate::time::NSEC;

/// Fraction bits of the averages.
pub const LOAD_SHIFT: u32 = 16;
pub(super) const STEP_NS: u64 = 5 * NSEC;
/// `2^16 * e^(-5s/1min)` and likewise for 5 and 15 minutes.
const DECAY: [u64; 3] = [60_296, 64_453, 65_173];
/// After so many samples nothing of an old load is left.
const STEPS_MAX: u64 = 2000;

/// The three averages, with [`LOAD_SHIFT`] fraction bits.
pub type Averages = [u64; 3];

/// The load of one owner.
pub(super) struct Load(Averages);

impl Load {
    pub const fn new() -> Self {
        Self([0; 3])
    }

    pub const fn averages(&self) -> Averages {
        self.0
    }

    /// So many samples found so many tasks.
    pub fn advance(&mut self, samples: u64, tasks: u64) {
        let target = tasks << LOAD_SHIFT;
        for _ in 0..samples.min(STEPS_MAX) {
            for (average, decay) in self.0.iter_mut().zip(DECAY) {
                let sum = *average * decay + target * ((1 << LOAD_SHIFT) - decay);
                // As Linux does it, so that a load that stays the same is reached.
                let rest = if target >= *average { (1 << LOAD_SHIFT) - 1 } else { 0 };
                *average = (sum + rest) >> LOAD_SHIFT;
            }
        }
    }
}

/// When samples are due.
pub(super) struct Clock {
    /// 0: it has not begun.
    sampled_ns: u64,
}

impl Clock {
    pub const fn new() -> Self {
        Self { sampled_ns: 0 }
    }

    /// How many samples have become due since the last call.
    pub fn periods(&mut self, now_ns: u64) -> u64 {
        if self.sampled_ns == 0 {
            self.sampled_ns = now_ns;
        }
        let passed_ns = now_ns.saturating_sub(self.sampled_ns);
        if passed_ns < STEP_NS {
            return 0;
        }
        let periods = passed_ns / STEP_NS;
        self.sampled_ns += periods * STEP_NS;
        periods
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_follows_what_runs_and_is_forgotten() {
        let (mut load, mut clock) = (Load::new(), Clock::new());
        assert_eq!(clock.periods(NSEC), 0);
        assert_eq!(clock.periods(6 * NSEC - 1), 0);
        assert_eq!(clock.periods(61 * NSEC), 12);
        load.advance(12, 2);
        let [one, five, fifteen] = load.averages();
        assert!((82_000..84_000).contains(&one), "{one}");
        assert!(one > five && five > fifteen);
        load.advance(u64::MAX, 2);
        assert_eq!(load.averages(), [2 << LOAD_SHIFT; 3]);
        load.advance(u64::MAX, 0);
        assert_eq!(load.averages()[0], 0);
    }
}
