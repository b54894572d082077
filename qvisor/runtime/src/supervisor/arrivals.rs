//! The further containers of a pod that began with a snapshot: each comes by its keeper, as it did to the pod that the snapshot was made
//! of, and is started. The kernel, which has them in its memory, runs once they have come; the pod goes on once they are started.

use std::collections::BTreeSet;

use abi::hostcall::{EVENT_PAUSE_CONTAINER, EVENT_SIGNAL};
use vmm::request::Request;

use super::Supervisor;
use super::containers::{ContainerId, Keeper, Rest};
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
        let further = containers.iter().copied().map(ContainerId).filter(|id| *id != ContainerId::FIRST);
        Self { awaited: further.collect(), ..Self::default() }
    }

    /// Whether some have not come.
    pub(super) fn is_open(&self) -> bool {
        !self.awaited.is_empty()
    }
}

impl Supervisor {
    /// Waits until all have come whom the kernel knows. The front end of the first container need not.
    pub(crate) fn wait_for_containers(&self) {
        let mut progress = self.lock();
        if progress.arrivals.is_open() {
            let id = ContainerId::FIRST;
            self.reached(&mut progress, id, Stage::Created, &Report::Created { number: id.0 });
        }
        while progress.arrivals.is_open() {
            progress = progress.wait(&self.changed);
        }
        progress.arrivals.is_over = true;
        self.tell_kernel(&mut progress);
    }

    /// Tells the kernel what has come for those who have come, before it ran.
    fn tell_kernel(&self, progress: &mut Progress) {
        for (id, one) in progress.containers.further_mut() {
            for (signal, flags) in std::mem::take(&mut one.signals) {
                self.post(id, EVENT_SIGNAL, flags, i64::from(signal));
            }
            if one.rest != Rest::No {
                self.post(id, EVENT_PAUSE_CONTAINER, 1, one.rest_request.cast_signed());
            }
        }
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

    /// One is gone before the kernel has it: another one may come in its place. Result: whether that is so.
    pub(super) fn may_come_again(&self, progress: &mut Progress, id: ContainerId) -> bool {
        let may = progress.is_early() && self.coming.drop_request(id);
        if may {
            progress.containers.forget(id);
            progress.arrivals.awaited.insert(id);
        }
        may
    }

    /// Takes a signal for a further container, which waits for others. One that is killed ends at once, and its processes with the wake; if
    /// the kernel does not know of it yet another one may come in its place.
    pub(super) fn signal_before_it_goes_on(
        &self,
        progress: &mut Progress,
        id: ContainerId,
        signal: i32,
        flags: u32,
    ) {
        let is_early = progress.is_early();
        let Some(container) = progress.containers.get_mut(id) else { return };
        match (signal, is_early) {
            (libc::SIGKILL, _) => {
                container.tell(&Report::Exited { status: libc::SIGKILL });
                if !self.may_come_again(progress, id) {
                    self.deliver(progress, id, signal, flags);
                    self.over(progress, id, libc::SIGKILL);
                    self.start_if_complete(progress);
                }
            }
            (_, true) if container.signals.len() < SIGNALS_MAX => container.signals.push((signal, flags)),
            (_, true) => {}
            (_, false) => self.deliver(progress, id, signal, flags),
        }
    }

    /// Carries out the start of the sandbox, if all its containers have been started and can go on.
    pub(super) fn start_if_complete(&self, progress: &mut Progress) {
        if progress.arrivals.is_ready && progress.awaits_start() && !progress.awaits_others() {
            self.start_restored(progress);
        }
    }
}

/// Most signals that wait for a container which the kernel does not know of yet.
const SIGNALS_MAX: usize = 64;
const NOT_AWAITED: &str = "it did not begin with that snapshot, or has that container already";

impl Progress {
    /// Whether the kernel does not run yet, for want of a container; what comes for a further one until then goes with it.
    pub(super) fn is_early(&self) -> bool {
        self.is_restored && !self.arrivals.is_over
    }

    /// Whether it waits, before it can go on as it was in its snapshot, for a container to come, or to be started.
    pub(super) fn awaits_others(&self) -> bool {
        let is_started = |stage| matches!(stage, Stage::Starting | Stage::Running | Stage::Stopped);
        // One without a keeper is gone: its processes end with the wake.
        let all_are_started = is_started(self.containers.first().stage)
            && self.containers.further().all(|(_, one)| one.keeper.is_none() || is_started(one.stage));
        self.awaits_start() && (self.arrivals.is_open() || !all_are_started)
    }
}

#[cfg(test)]
#[path = "arrivals_tests.rs"]
mod tests;
