//! Content on its way: what the host is asked to bring back, and what becomes of it when it has come.
//!
//! An [`Arrival`] is a claim on absent frames (`super::physical::residency`) together with a reference to each, so that munmap(2),
//! exit or exec meanwhile release nothing that the host still writes to: the frame is freed when it has landed.

use abi::hostcall as hc;
use alloc::boxed::Box;
use alloc::vec::Vec;

use super::physical::frames::{self, Frame, FrameRef};
use super::physical::residency::{self, Landed, Residence};
use super::touches;
use crate::errno::Result;
use crate::host;
use crate::in_flight;
use crate::lock_order;
use crate::platform;

/// Which of the frames the host brings back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// The first, and those of the others that cost next to nothing.
    Around,
    All,
    /// All: the working set of a wake.
    Set,
    /// All, for which nobody waits yet.
    Ahead,
    /// Of each that the template has, only that it is shown, and others as around the first.
    Shown,
    /// Of each that the template has, only that it is shown, and all others.
    ShownAll,
    /// The same, for which nobody waits yet.
    ShownAhead,
}

impl How {
    const fn word(self) -> u64 {
        match self {
            Self::Around => hc::SWAP_IN_AROUND,
            Self::All => hc::SWAP_IN_ALL,
            Self::Set => hc::SWAP_IN_SET,
            Self::Ahead => hc::SWAP_IN_AHEAD,
            Self::Shown => hc::SWAP_IN_SHOWN,
            Self::ShownAll => hc::SWAP_IN_SHOWN_ALL,
            Self::ShownAhead => hc::SWAP_IN_SHOWN_AHEAD,
        }
    }
}

/// Frames that were claimed. Dropped before the host is asked, it gives the claims back.
pub(super) struct Arrival {
    /// Their numbers.
    claimed: Vec<u32>,
    /// The frames' numbers again, for the host, which overwrites those that do not come, or are shown.
    list: Vec<u32>,
    /// References that are held until the frames have landed.
    held: Vec<FrameRef>,
}

impl Arrival {
    /// Claims `first`, and those of `others` that are absent, too. `None`: `first` is not to be had, as it is not absent any
    /// more, there is no kernel memory, or its references are full.
    pub fn claim(first: Frame, others: impl Iterator<Item = Frame>) -> Option<Self> {
        let arrival = Self::claim_all(core::iter::once(first).chain(others))?;
        (arrival.claimed.first().copied() == frames::index(first)).then_some(arrival)
    }

    /// Claims those of `wanted` that are absent; `None`: none is.
    pub fn claim_all(wanted: impl Iterator<Item = Frame>) -> Option<Self> {
        Self::made(wanted.filter_map(frames::index), |index| {
            FrameRef::share(frames::at(index)).ok().map(Some)
        })
    }

    /// Claims a frame to which the caller has a reference and keeps it.
    pub fn of_held(frame: Frame) -> Option<Self> {
        Self::made(frames::index(frame).into_iter(), |_| Some(None))
    }

    /// Claims frames as [`Self::claim_all`] does, by number and without references: no task runs that could release
    /// one.
    fn of_set(list: impl Iterator<Item = u32>) -> Option<Self> {
        Self::made(list, |_| Some(None))
    }

    fn made(
        wanted: impl Iterator<Item = u32>,
        holds: impl Fn(u32) -> Option<Option<FrameRef>>,
    ) -> Option<Self> {
        let is_absent = |index: &u32| residency::residence(frames::at(*index)) == Residence::Absent;
        let mut list = Vec::new();
        for index in wanted.filter(is_absent) {
            list.try_reserve(1).ok()?;
            list.push(index);
        }
        let mut arrival = Self { claimed: Vec::new(), list: Vec::new(), held: Vec::new() };
        // Before the lock: nothing may fail under it.
        arrival.claimed.try_reserve_exact(list.len()).ok()?;
        arrival.held.try_reserve_exact(list.len()).ok()?;
        residency::claim(list.iter().copied(), holds, |index, held| {
            arrival.claimed.push(index);
            arrival.held.extend(held);
        });
        list.clear();
        list.extend_from_slice(&arrival.claimed);
        arrival.list = list;
        (!arrival.claimed.is_empty()).then_some(arrival)
    }

    /// Has the host bring the content back at once; this CPU waits for it.
    pub fn fetch(mut self, how: How) {
        lock_order::may_sleep();
        self.fetch_now(how);
    }

    fn fetch_now(&mut self, how: How) {
        let args = [platform::phys_of(self.list.as_mut_ptr()), self.list.len() as u64, how.word(), 0, 0, 0];
        if platform::call(hc::SWAP_IN, args).is_err() {
            host::die("stored pages do not come back");
        }
        self.land(true);
    }

    /// Has the host bring the content back by itself.
    pub fn begin(mut self, how: How) {
        let args = [platform::phys_of(self.list.as_mut_ptr()), self.list.len() as u64, how.word()];
        let landed = move |result: i64| match result {
            0.. => self.land(true),
            // This way an error ends the sandbox, and says why.
            _ => self.fetch_now(how),
        };
        if let Err((_, landed)) = in_flight::submit(hc::ASYNC_SWAP_IN, args, Box::new(landed)) {
            landed(-1);
        }
    }

    /// Ends the claim of one frame, whose content `copy` brings. No host is asked.
    pub fn fill(mut self, copy: impl FnOnce() -> Result<()>) -> Result<()> {
        let copied = copy();
        self.land(copied.is_ok());
        copied
    }

    fn land(&mut self, came: bool) {
        let claimed = core::mem::take(&mut self.claimed);
        let landed = |(index, told): (&u32, &u32)| match *told {
            _ if !came => (*index, Landed::Not),
            told if told == *index => (*index, Landed::Came),
            told if told == *index | hc::SHOWN => (*index, Landed::Shown),
            _ => (*index, Landed::Not),
        };
        residency::land(claimed.iter().zip(&self.list).map(landed));
        // Before anybody wakes: a frame with a reference too many is copied when it is written.
        self.held.clear();
        residency::wake(claimed.into_iter());
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if !self.claimed.is_empty() {
            self.land(false);
        }
    }
}

/// Brings the frame's content back if it is elsewhere. The caller holds a reference to the frame, and may sleep. There is
/// no error: a page that cannot come back ends the sandbox.
pub(super) fn ensure(frame: Frame) {
    lock_order::may_sleep();
    while residency::residence(frame) != Residence::Resident {
        match Arrival::of_held(frame) {
            Some(arrival) => arrival.fetch(How::All),
            None => residency::wait_for(frame),
        }
    }
    touched(frame);
}

/// A system call, or another mapping, has reached the frame without an entry.
pub(super) fn touched(frame: Frame) {
    residency::first_touch(frame).iter().for_each(|index| touches::touched_in_store(*index));
}

/// Claims those of a list that are absent and not shown.
fn claim_set(list: &[u32], alone: bool) -> Option<Arrival> {
    let wanted = list.iter().copied().filter(|index| !residency::is_shown(frames::at(*index)));
    if alone { Arrival::of_set(wanted) } else { Arrival::claim_all(wanted.map(frames::at)) }
}

/// Has the host say which of a list's frames the template shows, and bring no others but what comes along.
pub(super) fn show_set(list: &[u32], alone: bool) {
    if let Some(mut arrival) = claim_set(list, alone) {
        arrival.fetch_now(How::Shown);
    }
}

/// Brings those of a part of the working set back that are absent, with one call to the host, on this CPU. `alone`: no task
/// runs, and all of them are to come, as their entries may be present already.
pub(super) fn bring_set(list: &[u32], alone: bool) {
    if let Some(mut arrival) = claim_set(list, alone) {
        arrival.fetch_now(How::Set);
    }
    let is_missing = |index: &u32| {
        let frame = frames::at(*index);
        residency::is_swapped(frame) && !residency::is_shown(frame)
    };
    if alone && list.iter().any(is_missing) {
        host::die("the working set did not come back");
    }
}
