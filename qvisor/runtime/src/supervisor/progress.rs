//! What the supervisor knows of its sandbox: where it is, where it is to be, and who waits for it to get there.

use std::time::{Duration, Instant};

use vmm::hibernate::Woken;
use vmm::hibernate::stats::Cycles;

use super::journal::Readers;
use super::stage::{Cause, Stage};
use super::waiters::Waiter;
use crate::control::Figures;
use crate::status::{SandboxState, Status};

/// A hibernation under way.
#[derive(Debug)]
pub(super) struct Fall {
    /// Its request.
    pub request: u64,
    pub since: Instant,
    /// When a sandbox that is never idle is stopped wherever it is.
    pub strict_at: Option<Instant>,
    /// When it is given up.
    pub deadline: Instant,
}

/// A wake, or the end of a pause, under way.
#[derive(Debug)]
pub(super) struct Rise {
    /// `None`: by the kernel itself.
    pub request: Option<u64>,
    pub cause: Cause,
    pub since: Instant,
}

/// The leash as the VMM has last seen it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeashState {
    pub is_stopped: bool,
    /// It was told to stop itself, and has not been seen to.
    pub is_told: bool,
}

/// Everything behind the lock of a [`super::Supervisor`].
pub(super) struct Progress {
    pub stage: Stage,
    pub paused: bool,
    /// Its memory is in its home.
    pub is_asleep: bool,
    /// It is to be hibernated, or paused where it cannot be.
    pub wants_down: bool,
    pub down_cause: Cause,
    pub fall: Option<Fall>,
    pub rise: Option<Rise>,
    /// What the last wake came to.
    pub woken: Woken,
    /// What it is while it is awake, were it idle.
    pub awake_as: SandboxState,
    pub cycles: Cycles,
    /// Why the last hibernation failed, if it did.
    pub failure: Option<String>,
    /// Requests to pause, to hibernate and to go on so far: each one's number is the count with it.
    pub requests: u64,
    /// The last request that was answered.
    pub answered: u64,
    pub has_leash: bool,
    pub leash: LeashState,
    /// The kernel's last words before the first program ran.
    pub said: Option<String>,
    /// The front end may go.
    pub released: bool,
    pub ending: bool,
    pub waiters: Vec<Waiter>,
    pub readers: Readers,
}

impl Progress {
    pub(super) fn new(has_leash: bool) -> Self {
        Self {
            stage: Stage::Creating,
            paused: false,
            is_asleep: false,
            wants_down: false,
            down_cause: Cause::Order,
            fall: None,
            rise: None,
            woken: Woken::default(),
            awake_as: SandboxState::Warm,
            cycles: Cycles::default(),
            failure: None,
            requests: 0,
            answered: 0,
            has_leash,
            leash: LeashState::default(),
            said: None,
            released: false,
            ending: false,
            waiters: Vec::new(),
            readers: Readers::default(),
        }
    }

    /// What those hear who waited for something else than its end.
    pub(super) fn last_words(&self) -> String {
        self.said.clone().unwrap_or_else(|| "it ended".into())
    }

    /// As the OCI runtime specification has it: a sandbox that is hibernated runs, for all that others need to know.
    pub(super) fn status(&self) -> Status {
        match self.stage {
            Stage::Creating => Status::Creating,
            _ if self.paused && !self.is_asleep && self.fall.is_none() => Status::Paused,
            Stage::Created => Status::Created,
            Stage::Starting | Stage::Running => Status::Running,
        }
    }

    /// Between requests; see [`SandboxState::when_busy`].
    pub(super) fn sandbox_state(&self) -> SandboxState {
        if self.is_asleep { SandboxState::Hibernated } else { self.awake_as }
    }

    /// Keeps what the hibernation that has just ended came to for those who wait for it.
    pub(super) fn fallen(&mut self, figures: &Figures) {
        self.waiters.iter_mut().for_each(|waiter| waiter.has_fallen(figures));
    }

    /// When somebody has to look again although nothing happened.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let fall = self.fall.iter().flat_map(|fall| fall.strict_at.into_iter().chain([fall.deadline]));
        fall.chain(self.waiters.iter().map(|waiter| waiter.deadline)).min()
    }
}

/// In milliseconds for `poll`, rounded up; -1: no deadline.
pub(super) fn poll_timeout(deadline: Option<Instant>) -> i32 {
    let Some(deadline) = deadline else { return -1 };
    let left = deadline.saturating_duration_since(Instant::now());
    i32::try_from((left + Duration::from_micros(999)).as_millis()).unwrap_or(i32::MAX)
}
