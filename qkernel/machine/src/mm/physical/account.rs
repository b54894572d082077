//! The account of kernel memory: what programs make the kernel keep is bounded, together with their own memory.
//!
//! The charge is for the memory that the heap has handed out, by whole pages, so that nothing is forgotten and fragments
//! count; and for the host's memory for the guest's objects (a stub's page tables, its process). Three rules make an
//! allocation behind a charge never fail:
//! 1. Whatever a program can make many of, or can choose the size of, asks [`Account::check`] first and answers `ENOMEM`,
//!    or goes through the fallible helpers below.
//! 2. No other allocation is larger than a few pages, and a system call makes few of them; one that finds the account
//!    overdrawn does not begin ([`Account::is_overdrawn`]), unless it gives memory back.
//! 3. The heap is at least four times as large as the limit (`abi::layout::kernel_bytes`; only what is touched costs
//!    memory), so there is room for what all tasks together allocate between two checks, and for fragments.
//!
//! Each charge is also one to the container for which it is made ([`super::owners`]), and has to fit both.

use abi::layout::{KERNEL_ALLOWANCE, kernel_limit};
use abi::word::to_usize;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::{frames, owners};
use crate::errno::{Errno, Result};
use crate::heap::{self, HEAP};
use crate::mm::page::PAGE_BYTES;
use crate::owner::{self, Owner};
use crate::platform;
use crate::time;

/// Beyond the limits, for processes that come in from outside: one can look at, and end, a sandbox that is full.
pub const RESERVE_BYTES: usize = 8 << 20;
/// Beyond the limits, for names that are looked up. They can be dropped again, and who removes files while memory is full has to
/// find them.
const NAMES_BYTES: usize = 1 << 20;
/// Caches are dropped for such names this often at most.
const DROP_EVERY_NS: u64 = 20_000_000;
/// Free pages the host still backs, from which on they are given back while memory is short.
const TRIM_BYTES: usize = 8 << 20;
/// Requests up to this size need no look at the account in the helpers.
const SMALL_BYTES: usize = 4096;
/// Who has less than that left may be the one for whom a page fault or a small request finds no memory.
const SHORT_BYTES: usize = 64 << 10;
const SHORT_FRAMES: usize = 64;
/// A stub process on the host: its kernel stacks, page tables and descriptions.
pub const STUB_BYTES: usize = 128 << 10;

/// Kernel memory charged to one sandbox.
pub struct Account {
    /// Most bytes of it.
    limit: AtomicUsize,
    /// Most bytes of applications' memory and of kernel memory beyond the allowance, together.
    memory: AtomicUsize,
    /// Memory that the host keeps for the guest's objects.
    host_side: AtomicUsize,
    /// Bytes charged when caches were last dropped; 0: not since there was plenty.
    reclaimed_at: AtomicUsize,
    is_reclaiming: AtomicBool,
    /// No earlier are caches dropped for names.
    drop_at_ns: AtomicU64,
    /// Bytes of what stays when the processes that made it are gone.
    lasting: AtomicUsize,
}

/// Bytes of kernel memory that something holds which outlives processes: a file in memory, its names and attributes.
#[derive(Debug, Default)]
pub struct Charge(usize);

impl Charge {
    /// Charges the sandbox; `ENOSPC`. Such things may take half of what there is, so that ending processes always helps
    /// the other half. They never take the last quarter of what the container may have.
    pub fn lasting(bytes: usize) -> Result<Self> {
        check(bytes).map_err(|_| Errno::ENOSPC)?;
        if !owners::fits_lasting(bytes) {
            return Err(Errno::ENOSPC);
        }
        let most = SANDBOX.limit() / 2;
        let add = |now: usize| now.checked_add(bytes).filter(|now| *now <= most);
        let added = SANDBOX.lasting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.map(|_| Self(bytes)).map_err(|_| Errno::ENOSPC)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        SANDBOX.lasting.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The sandbox's account.
pub static SANDBOX: Account = Account::new();

impl Account {
    /// Without limits, until it is opened.
    pub const fn new() -> Self {
        Self {
            limit: AtomicUsize::new(usize::MAX),
            memory: AtomicUsize::new(usize::MAX),
            host_side: AtomicUsize::new(0),
            reclaimed_at: AtomicUsize::new(0),
            is_reclaiming: AtomicBool::new(false),
            drop_at_ns: AtomicU64::new(0),
            lasting: AtomicUsize::new(0),
        }
    }

    /// Sets the limits of a sandbox whose applications may have `memory_bytes`.
    pub fn open(&self, memory_bytes: u64) {
        let bytes = |value| usize::try_from(value).unwrap_or(usize::MAX);
        let quarter = HEAP.stats().total_bytes / 4;
        self.limit.store(bytes(kernel_limit(memory_bytes)).min(quarter), Ordering::Relaxed);
        self.memory.store(bytes(memory_bytes), Ordering::Relaxed);
    }

    /// Bytes charged now.
    pub fn charged(&self) -> usize {
        HEAP.used_bytes().saturating_add(self.host_side.load(Ordering::Relaxed))
    }

    /// Most bytes that may be charged.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Whether `bytes` more of kernel memory may be taken, as far as this account goes.
    fn has_room(&self, bytes: usize) -> bool {
        let fits = |more: usize| self.fits(bytes, frames::in_use(), more);
        fits(0) || (uses_reserve() && fits(RESERVE_BYTES))
    }

    fn fits(&self, bytes: usize, frames: usize, more: usize) -> bool {
        let kernel = self.charged().saturating_add(bytes);
        let limit = self.limit().saturating_add(more);
        let memory = self.memory.load(Ordering::Relaxed).saturating_add(more);
        let both = beyond_allowance(kernel).saturating_add(frames.saturating_mul(PAGE_BYTES));
        kernel <= limit && (kernel <= ALLOWANCE.saturating_add(more) || both <= memory)
    }

    /// Frames that applications may have, as far as kernel memory leaves them.
    pub fn frames_limit(&self) -> usize {
        let memory = self.memory.load(Ordering::Relaxed);
        memory.saturating_sub(beyond_allowance(self.charged())) / PAGE_BYTES
    }

    /// Bytes that count for the limit of memory: the frames of applications, and kernel memory beyond its allowance.
    pub fn used(&self) -> u64 {
        let both =
            frames::in_use().saturating_mul(PAGE_BYTES).saturating_add(beyond_allowance(self.charged()));
        both as u64
    }

    fn add_host_side(&self, bytes: usize) {
        self.host_side.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove_host_side(&self, bytes: usize) {
        self.host_side.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether kernel memory that nothing asked for has grown beyond the limit and the reserve: only calls that give
    /// memory back go on, and the largest process is killed.
    fn is_overdrawn(&self) -> bool {
        self.charged() > self.limit().saturating_add(2 * RESERVE_BYTES)
    }

    /// See [`relieve`].
    fn relieve(&self) {
        let (charged, limit) = (self.charged(), self.limit());
        let high = limit - limit / 8;
        if charged.saturating_add(HEAP.dirty_free_bytes()) <= high {
            return;
        }
        if charged <= high {
            self.reclaimed_at.store(0, Ordering::Relaxed);
        }
        let grown = charged > self.reclaimed_at.load(Ordering::Relaxed).saturating_add(limit / 64);
        let drops = charged > high && grown;
        let trims = HEAP.dirty_free_bytes() > TRIM_BYTES;
        if !(drops || trims) || self.is_reclaiming.swap(true, Ordering::Acquire) {
            return;
        }
        if drops {
            crate::upcall::shrink_caches();
            crate::sched::stack::trim();
            self.reclaimed_at.store(self.charged(), Ordering::Relaxed);
        }
        if trims {
            heap::trim();
        }
        self.is_reclaiming.store(false, Ordering::Release);
    }
}

impl Default for Account {
    fn default() -> Self {
        Self::new()
    }
}

const ALLOWANCE: usize = to_usize(KERNEL_ALLOWANCE);

/// The part of kernel memory that counts as the applications'.
pub(in crate::mm) fn beyond_allowance(kernel: usize) -> usize {
    kernel.saturating_sub(ALLOWANCE)
}

/// Whether the current task may go into the reserve.
pub fn uses_reserve() -> bool {
    platform::is_ready() && crate::sched::current().sched().uses_reserve()
}

/// Whether the current task may take `bytes` more of kernel memory: by its owner's limit, and by the sandbox's. `ENOMEM`.
/// Whoever asks allocates them at once.
pub fn check(bytes: usize) -> Result<()> {
    if owners::fits(bytes) && SANDBOX.has_room(bytes) { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// Checks as [`check`] does, but for a name in the cache, which may exceed the limits by `NAMES_BYTES`: once that is used up
/// the caches are shrunk, and names are dropped with the rest.
pub fn check_name(bytes: usize) -> Result<()> {
    let fits =
        || owners::fits_beyond(bytes, NAMES_BYTES) && SANDBOX.fits(bytes, frames::in_use(), NAMES_BYTES);
    if fits() || check(bytes).is_ok() {
        return Ok(());
    }
    let (now, at) = (time::monotonic_ns(), SANDBOX.drop_at_ns.load(Ordering::Relaxed));
    let next = now.saturating_add(DROP_EVERY_NS);
    let is_first =
        || SANDBOX.drop_at_ns.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if now >= at && is_first() {
        crate::upcall::shrink_caches();
    }
    if fits() { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// The host keeps so much more for an owner's objects.
pub(in crate::mm) fn add_host_side(owner: Owner, bytes: usize) {
    SANDBOX.add_host_side(bytes);
    owners::add_host_side(owner, bytes);
}

/// See [`add_host_side`].
pub(in crate::mm) fn remove_host_side(owner: Owner, bytes: usize) {
    SANDBOX.remove_host_side(bytes);
    owners::remove_host_side(owner, bytes);
}

/// Whether kernel memory that nothing asked for has grown beyond a limit and the reserve, the current owner's or the sandbox's:
/// only calls that give memory back go on, and the largest process is killed.
pub fn is_overdrawn() -> bool {
    SANDBOX.is_overdrawn() || owners::is_overdrawn()
}

/// Called between a task's system calls, with no lock held. While memory is short, drops caches and gives free pages
/// back to the host, so that what the host backs stays near what is charged.
pub fn relieve() {
    owners::relieve();
    SANDBOX.relieve();
}

/// Whose limit leaves the current task nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// Its owner's alone, or nobody's any more.
    Owner,
    /// The sandbox's.
    Sandbox,
    /// Nobody's any more: what was short has come back.
    Over,
}

/// See [`Shortage`]. Only if the owner has memory left and the sandbox has not is it the sandbox's.
pub fn shortage() -> Shortage {
    let is_owners = !owners::fits(SHORT_BYTES) || owners::available(owner::current()) < SHORT_FRAMES;
    let is_sandboxes = !SANDBOX.has_room(SHORT_BYTES) || frames::available_to_all() < SHORT_FRAMES;
    match (is_owners, is_sandboxes) {
        (true, _) => Shortage::Owner,
        (false, true) => Shortage::Sandbox,
        (false, false) => Shortage::Over,
    }
}

/// An empty vector with room for `len` values.
pub fn vec<T>(len: usize) -> Result<Vec<T>> {
    let bytes = len.checked_mul(size_of::<T>()).ok_or(Errno::ENOMEM)?;
    if bytes > SMALL_BYTES {
        check(bytes)?;
    }
    let mut vec = Vec::new();
    vec.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    Ok(vec)
}

/// `len` times `value`.
pub fn filled<T: Clone>(value: T, len: usize) -> Result<Vec<T>> {
    let mut vec = vec(len)?;
    vec.resize(len, value);
    Ok(vec)
}

/// Collects an iterator's values, `len` at most.
pub fn collect<T>(len: usize, iter: impl Iterator<Item = T>) -> Result<Vec<T>> {
    let mut vec = vec(len)?;
    vec.extend(iter.take(len));
    Ok(vec)
}

/// Makes room for `more` values at the end.
pub fn reserve<T>(vec: &mut Vec<T>, more: usize) -> Result<()> {
    let len = vec.len().checked_add(more).ok_or(Errno::ENOMEM)?;
    if len <= vec.capacity() {
        return Ok(());
    }
    let bytes = len.checked_mul(2 * size_of::<T>()).ok_or(Errno::ENOMEM)?;
    if bytes > SMALL_BYTES {
        check(bytes)?;
    }
    vec.try_reserve(more).map_err(|_| Errno::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn account(limit: usize, memory: usize, charged: usize) -> Account {
        let account = Account::new();
        account.limit.store(limit, Ordering::Relaxed);
        account.memory.store(memory, Ordering::Relaxed);
        account.add_host_side(charged);
        account
    }

    #[test]
    fn what_reaches_the_limit_is_refused_whatever_its_size() {
        let account = account(10 * MIB, 64 * MIB, 9 * MIB);
        assert!(account.has_room(MIB));
        for bytes in [MIB + 1, usize::MAX - MIB, usize::MAX] {
            assert!(!account.has_room(bytes));
        }
        account.remove_host_side(9 * MIB);
        assert!(account.has_room(10 * MIB));
    }

    #[test]
    fn beyond_the_allowance_kernel_memory_is_taken_from_the_applications() {
        let account = account(ALLOWANCE + 64 * MIB, 64 * MIB, ALLOWANCE);
        let frames = |mib: usize| mib * MIB / PAGE_BYTES;
        assert_eq!(account.frames_limit(), frames(64));
        // Applications have all there is: the allowance is the kernel's nevertheless.
        assert!(account.fits(0, frames(64), 0) && !account.fits(1, frames(64), 0));
        assert!(account.fits(16 * MIB, frames(48), 0) && !account.fits(16 * MIB + 1, frames(48), 0));
        account.add_host_side(16 * MIB);
        assert_eq!(account.frames_limit(), frames(48));
    }

    #[test]
    fn vectors_of_absurd_length_are_refused() {
        for len in [usize::MAX, usize::MAX / 8, isize::MAX as usize] {
            assert_eq!(vec::<u64>(len).unwrap_err(), Errno::ENOMEM);
            assert_eq!(reserve(&mut Vec::<u64>::new(), len), Err(Errno::ENOMEM));
        }
        assert_eq!(filled(7u8, 3).unwrap(), [7; 3]);
        assert_eq!(collect(2, 1..9).unwrap(), [1, 2]);
    }
}
