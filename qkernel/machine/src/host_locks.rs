//! How many locked pieces of the host's files each owner has: the sandbox has some in all, which containers share.

use abi::hostcall::LOCKS_MAX;
use abi::word::to_usize;

use crate::counts::{Charge, Counts};
use crate::owner::Owner;

static COUNTS: Counts = Counts::new(to_usize(LOCKS_MAX));

/// For a piece that the host is about to be asked to lock. `None`: the current task's container has its share, or there are no more.
#[must_use]
pub fn charge() -> Option<Charge> {
    COUNTS.take()
}

/// See [`Counts::leave_to_sandbox`].
pub(crate) fn leave_to_sandbox(owner: Owner) {
    COUNTS.leave_to_sandbox(owner);
}
