//! Functions of the kernel above that this crate calls, registered once at boot.

use abi::hostcall::Event;

use crate::spin::Once;

/// The kernel's answers. Each is called without a lock of this crate's held, but where it says otherwise.
pub struct Upcalls {
    /// Something happened on the host. The number is that of the round in which it was told (`host::events`).
    pub host_event: fn(&Event, u64),
    /// How far the current task's stack may grow (`RLIMIT_STACK`), in bytes. The address space is locked.
    pub stack_limit: fn() -> u64,
    /// How many bytes the current task may lock (`RLIMIT_MEMLOCK`, unless it has the capability). The address space is locked.
    pub lock_limit: fn() -> u64,
    /// Drops caches that hold kernel memory.
    pub shrink_caches: fn(),
    /// Closes handles of the host that are only kept in case they are needed again. Mutexes may be held, and spin locks are not.
    pub close_kept: fn(),
}

static UPCALLS: Once<&'static Upcalls> = Once::new();

/// Registers the kernel. The first call counts.
pub fn register(upcalls: &'static Upcalls) {
    UPCALLS.call_once(|| upcalls);
}

pub(crate) fn host_event(event: &Event, round: u64) {
    if let Some(upcalls) = UPCALLS.get() {
        (upcalls.host_event)(event, round);
    }
}

/// No limit before the kernel is registered.
pub(crate) fn stack_limit() -> u64 {
    UPCALLS.get().map_or(u64::MAX, |upcalls| (upcalls.stack_limit)())
}

/// The current task's limit of locked memory in bytes; there is none before the kernel is registered.
pub(crate) fn lock_limit() -> u64 {
    UPCALLS.get().map_or(u64::MAX, |upcalls| (upcalls.lock_limit)())
}

pub(crate) fn close_kept() {
    if let Some(upcalls) = UPCALLS.get() {
        (upcalls.close_kept)();
    }
}

pub(crate) fn shrink_caches() {
    if let Some(upcalls) = UPCALLS.get() {
        (upcalls.shrink_caches)();
    }
}
