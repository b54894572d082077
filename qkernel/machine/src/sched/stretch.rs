//! Stretches of time in which the kernel computes on a CPU without letting others go on. Builds with `checks` tell of long ones.

#[cfg(feature = "checks")]
use core::sync::atomic::Ordering;

#[cfg(feature = "checks")]
use super::cpu::this_cpu;

/// This CPU begins with something else: what it does from now on is new.
#[inline]
pub(super) fn begin_stretch() {
    #[cfg(feature = "checks")]
    this_cpu().stretch_tsc.store(crate::arch::read_tsc(), Ordering::Relaxed);
}

/// How long the kernel may compute before builds with `checks` tell of it.
#[cfg(feature = "checks")]
const LONG_NS: u64 = 50_000_000;

/// Others may go on here: builds with `checks` tell if they could not for long. `place`: what was done until now.
#[inline]
pub fn end_stretch(place: impl core::fmt::Display) {
    #[cfg(feature = "checks")]
    {
        let since = this_cpu().stretch_tsc.swap(crate::arch::read_tsc(), Ordering::Relaxed);
        let ns = crate::time::ticks_to_ns(crate::arch::read_tsc().saturating_sub(since));
        if since != 0 && ns > LONG_NS {
            crate::warn!("computed for {} ms without letting others go on: {place}", ns / 1_000_000);
        }
    }
    #[cfg(not(feature = "checks"))]
    let _ = place;
}
