//! The memory that each owner has, and may have: a container's part of the sandbox's account.
//!
//! An owner's frames and kernel memory beyond an allowance stay within its limit, as the sandbox's do within the sandbox's
//! ([`super::account`]). Its kernel memory alone is bounded like the sandbox's, too, so that containers whose limits fit into
//! the sandbox's together leave each other their share of the kernel.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::account::{self, RESERVE_BYTES, uses_reserve};
use super::frame_owners;
use crate::errno::{Errno, Result};
use crate::heap;
use crate::mm::page::PAGE_BYTES;
use crate::owner::{self, OWNERS, Owner};
use crate::sched::shares;
use crate::{counts, handles, host_locks, host_watches};

/// Kernel memory that a container has beside its limit: a sixth of the sandbox's allowance.
const ALLOWANCE: usize = 8 << 20;
/// Kernel memory that nothing asked for may exceed an owner's bound by so much.
const OVERDRAFT_BYTES: usize = 4 << 20;
/// No limit but the sandbox's.
const UNLIMITED: usize = usize::MAX;

/// The account of one owner. Rows are counted up and down by several CPUs, so each has a cache line of its own.
#[repr(align(64))]
struct Row {
    is_taken: AtomicBool,
    /// Most bytes of frames, and of kernel memory beyond the allowance, together.
    limit: AtomicUsize,
    frames: AtomicUsize,
    /// The most there ever were; a few may be missed while CPUs take some at the same moment.
    frames_peak: AtomicUsize,
    /// Memory that the host keeps for the owner's objects.
    host_side: AtomicUsize,
    /// Kernel memory when caches were last dropped for this owner; 0: not since there was plenty.
    reclaimed_at: AtomicUsize,
}

static ROWS: [Row; OWNERS] = [const { Row::new() }; OWNERS];

impl Row {
    const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            limit: AtomicUsize::new(UNLIMITED),
            frames: AtomicUsize::new(0),
            frames_peak: AtomicUsize::new(0),
            host_side: AtomicUsize::new(0),
            reclaimed_at: AtomicUsize::new(0),
        }
    }

    fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Most bytes of kernel memory.
    fn kernel_limit(&self) -> usize {
        kernel_limit(self.limit())
    }

    fn count_frames(&self) -> usize {
        self.frames.load(Ordering::Relaxed)
    }

    /// Frames that fit beside so much kernel memory.
    fn frames_limit(&self, kernel: usize) -> usize {
        self.limit().saturating_sub(beyond_allowance(kernel)) / PAGE_BYTES
    }

    fn used(&self, kernel: usize) -> usize {
        self.count_frames().saturating_mul(PAGE_BYTES).saturating_add(beyond_allowance(kernel))
    }

    /// Whether `kernel` bytes of kernel memory are within the limits, which count as so much larger.
    fn fits(&self, kernel: usize, more: usize) -> bool {
        kernel <= self.kernel_limit().saturating_add(more)
            && (kernel <= ALLOWANCE.saturating_add(more)
                || self.used(kernel) <= self.limit().saturating_add(more))
    }

    /// Charges up to `wanted` frames; how many. Exact, so that no two CPUs have the last one.
    fn charge(&self, wanted: usize, kernel: usize, uses_reserve: impl FnOnce() -> bool) -> usize {
        if self.limit() == UNLIMITED {
            self.frames.fetch_add(wanted, Ordering::Relaxed);
            return wanted;
        }
        let most = self.frames_limit(kernel);
        let granted = self.charge_within(wanted, most);
        if granted == 0 && wanted > 0 && uses_reserve() {
            return self.charge_within(1, most.saturating_add(RESERVE_BYTES / PAGE_BYTES));
        }
        granted
    }

    fn charge_within(&self, wanted: usize, most: usize) -> usize {
        let mut now = self.count_frames();
        loop {
            let granted = wanted.min(most.saturating_sub(now));
            if granted == 0 {
                return 0;
            }
            let next = now + granted;
            match self.frames.compare_exchange_weak(now, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return granted,
                Err(seen) => now = seen,
            }
        }
    }

    fn note_peak(&self) {
        let now = self.count_frames();
        if now > self.frames_peak.load(Ordering::Relaxed) {
            self.frames_peak.store(now, Ordering::Relaxed);
        }
    }
}

/// Most bytes of kernel memory of an owner with such a limit.
const fn kernel_limit(limit: usize) -> usize {
    if limit == UNLIMITED { UNLIMITED } else { ALLOWANCE + limit / 4 }
}

/// The part of kernel memory that counts for the limit.
fn beyond_allowance(kernel: usize) -> usize {
    kernel.saturating_sub(ALLOWANCE)
}

fn row(owner: Owner) -> &'static Row {
    &ROWS[usize::from(owner.number())]
}

/// An owner's number, a container's as long as it lives. Afterwards what the container left behind, such as files in memory
/// that others see, is the sandbox's.
#[derive(Debug)]
pub struct OwnerLease(Owner);

impl OwnerLease {
    /// That of the sandbox itself.
    pub const fn sandbox() -> Self {
        Self(Owner::SANDBOX)
    }

    /// A number that nothing is charged to; `None`: there are as many owners as may be.
    pub fn take() -> Option<Self> {
        let free = |number: &u8| {
            let row = &ROWS[usize::from(*number)];
            row.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        for number in (1..OWNERS).filter_map(|number| u8::try_from(number).ok()).filter(free) {
            let (owner, row) = (Owner::new(number), &ROWS[usize::from(number)]);
            // Ends of the last one's tasks may have taken memory after it had left all to the sandbox. The host's memory for
            // an address space that somebody still looks at has to go first.
            leave_to_sandbox(owner);
            if is_empty(owner) {
                row.frames_peak.store(0, Ordering::Relaxed);
                row.reclaimed_at.store(0, Ordering::Relaxed);
                counts::container_begins();
                shares::begin_owner(owner);
                return Some(Self(owner));
            }
            row.is_taken.store(false, Ordering::Release);
        }
        None
    }

    pub fn owner(&self) -> Owner {
        self.0
    }

    /// Bounds it by so many bytes from its first moment on; `u64::MAX`: by the sandbox's limit alone.
    pub fn begin_with_limit(&self, bytes: u64) {
        store_limit(self.0, bytes);
    }

    /// From now on it may have so many bytes. Memory in use is not taken away: what can be dropped is dropped, and `EBUSY`
    /// says that the rest is more than that; then the old limit stays. No lock is held.
    pub fn set_limit(&self, bytes: u64) -> Result<()> {
        let most = usize::try_from(bytes).unwrap_or(UNLIMITED);
        let holds_more = || used(self.0) > bytes || kernel(self.0) > kernel_limit(most);
        if holds_more() {
            drop_caches();
            if holds_more() {
                return Err(Errno::EBUSY);
            }
        }
        store_limit(self.0, bytes);
        Ok(())
    }
}

impl Drop for OwnerLease {
    fn drop(&mut self) {
        if self.0 != Owner::SANDBOX {
            leave_to_sandbox(self.0);
            counts::container_ends();
            shares::end_owner(self.0);
            row(self.0).limit.store(UNLIMITED, Ordering::Relaxed);
            row(self.0).is_taken.store(false, Ordering::Release);
        }
    }
}

fn store_limit(owner: Owner, bytes: u64) {
    if owner != Owner::SANDBOX {
        row(owner).limit.store(usize::try_from(bytes).unwrap_or(UNLIMITED), Ordering::Relaxed);
    }
}

fn leave_to_sandbox(owner: Owner) {
    if frames(owner) != 0 {
        frame_owners::leave_to_sandbox(owner);
    }
    if heap::owned_bytes(owner) != 0 {
        heap::give_all(owner, Owner::SANDBOX);
    }
    handles::leave_to_sandbox(owner);
    host_locks::leave_to_sandbox(owner);
    host_watches::leave_to_sandbox(owner);
}

fn is_empty(owner: Owner) -> bool {
    frames(owner) == 0 && kernel(owner) == 0
}

/// Frames of an owner.
pub fn frames(owner: Owner) -> usize {
    row(owner).count_frames()
}

/// Bytes of kernel memory of an owner, with the host's memory for its objects.
pub fn kernel(owner: Owner) -> usize {
    heap::owned_bytes(owner).saturating_add(row(owner).host_side.load(Ordering::Relaxed))
}

/// Bytes that count for its limit.
pub fn used(owner: Owner) -> u64 {
    if owner == Owner::SANDBOX {
        let frames = frames(owner).saturating_mul(PAGE_BYTES);
        return frames.saturating_add(account::beyond_allowance(kernel(owner))) as u64;
    }
    row(owner).used(kernel(owner)) as u64
}

/// The most that ever counted for its limit, as far as is known: kernel memory is not looked at each time it grows.
pub fn peak(owner: Owner) -> u64 {
    let frames = row(owner).frames_peak.load(Ordering::Relaxed) * PAGE_BYTES;
    used(owner).max(frames as u64)
}

/// Its limit in bytes; `None`: it has none but the sandbox's.
pub fn limit(owner: Owner) -> Option<u64> {
    Some(row(owner).limit()).filter(|limit| *limit != UNLIMITED).map(|limit| limit as u64)
}

/// Frames that an owner may still have, as far as its own limit goes.
pub(in crate::mm) fn available(owner: Owner) -> usize {
    match row(owner) {
        row if row.limit() == UNLIMITED => usize::MAX,
        row => row.frames_limit(kernel(owner)).saturating_sub(row.count_frames()),
    }
}

/// Charges an owner for up to `wanted` frames that the current task is about to allocate; how many it may have.
pub(in crate::mm) fn charge_frames(owner: Owner, wanted: usize) -> usize {
    let row = row(owner);
    // Without a limit its kernel memory does not matter.
    let kernel = if row.limit() == UNLIMITED { 0 } else { kernel(owner) };
    row.charge(wanted, kernel, uses_reserve)
}

/// Whether the current task would get a frame, as far as its owner's limit goes.
pub(in crate::mm) fn would_get_frame(owner: Owner) -> bool {
    let charged = charge_frames(owner, 1);
    uncharge_frames(owner, charged);
    charged == 1
}

/// Notes the owner's peak, once the frames that it was charged for have been allocated.
pub(in crate::mm) fn note_peak(owner: Owner) {
    row(owner).note_peak();
}

/// See [`charge_frames`].
pub(in crate::mm) fn uncharge_frames(owner: Owner, count: usize) {
    if count != 0 {
        row(owner).frames.fetch_sub(count, Ordering::Relaxed);
    }
}

pub(in crate::mm) fn give_frame(from: Owner, to: Owner) {
    row(to).frames.fetch_add(1, Ordering::Relaxed);
    row(from).frames.fetch_sub(1, Ordering::Relaxed);
}

/// The host keeps so much more for an owner's objects.
pub(in crate::mm) fn add_host_side(owner: Owner, bytes: usize) {
    row(owner).host_side.fetch_add(bytes, Ordering::Relaxed);
}

pub(in crate::mm) fn remove_host_side(owner: Owner, bytes: usize) {
    row(owner).host_side.fetch_sub(bytes, Ordering::Relaxed);
}

/// Whether the current owner may have `bytes` more of kernel memory, as far as its own limit goes.
pub(in crate::mm) fn fits(bytes: usize) -> bool {
    let owner = owner::current();
    if row(owner).limit() == UNLIMITED {
        return true;
    }
    let wanted = kernel(owner).saturating_add(bytes);
    row(owner).fits(wanted, 0) || (uses_reserve() && row(owner).fits(wanted, RESERVE_BYTES))
}

/// Whether the current owner may have `bytes` more of kernel memory, `more` beyond its own limit.
pub(in crate::mm) fn fits_beyond(bytes: usize, more: usize) -> bool {
    let owner = owner::current();
    row(owner).limit() == UNLIMITED || row(owner).fits(kernel(owner).saturating_add(bytes), more)
}

/// Whether three quarters of the current owner's kernel memory hold `bytes` more.
pub(in crate::mm) fn fits_lasting(bytes: usize) -> bool {
    let owner = owner::current();
    let most = row(owner).kernel_limit();
    most == UNLIMITED || kernel(owner).saturating_add(bytes) <= most - most / 4
}

/// Whether kernel memory that nothing asked for has grown beyond the current owner's bound.
pub(in crate::mm) fn is_overdrawn() -> bool {
    let owner = owner::current();
    let row = row(owner);
    row.limit() != UNLIMITED && kernel(owner) > row.kernel_limit().saturating_add(OVERDRAFT_BYTES)
}

/// While the current owner is short of memory, drops caches, which may hold some of it.
pub(in crate::mm) fn relieve() {
    let owner = owner::current();
    let row = row(owner);
    let limit = row.limit();
    if limit == UNLIMITED {
        return;
    }
    let (kernel, bound) = (kernel(owner), kernel_limit(limit));
    let is_short = kernel > bound - bound / 8 || (kernel > ALLOWANCE && row.used(kernel) > limit - limit / 8);
    if !is_short {
        row.reclaimed_at.store(0, Ordering::Relaxed);
    } else if kernel > row.reclaimed_at.load(Ordering::Relaxed).saturating_add(bound / 64) {
        drop_caches();
        row.reclaimed_at.store(self::kernel(owner), Ordering::Relaxed);
    }
}

fn drop_caches() {
    crate::upcall::shrink_caches();
    crate::sched::stack::trim();
}

/// Checks that no owner but the sandbox has anything left, and that all that is allocated has an owner.
///
/// # Panics
///
/// When it is not so.
#[cfg(feature = "harness")]
pub fn check_settled() {
    let all = (0..OWNERS).filter_map(|number| u8::try_from(number).ok()).map(Owner::new);
    for owner in all.clone().filter(|owner| *owner != Owner::SANDBOX) {
        assert_eq!((frames(owner), kernel(owner)), (0, 0), "frames and kernel memory of {owner:?}");
        assert!(!row(owner).is_taken.load(Ordering::Relaxed), "{owner:?} is taken");
    }
    assert_eq!(all.clone().map(frames).sum::<usize>(), super::frames::in_use(), "frames of all owners");
    assert_eq!(all.map(kernel).sum::<usize>(), account::SANDBOX.charged(), "kernel memory of all owners");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const MIB: usize = 1 << 20;

    fn row_with(limit: usize, frames: usize) -> Row {
        let row = Row::new();
        row.limit.store(limit, Ordering::Relaxed);
        row.frames.store(frames, Ordering::Relaxed);
        row
    }

    #[test]
    fn the_last_frame_is_one_cpus_alone() {
        let row = row_with(4 * MIB, 0);
        let charged = std::thread::scope(|scope| {
            let take = || {
                (0..).map(|at| row.charge(1 + at % 7, 0, || false)).take_while(|got| *got > 0).sum::<usize>()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        assert_eq!((charged, row.count_frames()), (1024, 1024));
    }

    #[test]
    fn frames_and_kernel_memory_share_the_limit() {
        let row = row_with(64 * MIB, 0);
        assert_eq!(row.frames_limit(ALLOWANCE), 64 * MIB / PAGE_BYTES);
        assert_eq!(row.frames_limit(ALLOWANCE + 4 * MIB), 60 * MIB / PAGE_BYTES);
        // By itself kernel memory is bounded, too.
        assert!(row.fits(24 * MIB, 0) && !row.fits(24 * MIB + 1, 0));
        let row = row_with(64 * MIB, 64 * MIB / PAGE_BYTES);
        assert!(row.fits(ALLOWANCE, 0) && !row.fits(ALLOWANCE + 1, 0) && row.fits(ALLOWANCE + 1, MIB));
    }

    #[test]
    fn the_reserve_is_one_frame_at_a_time() {
        let row = row_with(MIB, MIB / PAGE_BYTES);
        assert_eq!(row.charge(9, 0, || false), 0);
        let taken = (0..).map(|_| row.charge(9, 0, || true)).take_while(|got| *got == 1).count();
        assert_eq!(taken, RESERVE_BYTES / PAGE_BYTES);
    }

    #[test]
    fn without_a_limit_all_is_granted() {
        let row = row_with(UNLIMITED, 0);
        assert_eq!(row.charge(512, usize::MAX / 2, || false), 512);
        assert!(row.fits(usize::MAX / 2, 0));
        assert_eq!(kernel_limit(UNLIMITED), UNLIMITED);
    }

    #[test]
    fn a_number_is_used_again_once_nothing_is_charged_to_it() {
        let first = OwnerLease::take().unwrap();
        let owner = first.owner();
        first.begin_with_limit(5);
        add_host_side(owner, 7);
        drop(first);
        assert_eq!(limit(owner), None);
        let all: Vec<_> = std::iter::from_fn(OwnerLease::take).collect();
        assert_eq!(all.len(), OWNERS - 2, "all but the sandbox's and the one with something left");
        assert!(all.iter().all(|lease| ![owner, Owner::SANDBOX].contains(&lease.owner())));
        remove_host_side(owner, 7);
        assert_eq!(OwnerLease::take().unwrap().owner(), owner);
    }
}
