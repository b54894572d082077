//! The states of a sandbox as its supervisor sees them, and every transition between them.
//!
//! A [`StateMachine`] is a value: it takes an [`Input`], changes its state, and says which [`Action`]s are to be carried out.
//! It calls nobody and reads no clock, so `test/tests/hibernation_model.rs` can run it against the kernel's own
//! (`qkernel::hibernate::state_machine`) and try all orders of inputs.
//!
//! Two things make up what it knows: the sandbox's state, as the kernel has last said ([`KernelState`]), and what is wanted of
//! it ([`Course`]). Requests to the kernel carry growing numbers. Reports carry the number of the request that they
//! answer, and may overtake one another: one with a smaller number than the last is out of date.

use std::time::{Duration, Instant};

pub use super::stage::Cause;
use crate::status::SandboxState;

/// How long a sandbox that is to hibernate may go on with what it does.
pub const IDLE_PATIENCE: Duration = Duration::from_millis(200);
/// How long its memory may take to be written or read.
pub const HIBERNATE_PATIENCE: Duration = Duration::from_secs(300);

/// The sandbox's state, as the kernel last reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelState {
    Running,
    Paused,
    /// Its memory is in its home.
    Hibernated,
}

/// The wanted state of the sandbox, and whether the kernel has been asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Course {
    /// It goes on.
    Running,
    /// It is to go on, and the kernel was asked.
    Waking(PendingWake),
    /// It is to be hibernated, and the kernel was asked.
    Hibernating {
        hibernation: PendingHibernation,
        /// A wake that this came upon.
        overtaken: Option<PendingWake>,
    },
    /// It is to rest, and nothing is left to be done: it is hibernated, or paused where it cannot hibernate.
    AtRest,
    /// A wake event wakes it. It is still to rest, for all that others know, until it goes on.
    WokenByEvent(PendingWake),
}

/// A hibernation under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PendingHibernation {
    pub request: u64,
    pub since: Instant,
    /// When a sandbox that is never idle is stopped wherever it is.
    pub strict_at: Option<Instant>,
    /// When it is given up.
    pub deadline: Instant,
}

/// A wake, or the end of a pause, under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PendingWake {
    /// `None`: by the kernel itself.
    pub request: Option<u64>,
    pub cause: Cause,
    pub since: Instant,
}

impl PendingWake {
    fn is_answered_by(&self, of: u64) -> bool {
        self.request.is_none_or(|request| of >= request)
    }
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// It is to be hibernated; where that cannot be (`hibernates`), to pause.
    WantRest {
        cause: Cause,
        hibernates: bool,
        now: Instant,
    },
    /// It is to go on.
    WantRunning {
        cause: Cause,
        now: Instant,
    },
    /// Time has passed.
    Tick {
        now: Instant,
    },
    /// The kernel's reports, with the number of the request that they answer.
    Paused(u64),
    Resumed {
        of: u64,
        now: Instant,
    },
    Hibernated(u64),
    NotHibernated(u64),
    /// The kind of wake event.
    WakeEvent {
        what: &'static str,
        now: Instant,
    },
    /// After a wake no task has anything to do.
    Idle,
}

/// Something to be done, in the order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ask the kernel. `is_held`: no wake event is to end it.
    Pause {
        request: u64,
        is_held: bool,
    },
    Hibernate {
        request: u64,
        is_held: bool,
    },
    /// Ask the kernel again for the hibernation of this request: the sandbox is now stopped wherever it is.
    Hasten {
        request: u64,
        is_held: bool,
    },
    Wake {
        request: u64,
        serves: bool,
    },
    /// Tell those who are concerned. It hibernated, which began then.
    Hibernated {
        from: SandboxState,
        since: Option<Instant>,
    },
    /// It was hibernated before.
    HibernatedAlready,
    /// The hibernation did not come about; the sandbox goes on.
    NotHibernated,
    /// The hibernation was given up, since it took too long.
    GaveUp,
    /// It was woken.
    Woken(PendingWake),
    /// It has come to rest after a wake.
    WokenUp,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateMachine {
    kernel_state: KernelState,
    course: Course,
    rest_cause: Cause,
    /// It was paused by `pause`, and only who says so makes it go on.
    is_held: bool,
    /// Its state while it is awake, were it idle.
    awake_as: SandboxState,
    /// Requests so far: each one's number is the count with it.
    requests: u64,
    /// The last request that was answered.
    answered: u64,
}

impl Default for StateMachine {
    fn default() -> Self {
        Self {
            kernel_state: KernelState::Running,
            course: Course::Running,
            rest_cause: Cause::Order,
            is_held: false,
            awake_as: SandboxState::Warm,
            requests: 0,
            answered: 0,
        }
    }
}

impl StateMachine {
    /// Of a sandbox whose memory was in its home before its VMM began. It stays so, as if it were paused, until somebody orders that
    /// it goes on.
    #[must_use]
    pub fn asleep() -> Self {
        Self {
            kernel_state: KernelState::Hibernated,
            course: Course::AtRest,
            rest_cause: Cause::Pause,
            is_held: true,
            ..Self::default()
        }
    }

    pub fn kernel_state(&self) -> KernelState {
        self.kernel_state
    }

    pub fn is_hibernated(&self) -> bool {
        self.kernel_state == KernelState::Hibernated
    }

    /// Whether it is to be hibernated, or paused where it cannot be.
    pub fn wants_rest(&self) -> bool {
        matches!(self.course, Course::Hibernating { .. } | Course::AtRest | Course::WokenByEvent(_))
    }

    /// The cause of the last hibernation or pause.
    pub fn rest_cause(&self) -> Cause {
        self.rest_cause
    }

    /// Whether it was paused by `pause`: requests, signals and wake events do not make it go on.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Whether it rests, as is wanted, and nothing is under way.
    pub fn is_at_rest(&self) -> bool {
        self.course == Course::AtRest && self.kernel_state != KernelState::Running
    }

    /// Whether somebody has paused it, and nothing is under way. A pause on the way to a hibernation, or from one that a wake has
    /// called off, is the kernel's own affair: nobody has asked for it, and it passes by itself.
    pub fn is_at_rest_by_order(&self) -> bool {
        self.is_at_rest() && (self.is_held || self.kernel_state == KernelState::Paused)
    }

    /// Whether it is hibernated, as is wanted, nothing is under way, and whatever comes wakes it.
    pub fn is_asleep(&self) -> bool {
        self.is_hibernated() && self.is_at_rest() && !self.is_held
    }

    /// The hibernation under way.
    pub fn hibernation(&self) -> Option<&PendingHibernation> {
        match &self.course {
            Course::Hibernating { hibernation, .. } => Some(hibernation),
            _ => None,
        }
    }

    /// Whether a wake is under way, be it one that was overtaken.
    pub fn is_waking(&self) -> bool {
        matches!(
            self.course,
            Course::Waking(_) | Course::WokenByEvent(_) | Course::Hibernating { overtaken: Some(_), .. }
        )
    }

    /// The number of the last request.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Between requests of others; see [`SandboxState::when_busy`].
    pub fn sandbox_state(&self) -> SandboxState {
        if self.is_hibernated() { SandboxState::Hibernated } else { self.awake_as }
    }

    /// Takes what happened; result: what is to be done about it.
    pub fn step(&mut self, input: Input) -> Vec<Action> {
        match input {
            Input::WantRest { cause, hibernates, now } => self.hears_rest(cause, hibernates, now),
            Input::WantRunning { cause, now } => self.hears_running(cause, now),
            Input::Tick { now } => self.tick(now),
            // Reports of the kernel.
            Input::Paused(of) | Input::Resumed { of, .. } | Input::Hibernated(of) if of < self.answered => {
                vec![]
            }
            Input::Paused(of) => self.has_paused(of),
            Input::Hibernated(of) => self.has_hibernated(of),
            Input::NotHibernated(of) => self.has_not_hibernated(of),
            Input::WakeEvent { what, now } => self.hears_wake_event(what, now),
            Input::Resumed { of, now } => self.has_resumed(of, now),
            Input::Idle if self.awake_as == SandboxState::HibernateRunning => {
                self.awake_as = SandboxState::WokenUp;
                if self.is_hibernated() { vec![] } else { vec![Action::WokenUp] }
            }
            Input::Idle => vec![],
        }
    }

    /// A wish that it rest: hibernated, or paused. One for the present state, or for one that is under way, changes nothing.
    fn hears_rest(&mut self, cause: Cause, hibernates: bool, now: Instant) -> Vec<Action> {
        match self.course {
            _ if cause == Cause::Pause => self.hold(hibernates, now),
            _ if self.is_held && cause != Cause::Order => vec![],
            // Somebody's order is not called off by what ends idleness.
            Course::Hibernating { .. }
                if self.rest_cause == Cause::IdleTimeout && cause != Cause::IdleTimeout =>
            {
                self.want_rest(cause, hibernates, now)
            }
            Course::Hibernating { .. } => vec![],
            Course::AtRest if self.is_hibernated() => vec![],
            _ => self.want_rest(cause, hibernates, now),
        }
    }

    /// A wish that it go on.
    fn hears_running(&mut self, cause: Cause, now: Instant) -> Vec<Action> {
        if self.is_held && !matches!(cause, Cause::Resume | Cause::Order) {
            return vec![];
        }
        self.want_running(cause, now)
    }

    fn tick(&mut self, now: Instant) -> Vec<Action> {
        match self.course {
            // What is held and hibernated is as it should be; the kernel has only not said so again. A pause in its place might
            // come upon a wake, whose end nobody would hear of.
            Course::Hibernating { hibernation, overtaken }
                if hibernation.deadline <= now && self.is_held && self.is_hibernated() =>
            {
                let deadline = now + HIBERNATE_PATIENCE;
                self.course = Course::Hibernating {
                    hibernation: PendingHibernation { deadline, ..hibernation },
                    overtaken,
                };
                vec![]
            }
            Course::Hibernating { hibernation, .. } if hibernation.deadline <= now => {
                let mut todo =
                    if self.is_held { self.stay_paused() } else { self.want_running(Cause::Order, now) };
                todo.push(Action::GaveUp);
                todo
            }
            Course::Hibernating { hibernation, overtaken }
                if hibernation.strict_at.is_some_and(|at| at <= now) =>
            {
                self.course = Course::Hibernating {
                    hibernation: PendingHibernation { strict_at: None, ..hibernation },
                    overtaken,
                };
                vec![Action::Hasten { request: hibernation.request, is_held: self.is_held }]
            }
            _ => vec![],
        }
    }

    fn has_paused(&mut self, of: u64) -> Vec<Action> {
        // It goes on, and nothing else is wanted: this was overtaken by the report of that.
        if self.course == Course::Running {
            return vec![];
        }
        // One that answers a request after the sleep's says that its memory came back meanwhile. One of the sleep's own
        // request may be told late.
        let has_come_back = self.is_hibernated() && of > self.answered;
        if has_come_back {
            self.awake_as = SandboxState::WokenUp;
        }
        if has_come_back || !self.is_hibernated() {
            self.kernel_state = KernelState::Paused;
        }
        self.answered = of;
        if let Course::Hibernating { hibernation, overtaken } = self.course
            && of >= hibernation.request
        {
            // It is on its way to rest, however long that takes.
            self.course = Course::Hibernating {
                hibernation: PendingHibernation { strict_at: None, ..hibernation },
                overtaken,
            };
        }
        vec![]
    }

    fn has_not_hibernated(&mut self, of: u64) -> Vec<Action> {
        match self.course {
            Course::Hibernating { hibernation, .. } if of >= hibernation.request => {
                // Its tasks go on in a moment; who hears of the failure sees it run.
                if self.kernel_state == KernelState::Paused && of >= self.answered {
                    self.kernel_state = KernelState::Running;
                }
                self.course = Course::Running;
                let todo = if self.is_held { self.stay_paused() } else { vec![] };
                [vec![Action::NotHibernated], todo].concat()
            }
            // One that was called off is no failure.
            _ => vec![],
        }
    }

    fn hears_wake_event(&mut self, what: &'static str, now: Instant) -> Vec<Action> {
        match self.course {
            // The kernel had not heard of the pause, and stops it again once its memory is back.
            Course::AtRest if self.is_held => {}
            Course::AtRest if self.is_hibernated() => {
                self.course = Course::WokenByEvent(PendingWake::by_event(what, now));
            }
            Course::Hibernating { hibernation, overtaken: None } if self.is_hibernated() => {
                self.course =
                    Course::Hibernating { hibernation, overtaken: Some(PendingWake::by_event(what, now)) };
            }
            _ => {}
        }
        vec![]
    }

    fn want_rest(&mut self, cause: Cause, hibernates: bool, now: Instant) -> Vec<Action> {
        self.rest_cause = cause;
        self.requests += 1;
        let request = self.requests;
        if !hibernates {
            self.course = Course::AtRest;
            return vec![Action::Pause { request, is_held: self.is_held }];
        }
        // First when nobody is in the middle of a request; a sandbox that is never idle is stopped wherever it is.
        let (strict_at, deadline) = (Some(now + IDLE_PATIENCE), now + HIBERNATE_PATIENCE);
        let overtaken = match self.course {
            Course::Waking(wake) | Course::WokenByEvent(wake) => Some(wake),
            Course::Hibernating { overtaken, .. } => overtaken,
            Course::Running | Course::AtRest => None,
        };
        self.course = Course::Hibernating {
            hibernation: PendingHibernation { request, since: now, strict_at, deadline },
            overtaken,
        };
        vec![Action::Hibernate { request, is_held: self.is_held }]
    }

    /// It is to pause, and to stay so whatever comes. What is hibernated, or about to be, stays that.
    fn hold(&mut self, hibernates: bool, now: Instant) -> Vec<Action> {
        self.is_held = true;
        let hibernates = hibernates || self.is_hibernated() || self.hibernation().is_some();
        self.want_rest(Cause::Pause, hibernates, now)
    }

    /// Pauses a sandbox that is held and could not hibernate.
    fn stay_paused(&mut self) -> Vec<Action> {
        self.requests += 1;
        self.course = Course::AtRest;
        vec![Action::Pause { request: self.requests, is_held: true }]
    }

    fn want_running(&mut self, cause: Cause, now: Instant) -> Vec<Action> {
        self.requests += 1;
        let request = self.requests;
        self.is_held = false;
        self.course = Course::Waking(PendingWake { request: Some(request), cause, since: now });
        vec![Action::Wake { request, serves: matches!(cause, Cause::Request(_)) }]
    }

    fn has_hibernated(&mut self, of: u64) -> Vec<Action> {
        let from = self.sandbox_state();
        self.answered = of;
        let mut since = None;
        if let Course::Hibernating { hibernation, .. } = self.course
            && of >= hibernation.request
        {
            self.course = Course::AtRest;
            since = Some(hibernation.since);
        }
        if self.is_hibernated() {
            // It was told once more, by somebody who came before a wake did, and there was nothing left to do.
            return vec![Action::HibernatedAlready];
        }
        self.kernel_state = KernelState::Hibernated;
        vec![Action::Hibernated { from, since }]
    }

    fn has_resumed(&mut self, of: u64, now: Instant) -> Vec<Action> {
        self.answered = of;
        let was_hibernated = self.is_hibernated();
        self.kernel_state = KernelState::Running;
        let wake = match self.course {
            Course::Waking(wake) if wake.is_answered_by(of) => {
                self.course = Course::Running;
                Some(wake)
            }
            Course::WokenByEvent(wake) => {
                self.course = Course::Running;
                Some(wake)
            }
            Course::Hibernating { hibernation, overtaken: Some(wake) } if wake.is_answered_by(of) => {
                self.course = Course::Hibernating { hibernation, overtaken: None };
                Some(wake)
            }
            // A wake event came before the request was taken. The request is answered later.
            Course::Waking(wake) => Some(wake),
            // A wake event woke it, and nobody has wanted it to rest since.
            Course::AtRest if was_hibernated && of >= self.requests => {
                self.course = Course::Running;
                None
            }
            _ => None,
        };
        if !was_hibernated {
            return vec![];
        }
        let wake = wake.unwrap_or(PendingWake::by_event("event", now));
        self.awake_as = match wake.cause {
            Cause::Request(_) => SandboxState::HibernateRunning,
            _ => SandboxState::WokenUp,
        };
        vec![Action::Woken(wake)]
    }
}

impl PendingWake {
    fn by_event(what: &'static str, now: Instant) -> Self {
        Self { request: None, cause: Cause::Request(what), since: now }
    }
}
