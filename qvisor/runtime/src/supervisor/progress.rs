//! The supervisor's knowledge of its sandbox: its present and wanted state, and the waiters for it.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::report::{Kept, Party, UsageFigures};
use vmm::checkpoint::ImageTaken;
use vmm::hibernate::stats::Cycles;
use vmm::hibernate::{Hibernated, TimerWake, Told, Woken, micros};
use vmm::leash::Leash;

use super::arrivals::Arrivals;
use super::checkpoint::Checkpoint;
use super::containers::{ContainerId, Containers, Rest};
use super::journal::{Readers, Transition, now_us};
use super::stage::{Cause, Stage, TIMER};
use super::state_machine::{PendingWake, StateMachine};
use super::waiters::Waiter;
use crate::control::Figures;
use crate::reasons::{KeptAwake, Reasons, Who, WokenBy};
use crate::status::{SandboxState, Status};

/// The figures of the home of pages that belong to a report, read before the lock is taken.
#[derive(Debug, Default)]
pub(super) struct News {
    /// How the last hibernation came out.
    pub last: Option<Result<Hibernated, String>>,
    pub woken: Option<Woken>,
}

impl News {
    pub(super) fn slept(&self) -> Hibernated {
        self.last.clone().and_then(Result::ok).unwrap_or_default()
    }

    pub(super) fn failure(&self) -> String {
        let why = self.last.clone().and_then(Result::err);
        why.unwrap_or_else(|| "it was woken meanwhile".into())
    }

    /// Nothing went wrong: the hibernation was taken back.
    pub(super) fn is_without_failure(&self) -> bool {
        !matches!(self.last, Some(Err(_)))
    }

    pub(super) fn woken(&self) -> Woken {
        self.woken.clone().unwrap_or_default()
    }
}

/// Everything behind the lock of a [`super::Supervisor`].
pub(super) struct Progress {
    pub containers: Containers,
    /// Its present and its wanted state.
    pub machine: StateMachine,
    /// Figures of the last wake.
    pub woken: Woken,
    pub cycles: Cycles,
    /// The timer that wakes it, before the wake is told.
    pub timer: Option<TimerWake>,
    /// Why the last hibernation failed, if it did.
    pub failure: Option<String>,
    /// It began asleep, with a snapshot.
    pub is_restored: bool,
    /// That was started.
    pub has_gone_on: bool,
    pub arrivals: Arrivals,
    /// It rests once it is started, or does, until it is said to go on.
    pub rests_at_start: bool,
    /// The working set that is recorded goes there.
    pub working_set: Option<UnixStream>,
    /// The front end may go.
    pub released: bool,
    pub ending: bool,
    /// The number of the last request for a container to rest, or to go on.
    pub rest_asked: u64,
    /// The pod hibernated, since all its further containers were stopped.
    pub all_stopped: bool,
    /// The number of the last change of limits that was asked for.
    pub limits_asked: u32,
    /// The number of the change that was answered last, and how it came out.
    pub limits: Option<(u32, Result<(), String>)>,
    /// The list of a container's processes, for those who wait for it.
    pub processes: Option<(ContainerId, String)>,
    /// The usage of a container, for those who wait for the answer to the request with this number.
    pub usage: Option<(u64, Option<UsageFigures>)>,
    pub usage_asked: u64,
    /// The checkpoint under way.
    pub checkpoint: Option<Checkpoint>,
    /// Checkpoints so far, and requests for the sandbox's memory.
    pub checkpoints: u64,
    pub images_asked: u64,
    /// The outcome of the checkpoint with this number, for whoever waits for it.
    pub image: Option<(u64, Result<ImageTaken, String>)>,
    /// The reasons why the sandbox is awake, and the last wake event.
    pub reasons: Reasons,
    /// Whom the wake is for that is under way.
    pub visitor: Option<Who>,
    pub waiters: Vec<Waiter>,
    pub readers: Readers,
}

impl Progress {
    pub(super) fn new(leash: Option<Arc<Leash>>) -> Self {
        Self {
            containers: Containers::new(leash),
            machine: StateMachine::default(),
            woken: Woken::default(),
            cycles: Cycles::default(),
            timer: None,
            failure: None,
            is_restored: false,
            has_gone_on: false,
            arrivals: Arrivals::default(),
            rests_at_start: false,
            working_set: None,
            released: false,
            ending: false,
            rest_asked: 0,
            all_stopped: false,
            limits_asked: 0,
            limits: None,
            processes: None,
            usage: None,
            usage_asked: 0,
            checkpoint: None,
            checkpoints: 0,
            images_asked: 0,
            image: None,
            reasons: Reasons::default(),
            visitor: None,
            waiters: Vec::new(),
            readers: Readers::default(),
        }
    }

    /// Whether the first container's program runs.
    pub(super) fn is_running(&self) -> bool {
        self.containers.first().stage == Stage::Running
    }

    /// The answer to those who waited for something else than the end of a container.
    pub(super) fn last_words(&self, of: ContainerId) -> String {
        let container = self.containers.get(of).unwrap_or(self.containers.first());
        container.last_words()
    }

    /// The status of a container, as the OCI runtime specification has it: one that is hibernated runs, for all that others
    /// need to know.
    pub(super) fn status(&self, of: ContainerId) -> Status {
        let Some(container) = self.containers.get(of) else { return Status::Stopped };
        match container.stage {
            Stage::Creating => Status::Creating,
            Stage::Stopped => Status::Stopped,
            Stage::Created if self.awaits_start() => Status::Created,
            Stage::Starting if self.awaits_start() => Status::Running,
            _ if container.rest != Rest::No => Status::Paused,
            _ if self.machine.is_at_rest_by_order() => Status::Paused,
            Stage::Created => Status::Created,
            Stage::Starting | Stage::Running => Status::Running,
        }
    }

    /// Between requests; see [`SandboxState::when_busy`].
    pub(super) fn sandbox_state(&self) -> SandboxState {
        self.machine.sandbox_state()
    }

    /// Keeps what the hibernation that has just ended came to for those who wait for it.
    pub(super) fn hibernation_came_to(&mut self, figures: &Figures) {
        self.waiters.iter_mut().for_each(|waiter| waiter.hibernation_came_to(figures));
    }

    /// Its memory is in its home.
    pub(super) fn tell_of_sleep(&mut self, from: SandboxState, since: Option<Instant>, done: Hibernated) {
        self.failure = None;
        // What it was kept awake for until it was given up is still of interest.
        self.reasons.kept_awake.take_if(|kept| !kept.given_up);
        self.visitor = None;
        let total_us = since.map_or(done.total_us, |since| micros(since.elapsed()));
        let figures = Figures::Hibernated(Hibernated { total_us, ..done });
        self.hibernation_came_to(&figures);
        let cause = self.machine.rest_cause();
        self.cycles.hibernated(cause.name());
        let transition = Transition::new(Some(from), SandboxState::Hibernated, Some(cause));
        self.readers.tell(&Transition { figures: Some(&figures), ..transition });
    }

    /// The hibernation did not come about; the sandbox goes on.
    pub(super) fn tell_of_failure(&mut self, why: String) {
        let state = self.machine.sandbox_state();
        let transition = Transition::new(Some(state), state, Some(self.machine.rest_cause()));
        self.readers.tell(&Transition { error: Some(&why), ..transition });
        self.failure = Some(why);
        self.cycles.failed += 1;
    }

    /// It was hibernated, and goes on.
    pub(super) fn tell_of_wake(&mut self, wake: &PendingWake, woken: Woken) {
        self.woken = Woken { total_us: micros(wake.since.elapsed()), ..woken };
        let to = self.machine.sandbox_state();
        let transition = Transition::new(Some(SandboxState::Hibernated), to, Some(wake.cause));
        self.cycles.woken(wake.cause.name(), transition.request, self.woken.total_us);
        self.reasons.kept_awake = None;
        let timer = self.timer.take().filter(|_| wake.cause == Cause::Request(TIMER));
        let visitor = self.visitor.take();
        self.reasons.woken_by = Some(WokenBy {
            time_us: transition.time_us,
            cause: wake.cause.name().to_owned(),
            request: transition.request.map(str::to_owned),
            who: timer.as_ref().map(Who::of_timer).or(visitor).unwrap_or_default(),
        });
        let figures = Figures::Woken(self.woken.clone());
        let timer_of = timer.as_ref();
        self.readers.tell(&Transition { figures: Some(&figures), timer: timer_of, ..transition });
        timer.into_iter().for_each(|timer| self.cycles.woken_by_timer(timer));
    }

    /// The kernel says what keeps it awake, if anything does. Those who read events hear of each kind once.
    pub(super) fn tell_what_keeps_awake(&mut self, kept: Option<&Kept>) {
        let kept = kept.map(|kept| KeptAwake::new(kept, now_us()));
        let kind = |kept: &Option<KeptAwake>| kept.as_ref().map(|kept| (kept.kind, kept.given_up));
        let is_news = kind(&kept) != kind(&self.reasons.kept_awake);
        let since_us = self.reasons.kept_awake.as_ref().map(|kept| kept.since_us).filter(|_| !is_news);
        self.reasons.kept_awake =
            kept.map(|kept| KeptAwake { since_us: since_us.unwrap_or(kept.since_us), ..kept });
        if let Some(kept) = self.reasons.kept_awake.as_ref().filter(|_| is_news) {
            self.readers.tell_why("kept-awake", kept);
        }
    }

    /// The kernel says whom the wake is for that was the last, or is under way.
    pub(super) fn tell_whom_it_woke_for(&mut self, who: &Party) {
        let who = Who::from(who);
        self.readers.tell_why("woken-for", &who);
        match &mut self.reasons.woken_by {
            Some(woken) if !self.machine.is_at_rest() && woken.who == Who::default() => woken.who = who,
            _ => self.visitor = Some(who),
        }
    }

    /// Its pages were packed or moved while it slept, or could not be.
    pub(super) fn tell_of_pages(&mut self, told: Told) {
        let state = self.machine.sandbox_state();
        let transition = Transition::new(Some(state), state, None);
        let result = match told {
            Told::Packed(result) => result.map(Figures::Packed),
            Told::Moved(result) => result.map(Figures::Moved),
        };
        match result {
            Ok(figures) => {
                self.readers.tell(&Transition { figures: Some(&figures), ..transition });
            }
            Err(why) => self.readers.tell(&Transition { error: Some(&why), ..transition }),
        }
    }

    /// When somebody has to look again although nothing happened.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let hibernation = self
            .machine
            .hibernation()
            .into_iter()
            .flat_map(|hibernation| hibernation.strict_at.into_iter().chain([hibernation.deadline]));
        let checkpoint = self.checkpoint.as_ref().map(|checkpoint| checkpoint.deadline);
        hibernation.chain(checkpoint).chain(self.waiters.iter().map(|waiter| waiter.deadline)).min()
    }
}

/// In milliseconds for `poll`, rounded up; -1: no deadline.
pub(super) fn poll_timeout(deadline: Option<Instant>) -> i32 {
    let Some(deadline) = deadline else { return -1 };
    let left = deadline.saturating_duration_since(Instant::now());
    i32::try_from((left + Duration::from_micros(999)).as_millis()).unwrap_or(i32::MAX)
}
