//! A pod's further containers: how each begins, rests and ends. Its keeper speaks for it (`crate::keeper`).

use std::os::unix::net::{UnixListener, UnixStream};

use abi::hostcall::{EVENT_CREATE, EVENT_PAUSE_CONTAINER};
use vmm::process;
use vmm::request::Request;

use super::Supervisor;
use super::accepting::Accepting;
use super::containers::{ContainerId, FURTHER_MAX, Keeper, Rest};
use super::peers::Attached;
use super::progress::Progress;
use super::stage::{Cause, Stage};
use crate::control::{self, Lines, Order, Report, Restores, refuse};
use crate::status::Status;
use crate::words;

/// `flags` of a signal for all processes of a container.
pub(super) const ALL: u32 = 2;

impl Supervisor {
    /// Another container is to begin. The connection is its keeper's from now on.
    pub(super) fn create(
        &self,
        peer: UnixStream,
        of: ContainerId,
        attached: Attached,
        restores: Option<Restores>,
    ) {
        let Attached { body, mut descriptors } = attached;
        if descriptors.is_empty() {
            return refuse(&peer, "its control socket did not come with it".into());
        }
        let listener = UnixListener::from(descriptors.remove(0));
        let request = match Request::for_container(body, descriptors) {
            Ok(request) => request,
            Err(why) => return refuse(&peer, why),
        };
        let progress = &mut *self.lock();
        self.take_leash_news(progress);
        let restores = restores.filter(|restores| progress.awaits_start() || !restores.or_begins);
        let why_not = match progress.status(ContainerId::FIRST) {
            _ if !self.is_pod || of != ContainerId::FIRST => Some(words::NO_POD.into()),
            _ if progress.ending => Some("it ends".into()),
            _ if restores.is_some() => None,
            _ if progress.awaits_start() => Some(
                "it has not gone on yet since it was restored; restore and start its containers first".into(),
            ),
            Status::Paused => Some("it is paused; resume it first".into()),
            _ if !progress.is_running() => Some("its first process does not run yet; start it first".into()),
            _ if progress.containers.further().count() >= FURTHER_MAX => {
                Some(format!("it has {FURTHER_MAX} further containers already"))
            }
            _ => None,
        };
        if let Some(why) = why_not {
            return refuse(&peer, why);
        }
        let keeper = |line| Keeper { line: Lines::new(line), listener };
        if let Some(Restores { number, .. }) = restores {
            self.arrive(progress, ContainerId(number), keeper(peer), request);
            return self.settle(progress);
        }
        let (id, len) = match self.coming.add(request) {
            Ok(added) => added,
            Err(why) => return refuse(&peer, why.into()),
        };
        progress.containers.add(id, keeper(peer));
        self.come_in(progress, EVENT_CREATE, id.0, len);
        self.settle(progress);
    }

    /// The next connection to the control socket of a container.
    pub(super) fn accept_for(&self, id: ContainerId, accepting: &mut Accepting) -> Option<UnixStream> {
        let progress = self.lock();
        let keeper = progress.containers.get(id)?.keeper.as_ref()?;
        accepting.accept(&keeper.listener)
    }

    /// The keeper of a container says something, or is gone: then the container ends.
    pub(super) fn hear_keeper(&self, id: ContainerId) {
        let progress = &mut *self.lock();
        let Some(container) = progress.containers.get_mut(id) else { return };
        let Some(keeper) = &mut container.keeper else { return };
        let (lines, is_over) = keeper.line.receive();
        for order in lines.iter().filter_map(|line| control::parse(line).ok()) {
            self.obey_keeper(progress, id, order);
        }
        if is_over && let Some(container) = progress.containers.get_mut(id) {
            container.keeper = None;
            if container.stage != Stage::Stopped && !self.may_come_again(progress, id) {
                // A kernel that is about to go on as its snapshot has it needs what came with it.
                if !progress.awaits_start() {
                    self.coming.drop_request(id);
                }
                self.deliver(progress, id, libc::SIGKILL, ALL);
            }
            progress.containers.drop_if_over(id);
            self.start_if_complete(progress);
        }
        self.settle(progress);
    }

    /// The leash speaks by its keeper: one that was stopped is a wish of whoever stopped it.
    fn obey_keeper(&self, progress: &mut Progress, id: ContainerId, order: Order) {
        match order {
            Order::Kill { signal: libc::SIGSTOP, .. } => self.rest(progress, id, Rest::BySignal),
            Order::Kill { signal: libc::SIGCONT, .. } => self.rest(progress, id, Rest::No),
            Order::Kill { .. } | Order::Winsize { .. } | Order::Start => {
                drop(self.begin(progress, id, order))
            }
            _ => {}
        }
    }

    /// Somebody stops or continues a container at its control socket: the leash shows it, and its keeper says so then. A
    /// container that does not rest gets a `SIGCONT` itself.
    pub(super) fn tell_leash(&self, progress: &mut Progress, id: ContainerId, signal: i32) {
        let Some(container) = progress.containers.get(id) else { return };
        match (signal, container.rest) {
            (libc::SIGSTOP, _) => container.tell(&Report::Leash { stops: true }),
            (_, Rest::BySignal) => container.tell(&Report::Leash { stops: false }),
            _ if progress.awaits_start() => self.signal_before_it_goes_on(progress, id, signal, 0),
            _ => self.deliver(progress, id, signal, 0),
        }
    }

    /// `pause` of a further container: it rests until `resume`.
    pub(super) fn pause_container(&self, progress: &mut Progress, id: ContainerId) -> Result<(), String> {
        let rest = progress.containers.get(id).map(|container| container.rest);
        if rest == Some(Rest::Held) {
            return Err(format!("{}; it is paused already", words::NOT_RUNNING));
        }
        self.ask_to_rest(progress, id, Rest::Held);
        Ok(())
    }

    pub(super) fn resume_container(&self, progress: &mut Progress, id: ContainerId) -> Result<(), String> {
        match progress.containers.get(id).filter(|container| container.rest != Rest::No) {
            // A leash that is stopped is continued, and its keeper says so: nothing is left to be done then.
            Some(container) => container.tell(&Report::Leash { stops: false }),
            None => return Err(words::NOT_PAUSED.into()),
        }
        self.ask_to_rest(progress, id, Rest::No);
        Ok(())
    }

    /// A container is to rest, or to go on, as its leash shows. One that is held by `pause` stays so.
    fn rest(&self, progress: &mut Progress, id: ContainerId, rest: Rest) {
        let Some(container) = progress.containers.get(id) else { return };
        if container.rest != Rest::Held && container.rest != rest {
            self.ask_to_rest(progress, id, rest);
        }
    }

    fn ask_to_rest(&self, progress: &mut Progress, id: ContainerId, rest: Rest) {
        progress.rest_asked += 1;
        let request = progress.rest_asked;
        let Some(container) = progress.containers.get_mut(id) else { return };
        (container.rest, container.rest_request, container.rests) = (rest, request, false);
        if progress.is_early() {
            return;
        }
        self.post(id, EVENT_PAUSE_CONTAINER, u32::from(rest != Rest::No), request.cast_signed());
        if rest == Rest::No {
            self.wake_for_signal(progress);
        } else if progress.are_all_stopped() && !progress.machine.wants_rest() {
            progress.all_stopped = true;
            self.want_rest(progress, Cause::Signal);
        }
    }

    /// All tasks of a container rest.
    pub(super) fn rested(&self, progress: &mut Progress, id: ContainerId, request: u64) {
        if let Some(container) = progress.containers.get_mut(id) {
            container.rests |= container.rest_request == request;
        }
    }

    /// The program of a container does not run, or the container could not be made.
    pub(super) fn could_not_run(&self, progress: &mut Progress, id: ContainerId, why: String, status: i32) {
        if id == ContainerId::FIRST {
            return progress.could_not_begin(why);
        }
        let Some(container) = progress.containers.get_mut(id) else { return };
        if container.stage != Stage::Stopped {
            let code = Some(process::exit_code(status));
            container
                .tell(&Report::Failed { message: format!("{why}; correct process in config.json"), code });
            container.said = Some(why);
            self.over(progress, id, status);
        }
    }

    /// None of a container's tasks is left.
    pub(super) fn container_ended(&self, progress: &mut Progress, id: ContainerId, status: i32) {
        let Some(container) = progress.containers.get_mut(id).filter(|_| id != ContainerId::FIRST) else {
            return;
        };
        if container.stage != Stage::Stopped {
            container.tell(&Report::Exited { status });
            self.over(progress, id, status);
        }
    }

    pub(super) fn over(&self, progress: &mut Progress, id: ContainerId, status: i32) {
        if let Some(container) = progress.containers.get_mut(id) {
            (container.exit, container.stage) = (Some(status), Stage::Stopped);
            // Even a keeper that has lost the report sees this, and ends.
            if let Some(keeper) = &container.keeper {
                let _ = keeper.line.stream().shutdown(std::net::Shutdown::Write);
            }
        }
        progress.readers.end(id);
        progress.containers.drop_if_over(id);
    }
}

impl Progress {
    /// Whether all further containers rest, some by a signal: then nothing of the pod runs.
    fn are_all_stopped(&self) -> bool {
        let living = self.containers.further().filter(|(_, container)| container.stage != Stage::Stopped);
        let rests: Vec<Rest> = living.map(|(_, container)| container.rest).collect();
        rests.contains(&Rest::BySignal) && !rests.contains(&Rest::No)
    }

    /// The pod is awake. If it slept since all its containers were stopped they go on.
    pub(super) fn continue_stopped(&mut self) {
        if std::mem::take(&mut self.all_stopped) {
            let stopped = self.containers.further().filter(|(_, container)| container.rest == Rest::BySignal);
            stopped.for_each(|(_, container)| container.tell(&Report::Leash { stops: false }));
        }
    }
}
