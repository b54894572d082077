//! `struct rusage`, and counter ticks as time.

use crate::time;

/// Nanoseconds of so many counter ticks.
pub fn ticks_to_ns(ticks: u64) -> u64 {
    time::ticks_to_ns(ticks)
}

/// `struct rusage` with user and system time; the rest is zero.
pub fn rusage(ticks: (u64, u64)) -> [i64; 18] {
    let mut usage = [0i64; 18];
    for (at, ticks) in [(0, ticks.0), (2, ticks.1)] {
        let ns = ticks_to_ns(ticks);
        usage[at] = (ns / 1_000_000_000).cast_signed();
        usage[at + 1] = (ns % 1_000_000_000 / 1000).cast_signed();
    }
    usage
}
