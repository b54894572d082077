//! How much of the time tasks of an owner were held up, on average over 10, 60 and 300 seconds (`/proc/pressure`).
//!
//! As the load, it is sampled every five seconds by whoever is about to change what runs ([`super::load`]), so it costs nothing
//! meanwhile and is as coarse as that.

use super::load::STEP_NS;

/// Fraction bits of the averages.
pub const PRESSURE_SHIFT: u32 = 16;
/// `2^16 * e^(-5s/10s)` and likewise for 60 and 300 seconds.
const DECAY: [u64; 3] = [39_750, 60_296, 64_453];
/// After so many samples nothing of an old pressure is left.
const STEPS_MAX: u64 = 2000;

/// The part of the time in which something held tasks up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// Over 10, 60 and 300 seconds, with [`PRESSURE_SHIFT`] fraction bits.
    pub averages: [u64; 3],
    pub total_ns: u64,
}

impl Stall {
    const NONE: Self = Self { averages: [0; 3], total_ns: 0 };

    fn advance(&mut self, samples: u64, is_stalled: bool) {
        let target = u64::from(is_stalled) << PRESSURE_SHIFT;
        for _ in 0..samples.min(STEPS_MAX) {
            for (average, decay) in self.averages.iter_mut().zip(DECAY) {
                let sum = *average * decay + target * ((1 << PRESSURE_SHIFT) - decay);
                let rest = if target >= *average { (1 << PRESSURE_SHIFT) - 1 } else { 0 };
                *average = (sum + rest) >> PRESSURE_SHIFT;
            }
        }
        if is_stalled {
            self.total_ns = self.total_ns.saturating_add(samples.saturating_mul(STEP_NS));
        }
    }
}

/// The times in which an owner's tasks were held up, by what they waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Some task waited for a CPU.
    pub cpu: Stall,
    /// Some task waited for the host: a file, or a page on its way.
    pub io: Stall,
    /// And no other task ran.
    pub io_full: Stall,
}

/// The number of an owner's tasks in each state at a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Tasks that run, that wait for a CPU, and that wait for the host.
    pub running: usize,
    pub waiting: usize,
    pub held_up: usize,
}

impl Sample {
    /// Nothing runs at all.
    pub const NONE: Self = Self { running: 0, waiting: 0, held_up: 0 };
}

impl Pressure {
    pub(super) const fn new() -> Self {
        Self { cpu: Stall::NONE, io: Stall::NONE, io_full: Stall::NONE }
    }

    /// So many samples found this.
    pub(super) fn advance(&mut self, samples: u64, found: Sample) {
        let is_held_up = found.held_up != 0;
        self.cpu.advance(samples, found.waiting != 0);
        self.io.advance(samples, is_held_up);
        self.io_full.advance(samples, is_held_up && found.running == 0 && found.waiting == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_follows_what_waits_and_is_forgotten() {
        let mut pressure = Pressure::new();
        pressure.advance(2, Sample { running: 2, waiting: 1, held_up: 0 });
        let [short, middle, long] = pressure.cpu.averages;
        // 1 - e^-1 of the whole.
        assert!((41_000..42_000).contains(&short), "{short}");
        assert!(short > middle && middle > long);
        assert_eq!(pressure.cpu.total_ns, 2 * STEP_NS);
        assert_eq!(pressure.io, Stall::NONE);
        pressure.advance(u64::MAX, Sample { running: 0, waiting: 0, held_up: 3 });
        assert_eq!(pressure.cpu.averages, [0; 3]);
        assert_eq!(pressure.io.averages, [1 << PRESSURE_SHIFT; 3]);
        assert_eq!(pressure.io, pressure.io_full);
        pressure.advance(1, Sample { running: 1, waiting: 0, held_up: 1 });
        assert!(pressure.io_full.averages[0] < pressure.io.averages[0]);
    }
}
