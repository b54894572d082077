//! Memory that programs were promised: they mapped it and may touch it at any time (`vm.overcommit_memory`).
//!
//! Mapping takes no memory, so more may be promised than there is. Each owner has a mode that says how much more, and a count
//! of the pages that were promised: those of private mappings that may be written, and shared memory without a file. Who
//! touches more than there is has the largest process killed.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::page::PAGE;
use super::physical::{frames, owners};
use crate::errno::{Errno, Result};
use crate::owner::{self, OWNERS, Owner};

/// The mode of `vm.overcommit_memory`: which promises are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Refuses what is too much beyond doubt: one mapping larger than the host's memory.
    Guess = 0,
    /// Refuses nothing.
    Always = 1,
    /// Refuses what goes beyond the limit.
    Never = 2,
}

impl Mode {
    /// The mode with this number.
    pub fn of(number: u64) -> Option<Self> {
        [Self::Guess, Self::Always, Self::Never].into_iter().find(|mode| *mode as u64 == number)
    }
}

/// The settings of an owner, and what it was promised.
struct Row {
    mode: AtomicU8,
    /// The limit of [`Mode::Never`] in hundredths of the memory, or in KiB if that is not 0.
    ratio: AtomicU32,
    kbytes: AtomicU64,
    pages: AtomicU64,
}

const RATIO: u32 = 50;

static ROWS: [Row; OWNERS] = [const {
    Row {
        mode: AtomicU8::new(Mode::Guess as u8),
        ratio: AtomicU32::new(RATIO),
        kbytes: AtomicU64::new(0),
        pages: AtomicU64::new(0),
    }
}; OWNERS];
/// The host's memory in bytes.
static HOST_BYTES: AtomicU64 = AtomicU64::new(0);

fn row(owner: Owner) -> &'static Row {
    &ROWS[usize::from(owner.number())]
}

/// Tells how much memory the host has.
pub fn init(host_bytes: u64) {
    HOST_BYTES.store(host_bytes, Ordering::Relaxed);
}

/// The number belongs to a new container: its settings are the defaults.
pub fn begin_owner(owner: Owner) {
    set_mode(owner, Mode::Guess);
    set_ratio(owner, RATIO);
}

/// See [`Mode`].
pub fn mode(owner: Owner) -> Mode {
    Mode::of(u64::from(row(owner).mode.load(Ordering::Relaxed))).unwrap_or(Mode::Guess)
}

/// See [`Mode`].
pub fn set_mode(owner: Owner, mode: Mode) {
    row(owner).mode.store(mode as u8, Ordering::Relaxed);
}

/// `vm.overcommit_ratio`.
pub fn ratio(owner: Owner) -> u32 {
    row(owner).ratio.load(Ordering::Relaxed)
}

/// Sets it; then it counts, and the number of KiB is 0.
pub fn set_ratio(owner: Owner, ratio: u32) {
    row(owner).ratio.store(ratio, Ordering::Relaxed);
    row(owner).kbytes.store(0, Ordering::Relaxed);
}

/// `vm.overcommit_kbytes`.
pub fn kbytes(owner: Owner) -> u64 {
    row(owner).kbytes.load(Ordering::Relaxed)
}

/// Sets it; then it counts, and the ratio is 0.
pub fn set_kbytes(owner: Owner, kbytes: u64) {
    row(owner).kbytes.store(kbytes, Ordering::Relaxed);
    row(owner).ratio.store(0, Ordering::Relaxed);
}

/// Bytes that an owner was promised, its parts of the sandbox's included.
pub fn promised(owner: Owner) -> u64 {
    row(owner).pages.load(Ordering::Relaxed).saturating_mul(PAGE)
}

/// Bytes that it may be promised in [`Mode::Never`].
pub fn limit(owner: Owner) -> u64 {
    let row = row(owner);
    match row.kbytes.load(Ordering::Relaxed) {
        0 => (u128::from(memory(owner)) * u128::from(row.ratio.load(Ordering::Relaxed)) / 100)
            .try_into()
            .unwrap_or(u64::MAX),
        kbytes => kbytes.saturating_mul(1024),
    }
}

/// Bytes of memory that it may have.
fn memory(owner: Owner) -> u64 {
    let sandbox = frames::limit_of_sandbox();
    owners::limit(owner).map_or(sandbox, |own| own.min(sandbox))
}

/// Whether `owner` may be promised so many pages more; `ENOMEM`.
pub fn check(owner: Owner, pages: u64) -> Result<()> {
    let most = match mode(owner) {
        Mode::Always => return Ok(()),
        Mode::Guess => HOST_BYTES.load(Ordering::Relaxed).max(memory(owner)),
        Mode::Never => limit(owner).saturating_sub(promised(owner)),
    };
    if pages <= most / PAGE { Ok(()) } else { Err(Errno::ENOMEM) }
}

/// Pages that were promised, taken back with the value.
#[derive(Debug)]
pub struct Promise {
    owner: Owner,
    pages: u64,
}

impl Promise {
    /// No pages yet.
    pub fn none(owner: Owner) -> Self {
        Self { owner, pages: 0 }
    }

    /// So many pages for the current owner; `ENOMEM`.
    pub fn of(pages: u64) -> Result<Self> {
        let owner = owner::current();
        check(owner, pages)?;
        let mut promise = Self::none(owner);
        promise.add(pages);
        Ok(promise)
    }

    /// For whom.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// So many more, whether or not they may be promised.
    pub fn add(&mut self, pages: u64) {
        self.pages = self.pages.saturating_add(pages);
        row(self.owner).pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// So many fewer.
    pub fn take_back(&mut self, pages: u64) {
        let pages = pages.min(self.pages);
        self.pages -= pages;
        row(self.owner).pages.fetch_sub(pages, Ordering::Relaxed);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.take_back(self.pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_counted_and_taken_back() {
        let owner = Owner::new(201);
        let mut promise = Promise::none(owner);
        promise.add(7);
        assert_eq!(promised(owner), 7 * PAGE);
        promise.take_back(100);
        assert_eq!(promised(owner), 0);
        promise.add(3);
        drop(promise);
        assert_eq!(promised(owner), 0);
    }

    #[test]
    fn each_mode_refuses_what_linux_refuses() {
        let owner = Owner::new(202);
        set_mode(owner, Mode::Always);
        assert_eq!(check(owner, u64::MAX), Ok(()));
        set_mode(owner, Mode::Guess);
        assert_eq!(check(owner, u64::MAX), Err(Errno::ENOMEM));
        set_mode(owner, Mode::Never);
        set_kbytes(owner, 40);
        assert_eq!((ratio(owner), limit(owner)), (0, 40 << 10));
        assert_eq!((check(owner, 10), check(owner, 11)), (Ok(()), Err(Errno::ENOMEM)));
        let mut promise = Promise::none(owner);
        promise.add(9);
        assert_eq!((check(owner, 1), check(owner, 2)), (Ok(()), Err(Errno::ENOMEM)));
        begin_owner(owner);
        assert_eq!((mode(owner), ratio(owner), kbytes(owner)), (Mode::Guess, 50, 0));
    }
}
