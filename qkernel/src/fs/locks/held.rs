//! The locks that the sandbox has on files on the host, as the nodes of those files keep them.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use machine::counts::Charge;
use machine::host::Handle;
use machine::sync::{Rank, SpinLock};

/// Files of which the sandbox has an exclusive lock on the host.
static EXCLUSIVE: AtomicUsize = AtomicUsize::new(0);

/// Whether the sandbox keeps others from a file that they share: then it does not fall asleep by itself.
pub fn holds_exclusive_host_lock() -> bool {
    EXCLUSIVE.load(Ordering::SeqCst) != 0
}

/// A file whose locks are the host's as well, as one view of it shows it.
pub struct HostView<'a> {
    pub locks: &'a HostLocks,
    /// By a read-only view shared locks alone become the host's, so that nobody is kept from reading.
    pub may_exclude: bool,
}

/// The locks that the sandbox has on one file on the host.
pub struct HostLocks {
    pub(super) state: SpinLock<State>,
    /// There may be a carrier.
    pub(super) is_used: AtomicBool,
}

/// An open file of the host's that holds locks, and whether it may hold exclusive ones. `writes`: it is open for writing.
pub(super) struct Carrier {
    pub(super) handle: Handle,
    pub(super) excludes: bool,
    pub(super) writes: bool,
}

#[derive(Default)]
pub(super) struct State {
    /// Of bytes.
    pub(super) records: Option<Carrier>,
    /// Of `flock(2)`.
    pub(super) whole: Option<Carrier>,
    /// The lock that `whole` holds: whether it is exclusive.
    pub(super) whole_held: Option<bool>,
    /// For each record lock of the table.
    pub(super) charges: Vec<Charge>,
    /// A piece could not be given back, so the host has more locked than it should.
    pub(super) is_stale: bool,
    /// It counts in [`EXCLUSIVE`].
    excludes: bool,
}

impl Default for HostLocks {
    fn default() -> Self {
        Self { state: SpinLock::new(Rank::HostLocks, State::default()), is_used: AtomicBool::new(false) }
    }
}

impl State {
    /// Says whether the sandbox has an exclusive lock of the file on the host.
    pub(super) fn set_excludes(&mut self, excludes: bool) {
        match (self.excludes, excludes) {
            (false, true) => _ = EXCLUSIVE.fetch_add(1, Ordering::SeqCst),
            (true, false) => _ = EXCLUSIVE.fetch_sub(1, Ordering::SeqCst),
            _ => {}
        }
        self.excludes = excludes;
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.set_excludes(false);
    }
}
