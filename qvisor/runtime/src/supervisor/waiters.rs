//! Waiters for an order's outcome. The VMM does not wait for them in turn: an answer that does not fit is dropped.

use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::containers::ContainerId;
use crate::control::Figures;

/// Most of them at a time.
pub(super) const WAITERS_MAX: usize = 64;

/// The event that a waiter waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// The first program runs, or is known not to.
    Start,
    /// The memory is in its home, which came to this.
    Hibernation(Option<Figures>),
    Wake,
    /// It rests, and stays so until `resume`.
    Pause,
    /// The list of its processes.
    Processes,
    /// The figures of a container's use: the answer to the request with this number.
    Usage(u64),
    /// The checkpoint with this number.
    Checkpoint(u64),
    /// The kernel holds to a limit of memory, or does not: the answer to the request with this number.
    Limits(u32),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Waiter {
    pub peer: UnixStream,
    /// The container that was meant.
    pub of: ContainerId,
    pub what: For,
    pub since: Instant,
    pub deadline: Instant,
}

/// How an order came out.
pub(super) type Outcome = Result<Option<Figures>, String>;

impl Waiter {
    pub(super) fn hibernation_came_to(&mut self, figures: &Figures) {
        if let For::Hibernation(came_to) = &mut self.what {
            came_to.get_or_insert_with(|| figures.clone());
        }
    }

    /// Whether a later request for the opposite has made the wait vain.
    pub(super) fn is_overtaken(&self, wants_rest: bool) -> bool {
        match &self.what {
            For::Start | For::Limits(_) | For::Pause | For::Processes => false,
            For::Usage(_) | For::Checkpoint(_) => false,
            For::Hibernation(came_to) => !wants_rest && came_to.is_none(),
            For::Wake => wants_rest,
        }
    }

    /// Whether it only wants to see something.
    pub(super) fn is_look(&self) -> bool {
        matches!(self.what, For::Processes | For::Usage(_))
    }

    pub(super) fn timed_out(&self) -> &'static str {
        match self.what {
            For::Start => "it does not start",
            For::Hibernation(_) | For::Pause => "it did not come to rest",
            For::Wake | For::Limits(_) | For::Processes => "it does not answer",
            For::Usage(_) | For::Checkpoint(_) => "it does not answer",
        }
    }
}
