//! Resources that threads have used, and the sums of those that have ended.

use core::ops::AddAssign;
use core::sync::atomic::Ordering;

use machine::sched::SchedState;
use machine::time;

/// `struct rusage`: user time, system time, then counters; the ones nobody keeps are zero.
pub type Rusage = [i64; 18];
const MAXRSS_KIB: usize = 4;
const MINFLT: usize = 8;
const MAJFLT: usize = 9;
const NVCSW: usize = 16;
const NIVCSW: usize = 17;

/// The resources that a thread, or several together, have used.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Used {
    /// Counter ticks.
    pub user: u64,
    pub system: u64,
    /// Times that it gave up its CPU, and those of them against its will.
    pub switches: u64,
    pub involuntary: u64,
    /// Page faults that were answered at once, and those whose content had to be waited for.
    pub minor_faults: u64,
    pub major_faults: u64,
    /// Calls that read and that wrote, and the bytes they moved.
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// The most bytes of memory that one of their processes has held.
    pub max_rss: u64,
}

impl Used {
    /// Returns the resources that a thread has used so far, without memory, which is its process's.
    pub fn by(sched: &SchedState) -> Self {
        Self {
            user: sched.user_ticks.load(Ordering::Relaxed),
            system: sched.system_ticks.load(Ordering::Relaxed),
            switches: sched.switches.load(Ordering::Relaxed),
            involuntary: sched.involuntary_switches.load(Ordering::Relaxed),
            minor_faults: sched.minor_faults.load(Ordering::Relaxed),
            major_faults: sched.major_faults.load(Ordering::Relaxed),
            reads: sched.reads.calls.load(Ordering::Relaxed),
            writes: sched.writes.calls.load(Ordering::Relaxed),
            read_bytes: sched.reads.bytes.load(Ordering::Relaxed),
            written_bytes: sched.writes.bytes.load(Ordering::Relaxed),
            max_rss: 0,
        }
    }

    /// User and total processor time, in nanoseconds.
    pub fn cpu_times(&self) -> (u64, u64) {
        (time::ticks_to_ns(self.user), time::ticks_to_ns(self.user + self.system))
    }

    /// Times that it gave up its CPU itself.
    pub fn voluntary(&self) -> u64 {
        self.switches.saturating_sub(self.involuntary)
    }

    /// Returns the resources in the form of `getrusage(2)`.
    pub fn rusage(&self) -> Rusage {
        let mut usage = [0i64; 18];
        for (at, ticks) in [(0, self.user), (2, self.system)] {
            let ns = time::ticks_to_ns(ticks);
            usage[at] = (ns / 1_000_000_000).cast_signed();
            usage[at + 1] = (ns % 1_000_000_000 / 1000).cast_signed();
        }
        for (at, count) in [
            (MAXRSS_KIB, self.max_rss / 1024),
            (MINFLT, self.minor_faults),
            (MAJFLT, self.major_faults),
            (NVCSW, self.voluntary()),
            (NIVCSW, self.involuntary),
        ] {
            usage[at] = count.cast_signed();
        }
        usage
    }
}

impl AddAssign for Used {
    /// The sum, and of the memory the larger.
    fn add_assign(&mut self, other: Self) {
        self.user += other.user;
        self.system += other.system;
        self.switches += other.switches;
        self.involuntary += other.involuntary;
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes = self.read_bytes.wrapping_add(other.read_bytes);
        self.written_bytes = self.written_bytes.wrapping_add(other.written_bytes);
        self.max_rss = self.max_rss.max(other.max_rss);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_has_the_larger_memory() {
        let mut sum = Used { user: 1, switches: 5, involuntary: 2, max_rss: 8192, ..Used::default() };
        sum +=
            Used { user: 2, switches: 1, minor_faults: 3, major_faults: 1, max_rss: 4096, ..Used::default() };
        let usage = sum.rusage();
        assert_eq!((sum.user, usage[MAXRSS_KIB]), (3, 8));
        assert_eq!([usage[MINFLT], usage[MAJFLT], usage[NVCSW], usage[NIVCSW]], [3, 1, 4, 2]);
    }
}
