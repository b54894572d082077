//! The clocks: monotonic and real time computed from the TSC, corrected from the host now and then.
//!
//! Kernel and vDSO use the same formula and the same parameters, so that they never disagree:
//! `ns = base_ns + ((tsc - base_tsc) * mult >> SHIFT)`.

use crate::arch::read_tsc;
use crate::platform;
use crate::rank::Rank;
use crate::spin::SpinLock;
use abi::hostcall::{self as hc, HostClocks};
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Fraction bits of `mult`.
pub const SHIFT: u32 = 32;
/// How often the parameters are corrected at most.
const RESYNC_NS: u64 = 1_000_000_000;
/// A clock ahead of the host's by no more than this stands still until the host's has caught up; by more, it runs at
/// half speed. One that is behind jumps.
const STANDSTILL_MAX_NS: u64 = 100_000_000;
/// A rate is believed once the time it was measured over is this power of two times the uncertainty at its two ends.
const RATE_BITS: u32 = 13;
/// A rate that differs from what was measured before by more than one part in 2 to this power is not believed.
const LEAP_BITS: u32 = 8;
/// A look at the host's clocks that took no longer, in ticks, is not repeated.
const QUICK_TICKS: u64 = 20_000;
/// Nanoseconds in a second.
pub const NSEC: u64 = 1_000_000_000;

/// The parameters, as the vDSO reads them: a sequence lock (odd while they change).
#[repr(C)]
pub struct ClockPage {
    pub seq: AtomicU64,
    pub base_tsc: AtomicU64,
    pub base_ns: AtomicU64,
    pub mult: AtomicU64,
    /// Real time minus monotonic time.
    pub real_offset_ns: AtomicU64,
    /// Boot time minus monotonic time.
    pub boot_offset_ns: AtomicU64,
}

impl ClockPage {
    const fn new() -> Self {
        Self {
            seq: AtomicU64::new(0),
            base_tsc: AtomicU64::new(0),
            base_ns: AtomicU64::new(0),
            mult: AtomicU64::new(0),
            real_offset_ns: AtomicU64::new(0),
            boot_offset_ns: AtomicU64::new(0),
        }
    }
}

static CLOCK: ClockPage = ClockPage::new();
/// Copies of [`CLOCK`] the vDSO sees: address of the page in the linear map, 0 when there is none yet.
static SHARED_PAGE: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds a tick, times 2^[`SHIFT`], as first known: times used ([`ticks_to_ns`]) are told by it, and never go back
/// when the rate is measured better or the clock is slowed down.
static USED_MULT: AtomicU64 = AtomicU64::new(0);
/// Held by whoever changes the parameters.
static WRITER: SpinLock<Meter> = SpinLock::new(Rank::Clock, Meter::new(Sample::NONE, 0));
/// Monotonic time minus the host's, modulo 2^64: it goes on under a VMM on another host, or after a time as files.
static AHEAD_NS: AtomicU64 = AtomicU64::new(0);
/// The time user code has seen at most, while a [`hold`] lasts; else 0.
static HELD_NS: AtomicU64 = AtomicU64::new(0);

/// A look at the host's clocks.
#[derive(Clone, Copy)]
struct Sample {
    /// The counter's value meanwhile, wrong by at most half of `width`.
    tsc: u64,
    width: u64,
    clocks: HostClocks,
}

impl Sample {
    const NONE: Self =
        Self { tsc: 0, width: 0, clocks: HostClocks { monotonic_ns: 0, realtime_ns: 0, boottime_ns: 0 } };

    /// The quickest of a few looks: a host that is busy may let any of them wait.
    fn take() -> Self {
        let mut best = Self::take_once();
        for _ in 0..2 {
            if best.width <= QUICK_TICKS {
                break;
            }
            let next = Self::take_once();
            best = if next.width < best.width { next } else { best };
        }
        best
    }

    fn take_once() -> Self {
        let before = read_tsc();
        let mut clocks = HostClocks::default();
        let _ = platform::call(hc::CLOCK, [platform::phys_of(&raw mut clocks), 0, 0, 0, 0, 0]);
        let width = read_tsc().saturating_sub(before);
        let ahead_ns = AHEAD_NS.load(Ordering::Relaxed);
        clocks.monotonic_ns = clocks.monotonic_ns.wrapping_add(ahead_ns);
        clocks.boottime_ns = clocks.boottime_ns.wrapping_add(ahead_ns);
        Self { tsc: before + width / 2, width, clocks }
    }
}

/// Measures the counter's rate by the host's clock.
struct Meter {
    /// The reading with which the measurement began.
    start: Sample,
    /// Nanoseconds a tick, times 2^[`SHIFT`].
    rate: u64,
    /// The rate is its own, not what it was told at first.
    is_measured: bool,
}

impl Meter {
    const fn new(start: Sample, rate: u64) -> Self {
        Self { start, rate, is_measured: false }
    }

    /// The rate, now that it is seen at one more moment.
    fn measure(&mut self, now: &Sample) -> u64 {
        match self.since_start(now) {
            // A host that was suspended, or has moved: what was measured before it counts no more.
            Measure::Absurd => *self = Self::new(*now, self.rate),
            Measure::Rate(rate) if self.is_measured && rate.abs_diff(self.rate) > self.rate >> LEAP_BITS => {
                *self = Self::new(*now, self.rate);
            }
            Measure::Rate(rate) => (self.rate, self.is_measured) = (rate, true),
            Measure::Vague => {}
        }
        self.rate
    }

    fn since_start(&self, now: &Sample) -> Measure {
        let ticks = now.tsc.checked_sub(self.start.tsc);
        let ns = now.clocks.monotonic_ns.checked_sub(self.start.clocks.monotonic_ns);
        let (Some(ticks), Some(ns)) = (ticks, ns) else { return Measure::Absurd };
        if ticks == 0 || self.start.width.saturating_add(now.width) > ticks >> RATE_BITS {
            return Measure::Vague;
        }
        u64::try_from((u128::from(ns) << SHIFT) / u128::from(ticks)).map_or(Measure::Absurd, Measure::Rate)
    }
}

enum Measure {
    Rate(u64),
    /// Too little time has passed for how exactly its ends are known.
    Vague,
    Absurd,
}

/// The straight line that monotonic time follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    base_tsc: u64,
    base_ns: u64,
    mult: u64,
}

impl Line {
    fn at(&self, tsc: u64) -> u64 {
        let delta = tsc.wrapping_sub(self.base_tsc);
        let delta = if delta > 1 << 63 { 0 } else { delta };
        self.base_ns + scale(delta, self.mult)
    }

    /// The line from `now` (in ticks) on, `rate` being the counter's: as the host's clock goes, as far as the sample
    /// tells, but never behind `least_ns`.
    fn follow(sample: &Sample, rate: u64, now: u64, least_ns: u64) -> Self {
        let doubt = scale(sample.width / 2, rate);
        let host = sample.clocks.monotonic_ns + scale(now.saturating_sub(sample.tsc), rate);
        let (earliest, latest) = (host.saturating_sub(doubt), host + doubt);
        let line = Self { base_tsc: now, base_ns: least_ns.max(earliest), mult: rate };
        match least_ns.saturating_sub(latest) {
            0 => line,
            ahead if ahead > STANDSTILL_MAX_NS => Self { mult: rate / 2, ..line },
            ahead => Self { base_tsc: now + unscale(ahead, rate), ..line },
        }
    }
}

/// Nanoseconds of `ticks`.
fn scale(ticks: u64, mult: u64) -> u64 {
    u64::try_from((u128::from(ticks) * u128::from(mult)) >> SHIFT).unwrap_or(u64::MAX)
}

/// Ticks of `ns`.
fn unscale(ns: u64, mult: u64) -> u64 {
    u64::try_from((u128::from(ns) << SHIFT) / u128::from(mult.max(1))).unwrap_or(u64::MAX)
}

/// Processor time of the whole sandbox, in nanoseconds: the host's count.
pub fn host_cpu_ns() -> u64 {
    platform::call(hc::CPU_TIME, [0; 6]).unwrap_or(0)
}

/// Sets the clocks up from the host's and the estimated TSC frequency.
pub fn init(tsc_hz: u64) {
    begin(&mut WRITER.lock(), tsc_hz, 0);
}

/// Begins to measure, and sets the clocks by the host's, but never behind `least_ns`.
fn begin(meter: &mut Meter, tsc_hz: u64, least_ns: u64) {
    let sample = Sample::take();
    let rate = mult_for(tsc_hz.max(1_000_000));
    *meter = Meter::new(sample, rate);
    USED_MULT.store(rate_of_use(USED_MULT.load(Ordering::Relaxed), rate), Ordering::Relaxed);
    publish(&sample.clocks, |now| Line::follow(&sample, rate, now, least_ns));
}

/// By which rate times used are told: the known one, unless this is another counter's.
const fn rate_of_use(known: u64, rate: u64) -> u64 {
    if known.abs_diff(rate) > known >> LEAP_BITS { rate } else { known }
}

/// Sets the clocks up anew under another VMM, of a sandbox that is asleep ([`hold`]). Real time is the host's. Monotonic time goes on: with the
/// host's, unless that is behind; or, if it `stood`, from where it was.
pub fn revive(tsc_hz: u64, stood: bool) {
    let mut meter = WRITER.lock();
    let seen_ns = HELD_NS.load(Ordering::SeqCst);
    let ahead_ns = seen_ns.wrapping_sub(Sample::take().clocks.monotonic_ns);
    if stood || ahead_ns.cast_signed() > 0 {
        AHEAD_NS.fetch_add(ahead_ns, Ordering::Relaxed);
    }
    begin(&mut meter, tsc_hz, seen_ns);
}

/// The host's monotonic time at a moment of ours.
pub fn on_host(ns: u64) -> u64 {
    match ns {
        u64::MAX => ns,
        _ => at_host(ns, AHEAD_NS.load(Ordering::Relaxed)),
    }
}

/// A moment of a clock that is so far ahead, modulo 2^64, by the other one.
const fn at_host(ns: u64, ahead_ns: u64) -> u64 {
    match ahead_ns.cast_signed() {
        ahead @ 0.. => ns.saturating_sub(ahead.unsigned_abs()),
        behind => ns.saturating_add(behind.unsigned_abs()),
    }
}

fn mult_for(tsc_hz: u64) -> u64 {
    u64::try_from((u128::from(NSEC) << SHIFT) / u128::from(tsc_hz)).unwrap_or(1 << SHIFT)
}

/// Replaces the parameters. `line` is asked at the counter value from which it holds, while nobody reads.
fn publish(clocks: &HostClocks, line: impl FnOnce(u64) -> Line) {
    let shared = SHARED_PAGE.load(Ordering::Acquire) as *const ClockPage;
    let pages = || core::iter::once(&CLOCK).chain(unsafe_ref(shared));
    for page in pages() {
        page.seq.fetch_add(1, Ordering::AcqRel);
    }
    fence(Ordering::SeqCst);
    let line = line(read_tsc());
    for page in pages() {
        page.base_tsc.store(line.base_tsc, Ordering::Relaxed);
        page.base_ns.store(line.base_ns, Ordering::Relaxed);
        page.mult.store(line.mult, Ordering::Relaxed);
        page.real_offset_ns.store(clocks.realtime_ns.wrapping_sub(clocks.monotonic_ns), Ordering::Relaxed);
        page.boot_offset_ns.store(clocks.boottime_ns.wrapping_sub(clocks.monotonic_ns), Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
    for page in pages() {
        page.seq.fetch_add(1, Ordering::AcqRel);
    }
}

#[allow(unsafe_code)]
fn unsafe_ref(page: *const ClockPage) -> Option<&'static ClockPage> {
    // SAFETY: null, or the page given to `share`, which is never freed.
    unsafe { page.as_ref() }
}

/// From now on keeps a copy of the parameters at this linear-map address, for the vDSO.
pub fn share(page: u64) {
    let mut meter = WRITER.lock();
    SHARED_PAGE.store(page, Ordering::Release);
    correct(&mut meter, |ours| ours);
}

/// Corrects the parameters when the last correction is old. Called from timer work.
pub fn resync() {
    let base = CLOCK.base_ns.load(Ordering::Relaxed);
    if monotonic_ns().wrapping_sub(base) > RESYNC_NS
        && let Some(mut meter) = WRITER.try_lock()
    {
        correct(&mut meter, |ours| ours);
    }
}

/// From now on no user code runs: what the clock says until [`release`] is seen by nobody who would remember it.
pub fn hold() {
    HELD_NS.store(monotonic_ns(), Ordering::SeqCst);
}

/// User code will run again: sets the clock right, however far off it has got since the [`hold`].
pub fn release() {
    let held_ns = HELD_NS.swap(0, Ordering::SeqCst);
    if held_ns != 0 {
        correct(&mut WRITER.lock(), |_| held_ns);
    }
}

/// Sets the clock by the host's; `least_ns` says what it must not fall behind, given what it says now.
fn correct(meter: &mut Meter, least_ns: impl FnOnce(u64) -> u64) {
    let sample = Sample::take();
    let rate = meter.measure(&sample);
    let old = line();
    publish(&sample.clocks, |now| Line::follow(&sample, rate, now, least_ns(old.at(now))));
}

/// The line in use.
fn line() -> Line {
    Line {
        base_tsc: CLOCK.base_tsc.load(Ordering::Relaxed),
        base_ns: CLOCK.base_ns.load(Ordering::Relaxed),
        mult: CLOCK.mult.load(Ordering::Relaxed),
    }
}

fn at(tsc: u64) -> u64 {
    line().at(tsc)
}

fn read<T>(f: impl Fn() -> T) -> T {
    loop {
        let seq = CLOCK.seq.load(Ordering::Acquire);
        let value = f();
        fence(Ordering::Acquire);
        if seq.is_multiple_of(2) && CLOCK.seq.load(Ordering::Relaxed) == seq {
            return value;
        }
        core::hint::spin_loop();
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, the host's.
pub fn monotonic_ns() -> u64 {
    read(|| at(read_tsc()))
}

/// Nanoseconds since the epoch.
pub fn realtime_ns() -> u64 {
    read(|| at(read_tsc()).wrapping_add(CLOCK.real_offset_ns.load(Ordering::Relaxed)))
}

/// Nanoseconds of `CLOCK_BOOTTIME`.
pub fn boottime_ns() -> u64 {
    read(|| at(read_tsc()).wrapping_add(CLOCK.boot_offset_ns.load(Ordering::Relaxed)))
}

/// Real time minus monotonic time, in nanoseconds.
pub fn realtime_offset_ns() -> u64 {
    CLOCK.real_offset_ns.load(Ordering::Relaxed)
}

/// Nanoseconds of so many counter ticks, for a time that was used or took place: of the same ticks always the same.
pub fn ticks_to_ns(ticks: u64) -> u64 {
    scale(ticks, USED_MULT.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ticks a nanosecond.
    const RATE: u64 = 1 << (SHIFT - 1);

    fn seen(tsc: u64, width: u64, monotonic_ns: u64) -> Sample {
        Sample { tsc, width, clocks: HostClocks { monotonic_ns, ..HostClocks::default() } }
    }

    #[test]
    fn the_rate_is_measured_over_the_longest_time_and_only_when_it_is_known_well() {
        let mut meter = Meter::new(seen(1000, 10, 500), RATE + 7);
        // A look that took long says nothing about a short time.
        assert_eq!(meter.measure(&seen(1_001_000, 500_000, 900_500)), RATE + 7);
        assert_eq!(meter.measure(&seen(2_001_000, 10, 1_000_500)), RATE);
        assert_eq!(meter.measure(&seen(8_000_001_000, 10, 4_004_000_500)), RATE + RATE / 1000);
    }

    #[test]
    fn what_a_suspended_host_makes_of_the_rate_is_not_believed() {
        let mut meter = Meter::new(seen(0, 0, 0), RATE);
        assert_eq!(meter.measure(&seen(2_000_000, 0, 1_000_000)), RATE);
        // The counter went on, the clock did not; and from there on both do.
        assert_eq!(meter.measure(&seen(20_000_000, 0, 2_000_000)), RATE);
        assert_eq!(meter.measure(&seen(22_000_000, 0, 3_000_000)), RATE);
        // The counter began anew.
        assert_eq!(meter.measure(&seen(5000, 0, 4_000_000)), RATE);
        assert_eq!(meter.measure(&seen(2_005_000, 0, 5_000_000)), RATE);
    }

    #[test]
    fn a_clock_may_be_ahead_of_the_hosts_or_behind() {
        assert_eq!([at_host(100, 30), at_host(100, 130), at_host(100, 0)], [70, 0, 100]);
        assert_eq!(
            [at_host(100, 30_u64.wrapping_neg()), at_host(u64::MAX - 1, 9_u64.wrapping_neg())],
            [130, u64::MAX]
        );
    }

    #[test]
    fn times_used_are_told_by_one_rate_until_the_counter_is_another() {
        assert_eq!(rate_of_use(0, RATE), RATE);
        assert_eq!([RATE - RATE / 1000, RATE + RATE / 1000].map(|rate| rate_of_use(RATE, rate)), [RATE; 2]);
        assert_eq!(rate_of_use(RATE, 2 * RATE), 2 * RATE);
    }

    #[test]
    fn a_clock_that_is_behind_jumps() {
        let line = Line::follow(&seen(2000, 0, 5000), RATE, 2200, 4000);
        assert_eq!(line, Line { base_tsc: 2200, base_ns: 5100, mult: RATE });
    }

    #[test]
    fn a_clock_that_is_a_little_ahead_waits_and_goes_on_with_the_hosts() {
        let line = Line::follow(&seen(2000, 0, 5000), RATE, 2000, 5600);
        assert_eq!([line.at(2000), line.at(3100), line.at(3200), line.at(3300)], [5600, 5600, 5600, 5650]);
    }

    #[test]
    fn a_clock_that_is_far_ahead_goes_on_slowly() {
        let line = Line::follow(&seen(0, 0, 0), RATE, 0, NSEC);
        assert_eq!([line.at(0), line.at(4000)], [NSEC, NSEC + 1000]);
    }

    #[test]
    fn what_a_slow_look_leaves_open_changes_nothing() {
        for ours in [4900, 5000, 5100] {
            let line = Line::follow(&seen(2000, 400, 5000), RATE, 2000, ours);
            assert_eq!(line, Line { base_tsc: 2000, base_ns: ours, mult: RATE });
        }
    }
}
