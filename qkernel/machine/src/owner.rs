//! Owners of memory: the containers of a sandbox. What a CPU takes belongs to the owner of the task that it runs.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::{arch, platform};

/// Owners there may be at a time, the sandbox itself included. One number fewer than a byte has: see `mm::physical::frame_owners`.
pub const OWNERS: usize = 255;

/// An owner, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner(u8);

impl Owner {
    /// The sandbox's first container, the kernel itself, and what containers leave behind that have ended.
    pub const SANDBOX: Self = Self(0);

    /// The owner with this number, which is less than [`OWNERS`].
    pub(crate) const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The owner for which a CPU takes memory. Written and read by this CPU alone.
#[repr(align(64))]
struct Slot {
    owner: AtomicU8,
    /// Its task may go into the reserves.
    uses_reserve: AtomicBool,
}

static CURRENT: [Slot; abi::layout::MAX_CPUS as usize] =
    [const { Slot { owner: AtomicU8::new(0), uses_reserve: AtomicBool::new(false) } };
        abi::layout::MAX_CPUS as usize];

/// Whose the memory is that this CPU takes.
#[inline]
pub fn current() -> Owner {
    // Before there are CPUs, as in unit tests, there are no containers.
    if platform::is_ready() {
        Owner(CURRENT[arch::cpu_index()].owner.load(Ordering::Relaxed))
    } else {
        Owner::SANDBOX
    }
}

/// From now on this CPU takes memory for `owner`.
pub(crate) fn set_current(owner: Owner) {
    CURRENT[arch::cpu_index()].owner.store(owner.0, Ordering::Relaxed);
}

/// Whether the task that this CPU runs came in from outside, and so may go into the reserves.
pub(crate) fn uses_reserve() -> bool {
    platform::is_ready() && CURRENT[arch::cpu_index()].uses_reserve.load(Ordering::Relaxed)
}

/// See [`uses_reserve`].
pub(crate) fn set_uses_reserve(may: bool) {
    CURRENT[arch::cpu_index()].uses_reserve.store(may, Ordering::Relaxed);
}
