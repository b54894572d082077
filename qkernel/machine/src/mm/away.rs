//! Pages whose content is not there: who meets one gives the space's lock back, has it come, and begins anew.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::arrival::{self, Arrival, How};
use super::page::Fault;
use super::physical::frames::Frame;
use super::physical::residency::{self, Residence};
use crate::errno::Errno;
use crate::lock_order;
use crate::sched;

/// A page whose content is not there.
pub(super) enum Away {
    /// It is stored, and claimed by the one who met it, who has what will be wanted next come, too.
    Stored { frame: Frame, arrival: Arrival, how: How, ahead: Ahead },
    /// It is on its way.
    Arriving(Frame),
    /// It is to be had once this has been called, which sleeps.
    Elsewhere(Box<dyn FnOnce()>),
}

impl Away {
    /// Of a frame that the caller has a reference to; `None`: it is there. `others` may come along.
    pub fn of(frame: Frame, others: impl Iterator<Item = Frame>, how: How) -> Option<Self> {
        if residency::residence(frame) == Residence::Absent {
            if let Some(arrival) = Arrival::claim(frame, others) {
                return Some(Self::Stored { frame, arrival, how, ahead: Ahead::default() });
            }
            if residency::residence(frame) == Residence::Absent {
                // No reference more is to be had: it comes while the caller keeps its own.
                arrival::ensure(frame);
            }
        }
        (residency::residence(frame) == Residence::Arriving).then_some(Self::Arriving(frame))
    }

    /// Has these come, too, if its content is to be fetched; or else at once.
    pub fn along_with(&mut self, others: Ahead) {
        match self {
            Self::Stored { ahead, .. } => *ahead = others,
            _ => others.begin(),
        }
    }

    /// Sleeps until the content has come. The host is asked on this CPU if no task waits for it, or content comes from memory, which is soonest.
    pub fn come(self) {
        lock_order::may_sleep();
        match self {
            Self::Stored { arrival, how, ahead, .. } if residency::is_at_once() || !sched::has_waiting() => {
                ahead.begin();
                arrival.fetch(how);
            }
            Self::Stored { frame, arrival, how, ahead } => {
                arrival.begin(how);
                ahead.begin();
                residency::wait_for(frame);
            }
            Self::Arriving(frame) => residency::wait_for(frame),
            Self::Elsewhere(fetch) => fetch(),
        }
    }
}

/// Content that will be wanted next.
#[derive(Default)]
pub(super) struct Ahead {
    pub arrivals: Vec<Arrival>,
    /// It need not come where the template shows it.
    pub is_shown: bool,
}

impl Ahead {
    /// Has the host bring it by itself.
    pub fn begin(self) {
        let how = if self.is_shown { How::ShownAhead } else { How::Ahead };
        self.arrivals.into_iter().for_each(|arrival| arrival.begin(how));
    }
}

/// Why a page cannot be reached, or not yet.
pub(super) enum Stop {
    Fault(Fault),
    /// For the address that is being touched.
    Failed(Errno),
    /// Its content is away.
    Away(Away),
}

impl From<Errno> for Stop {
    fn from(error: Errno) -> Self {
        Self::Failed(error)
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Stop {
    /// Makes an error the fault of a touch of `addr`; other reasons remain.
    pub fn at(self, addr: u64) -> Self {
        match self {
            Self::Failed(error) => Self::Fault(fault_of(error, addr)),
            other => other,
        }
    }
}

/// The signal that an error while bringing in a page becomes.
pub(super) fn fault_of(error: Errno, addr: u64) -> Fault {
    match error {
        Errno::ENOMEM => Fault::NoMemory,
        _ => Fault::Bus { addr },
    }
}
