//! The threads' state on its way from one VMM to the next.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::{Arm, EventSink, IoThreads, Sets, Shared};
use crate::errno::Errno;
use crate::handover::{HandOverError, Placed};
use crate::hostcall::file::FileTable;

/// The threads' state for the next VMM: their descriptors by number, and who waits.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::hostcall) struct IoPlan {
    epoll: RawFd,
    idle: RawFd,
    edges: RawFd,
    wake: RawFd,
    kick: RawFd,
    generation: u32,
    watches: bool,
    arms: Vec<ArmPlan>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArmPlan {
    handle: u32,
    generation: u32,
    token: u64,
    waits: bool,
}

/// Threads that have ended, whose state is left to the next VMM.
pub(in crate::hostcall) struct IoLeft<'t> {
    shared: &'t Shared,
    generation: u32,
    watches: bool,
}

impl IoLeft<'_> {
    /// The plan for it.
    pub fn plan(&self) -> IoPlan {
        let Sets { epoll, idle, edges, wake, kick } = &self.shared.sets;
        let [epoll, idle, edges, wake, kick] = [epoll, idle, edges, wake, kick].map(AsRawFd::as_raw_fd);
        let arm = |(handle, arm): (&u32, &Arm)| ArmPlan {
            handle: *handle,
            generation: arm.generation,
            token: arm.token,
            waits: arm.waits,
        };
        let arms = self.shared.arms.lock().iter().map(arm).collect();
        IoPlan { epoll, idle, edges, wake, kick, generation: self.generation, watches: self.watches, arms }
    }

    /// The descriptors that the plan names.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 5] {
        let Sets { epoll, idle, edges, wake, kick } = &self.shared.sets;
        [epoll, idle, edges, wake, kick].map(AsFd::as_fd)
    }
}

impl IoThreads {
    /// The threads of a sandbox that had another VMM. None runs until something is asked of them, or [`Self::go_on`].
    pub(in crate::hostcall) fn of_former(
        plan: IoPlan,
        files: &FileTable,
        placed: &mut Placed,
        sink: EventSink,
    ) -> Result<Self, HandOverError> {
        let mut take = |number| placed.take(number).ok_or(HandOverError::Damaged("a file is missing"));
        let mut arms = HashMap::new();
        for ArmPlan { handle, generation, token, waits } in plan.arms {
            let arm = Arm { generation, token, file: files.get(handle)?, waits };
            if arms.insert(handle, arm).is_some() {
                return Err(HandOverError::Damaged("a handle is waited for twice"));
            }
        }
        let sets = Sets {
            epoll: take(plan.epoll)?,
            idle: take(plan.idle)?,
            edges: take(plan.edges)?,
            wake: take(plan.wake)?,
            kick: take(plan.kick)?,
        };
        // Sets of something else, or without what ends a wait, would have threads wait for ever, or not at all.
        sets.register(libc::EPOLL_CTL_MOD)?;
        let threads = Self::of(sets, arms, sink);
        threads.threads.lock().generation = plan.generation;
        threads.watches.store(plan.watches, Ordering::SeqCst);
        Ok(threads)
    }

    /// Waits for what the former VMM was asked to wait for.
    pub(crate) fn go_on(&self) -> Result<(), Errno> {
        let waits = self.watches() || !self.shared.arms.lock().is_empty();
        if waits { self.prepare_poller().map(drop) } else { Ok(()) }
    }

    /// Ends the threads, and leaves their state to the next VMM. What has come until now has been told; what comes later stays in
    /// the sets.
    pub(in crate::hostcall) fn leave(&self) -> IoLeft<'_> {
        self.end();
        let generation = self.threads.lock().generation;
        IoLeft { shared: &self.shared, generation, watches: self.watches() }
    }
}
