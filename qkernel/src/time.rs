//! The clocks: monotonic and real time computed from the TSC, corrected from the host now and then.
//!
//! Kernel and vDSO use the same formula and the same parameters, so that they never disagree:
//! `ns = base_ns + ((tsc - base_tsc) * mult >> SHIFT)`.

use crate::arch::read_tsc;
use crate::platform;
use crate::sync::SpinLock;
use abi::hostcall as hc;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// Fraction bits of `mult`.
pub const SHIFT: u32 = 32;
/// How often the parameters are corrected at most.
const RESYNC_NS: u64 = 1_000_000_000;
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
static WRITER: SpinLock<()> = SpinLock::new(());

/// What the host's clocks say.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct HostClocks {
    pub monotonic_ns: u64,
    pub realtime_ns: u64,
    pub boottime_ns: u64,
    pub cpu_ns: u64,
}

/// Asks the host.
pub fn host_clocks() -> HostClocks {
    let mut clocks = HostClocks::default();
    let _ = platform::call(hc::CLOCK, [platform::phys_of(&raw mut clocks), 0, 0, 0, 0, 0]);
    clocks
}

/// Sets the clocks up from the host's and the estimated TSC frequency.
pub fn init(tsc_hz: u64) {
    let clocks = host_clocks();
    let mult = mult_for(tsc_hz.max(1_000_000));
    publish(read_tsc(), clocks.monotonic_ns, mult, &clocks);
}

fn mult_for(tsc_hz: u64) -> u64 {
    u64::try_from((u128::from(NSEC) << SHIFT) / u128::from(tsc_hz)).unwrap_or(1 << SHIFT)
}

fn publish(base_tsc: u64, base_ns: u64, mult: u64, clocks: &HostClocks) {
    let shared = SHARED_PAGE.load(Ordering::Acquire) as *const ClockPage;
    // SAFETY: the page was registered by `share` and is never freed.
    let shared = unsafe_ref(shared);
    for page in core::iter::once(&CLOCK).chain(shared) {
        page.seq.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        page.base_tsc.store(base_tsc, Ordering::Relaxed);
        page.base_ns.store(base_ns, Ordering::Relaxed);
        page.mult.store(mult, Ordering::Relaxed);
        page.real_offset_ns.store(clocks.realtime_ns.wrapping_sub(clocks.monotonic_ns), Ordering::Relaxed);
        page.boot_offset_ns.store(clocks.boottime_ns.wrapping_sub(clocks.monotonic_ns), Ordering::Relaxed);
        fence(Ordering::SeqCst);
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
    SHARED_PAGE.store(page, Ordering::Release);
    resync_now();
}

/// Corrects the parameters when the last correction is old. Called from timer work.
pub fn resync() {
    let base = CLOCK.base_ns.load(Ordering::Relaxed);
    if monotonic_ns().wrapping_sub(base) > RESYNC_NS {
        resync_now();
    }
}

fn resync_now() {
    let Some(_guard) = WRITER.try_lock() else { return };
    let before = read_tsc();
    let clocks = host_clocks();
    let tsc = before + (read_tsc() - before) / 2;
    let old_tsc = CLOCK.base_tsc.load(Ordering::Relaxed);
    let old_ns = CLOCK.base_ns.load(Ordering::Relaxed);
    let ours = at(tsc);
    let elapsed = tsc.wrapping_sub(old_tsc).max(1);
    let mut mult = CLOCK.mult.load(Ordering::Relaxed);
    let host = clocks.monotonic_ns;
    if host > old_ns && elapsed > 1_000_000 {
        // The slope since the last base, bent so that the remaining error vanishes over the next interval.
        let slope = (u128::from(host - old_ns) << SHIFT) / u128::from(elapsed);
        let slope = u64::try_from(slope).unwrap_or(mult);
        let error = i128::from(host) - i128::from(ours);
        let bend = (i128::from(slope) * error.clamp(-100_000_000, 100_000_000)) / i128::from(RESYNC_NS);
        mult = u64::try_from((i128::from(slope) + bend).max(i128::from(slope / 2))).unwrap_or(slope);
    }
    // A host that was suspended or stopped us for long: jump forward, never back.
    let base = if host > ours + 100_000_000 { host } else { ours };
    publish(tsc, base, mult, &clocks);
}

fn at(tsc: u64) -> u64 {
    let delta = tsc.wrapping_sub(CLOCK.base_tsc.load(Ordering::Relaxed));
    let delta = if delta > 1 << 63 { 0 } else { delta };
    let scaled = (u128::from(delta) * u128::from(CLOCK.mult.load(Ordering::Relaxed))) >> SHIFT;
    CLOCK.base_ns.load(Ordering::Relaxed) + u64::try_from(scaled).unwrap_or(0)
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

/// Nanoseconds of so many counter ticks.
pub fn ticks_to_ns(ticks: u64) -> u64 {
    let scaled = (u128::from(ticks) * u128::from(CLOCK.mult.load(Ordering::Relaxed))) >> SHIFT;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
