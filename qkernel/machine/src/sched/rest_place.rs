//! The place at which a task rests. Who takes which step, [`super::rest`] says.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::platform;

pub(super) const NOWHERE: u32 = 0;
pub(super) const FETCHED: u32 = 1 << 31;

/// Where a task rests.
pub(super) struct Rest(AtomicU32);

impl Rest {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(NOWHERE))
    }

    /// The CPU that it rests on, or is being fetched from.
    pub(super) fn cpu(&self) -> Option<usize> {
        let place = self.0.load(Ordering::SeqCst) & !FETCHED;
        (place != NOWHERE).then(|| place as usize - 1)
    }

    pub(super) fn is_fetched(&self) -> bool {
        self.0.load(Ordering::SeqCst) & FETCHED != 0
    }

    /// Puts it to a place. For whoever alone may take it from where it is.
    pub(super) fn set(&self, to: u32) {
        self.0.store(to, Ordering::SeqCst);
    }

    /// Steps from one place to another; false: it is not at the first.
    pub(super) fn step(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Waits until it is fetched from the CPU. It may rest on another then.
    pub(super) fn wait_until_off(&self, cpu: usize) {
        while self.cpu() == Some(cpu) {
            // Who fetches waits for a thread of the host's, perhaps on this core.
            platform::relax();
        }
    }
}

/// The place of a task that rests on a CPU.
pub(super) fn place_on(cpu: usize) -> u32 {
    u32::try_from(cpu + 1).unwrap_or(NOWHERE)
}
