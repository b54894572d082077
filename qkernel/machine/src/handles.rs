//! How many handles of the VMM's each owner has. The VMM's table has a bound, which containers share.

use crate::counts::{Charge, Counts, RESERVE};
use crate::errno::{Errno, Result};
use crate::owner::Owner;

static COUNTS: Counts = Counts::new(usize::MAX);

/// Tells how many handles programs may have. Called once, before there are any but those of the boot records.
pub(crate) fn init(most: u32) {
    COUNTS.set_most(most as usize);
}

/// Open files that one process may be promised: there are as many handles, if others do not take them.
#[must_use]
pub fn most_for_one() -> u64 {
    let most = COUNTS.most();
    most.saturating_sub(4 * RESERVE).max(most / 2) as u64
}

/// Handles that programs may have in all.
#[must_use]
pub fn most() -> usize {
    COUNTS.most()
}

/// Handles in use.
#[must_use]
pub fn in_use() -> usize {
    COUNTS.total()
}

/// Handles of one owner.
#[must_use]
pub fn in_use_by(owner: Owner) -> usize {
    COUNTS.of(owner)
}

/// See [`Counts::leave_to_sandbox`].
pub(crate) fn leave_to_sandbox(owner: Owner) {
    COUNTS.leave_to_sandbox(owner);
}

/// For a handle that the current task is about to open. `ENFILE`: its container has its share, or there is none left.
pub(crate) fn charge() -> Result<Charge> {
    COUNTS.take().ok_or(Errno::ENFILE)
}

/// For a handle that the VMM has opened already.
pub(crate) fn charge_unbounded() -> Charge {
    COUNTS.unbounded()
}

/// Checks that no owner but the sandbox has any left, and that each is counted once.
///
/// # Panics
///
/// When it is not so.
#[cfg(feature = "harness")]
pub fn check_settled() {
    let all = (0..crate::owner::OWNERS).filter_map(|number| u8::try_from(number).ok()).map(Owner::new);
    for owner in all.filter(|owner| *owner != Owner::SANDBOX) {
        assert_eq!(in_use_by(owner), 0, "handles of {owner:?}");
    }
    assert_eq!(in_use_by(Owner::SANDBOX), in_use(), "handles of all owners");
}
