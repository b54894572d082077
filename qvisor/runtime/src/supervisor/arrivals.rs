//! The further containers of a pod that began with a snapshot: each comes by its keeper, as it did to the pod that the snapshot was made
//! of, and is started. The kernel, which has them in its memory, runs once they have come; the pod goes on once they are started.

use std::collections::BTreeSet;

use vmm::request::Request;

use super::Supervisor;
use super::containers::{ContainerId, Keeper};
use super::progress::Progress;
use super::stage::Stage;
use crate::control::{Report, refuse};

/// How far they are.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Those that have not come.
    awaited: BTreeSet<ContainerId>,
    /// The kernel is about to run, or does, and takes those that have come.
    is_over: bool,
    /// It has found everything that they need.
    is_ready: bool,
}

impl Arrivals {
    pub(super) fn of(containers: &[u64]) -> Self {
        Self { awaited: containers.iter().copied().map(ContainerId).collect(), ..Self::default() }
    }

    /// Whether some have not come.
    pub(super) fn is_open(&self) -> bool {
        !self.awaited.is_empty()
    }
}

impl Supervisor {
    /// The front end of the first container need not wait for the others.
    pub(crate) fn expect_containers(&self) {
        let progress = &mut *self.lock();
        if progress.arrivals.is_open() {
            let id = ContainerId::FIRST;
            self.reached(progress, id, Stage::Created, &Report::Created { number: id.0 });
        }
    }

    /// Waits until all have come whom the kernel knows.
    pub(crate) fn wait_for_containers(&self) {
        let mut progress = self.lock();
        while progress.arrivals.is_open() {
            progress = progress.wait(&self.changed);
        }
        progress.arrivals.is_over = true;
    }

    /// One comes, by the number that the kernel knows it by.
    pub(super) fn arrive(&self, progress: &mut Progress, id: ContainerId, keeper: Keeper, request: Request) {
        let may_come = progress.arrivals.awaited.contains(&id) && !progress.ending;
        let coming = if may_come { self.coming.add_again(id, request) } else { Err(NOT_AWAITED) };
        if let Err(why) = coming {
            return refuse(keeper.line.stream(), why.into());
        }
        progress.arrivals.awaited.remove(&id);
        progress.containers.add(id, keeper);
        if progress.arrivals.is_open() {
            self.reached(progress, id, Stage::Created, &Report::Created { number: id.0 });
        }
        // The last one is there once the kernel has found everything: whoever restores it hears if it has not.
        self.changed.notify_all();
    }

    /// The kernel has found everything that they need.
    pub(super) fn are_all_there(&self, progress: &mut Progress) {
        progress.arrivals.is_ready = true;
        let new = progress.containers.further().filter(|(_, one)| one.stage == Stage::Creating);
        for id in new.map(|(id, _)| id).collect::<Vec<_>>() {
            self.reached(progress, id, Stage::Created, &Report::Created { number: id.0 });
        }
    }

    /// The keeper of one is gone. If the kernel does not run yet, another one may come in its place; result: whether that is so.
    pub(super) fn may_come_again(&self, progress: &mut Progress, id: ContainerId) -> bool {
        let may = progress.is_restored && !progress.arrivals.is_over && self.coming.drop_request(id);
        if may {
            progress.containers.forget(id);
            progress.arrivals.awaited.insert(id);
        }
        may
    }

    /// A further container is to be killed before the kernel has it: it ends, and another one may come in its place.
    pub(super) fn turn_away(&self, progress: &mut Progress, id: ContainerId) -> bool {
        let is_early = progress.is_restored && !progress.arrivals.is_over && id != ContainerId::FIRST;
        if let Some(container) = progress.containers.get(id).filter(|_| is_early) {
            container.tell(&Report::Exited { status: libc::SIGKILL });
        }
        is_early
    }

    /// Carries out the start of the sandbox, if all its containers have been started and can go on.
    pub(super) fn start_if_complete(&self, progress: &mut Progress) {
        if progress.arrivals.is_ready && progress.awaits_start() && !progress.awaits_others() {
            self.start_restored(progress);
        }
    }
}

const NOT_AWAITED: &str = "it did not begin with that snapshot, or has that container already";

impl Progress {
    /// Whether it waits, before it can go on as it was in its snapshot, for a container to come, or to be started.
    pub(super) fn awaits_others(&self) -> bool {
        let is_started = |stage| matches!(stage, Stage::Starting | Stage::Running | Stage::Stopped);
        let all_are_started = is_started(self.containers.first().stage)
            && self.containers.further().all(|(_, one)| is_started(one.stage));
        self.awaits_start() && (self.arrivals.is_open() || !all_are_started)
    }
}

#[cfg(test)]
#[path = "arrivals_tests.rs"]
mod tests;
