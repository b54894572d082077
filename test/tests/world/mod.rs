//! Both machines with all that is around them, and every step that they can take by themselves.

mod invariants;
mod outside;
pub mod walk;

use std::sync::OnceLock;
use std::time::Instant;

use abi::report::WakeEvent;
use qkernel::hibernate::state_machine as kernel;
use qkernel::hibernate::state_machine::{Obstacle, Order, Outcome, PATIENCE_NS, State};
use runtime::supervisor::state_machine as supervisor;
use runtime::supervisor::state_machine::IDLE_PATIENCE;

const CPUS: usize = 2;
const SOCKET: WakeEvent = WakeEvent::Socket;
const EXEC: WakeEvent = WakeEvent::Exec;

/// An event in the VMM's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    Pause {
        request: i64,
        is_held: bool,
    },
    Hibernate {
        request: i64,
        is_hastened: bool,
        is_held: bool,
    },
    Wake {
        request: i64,
        serves: bool,
    },
    /// A process is to come in.
    Exec,
}

impl Event {
    fn is_request(&self) -> bool {
        !matches!(self, Self::Exec)
    }
}

/// Something that a CPU has still to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Hand on an event that it has taken.
    Handle(Event),
    /// Carry out an action.
    Perform(kernel::Action),
    /// Tell the machine.
    Feed(kernel::Input),
}

/// The last request's wish, as far as nothing has undone it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asked {
    Run,
    Pause,
    Hibernate,
}

/// How many things may come from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub orders: u8,
    /// Of `pause` and `resume`.
    pub holds: u8,
    pub wake_events: u8,
    pub execs: u8,
    pub failures: u8,
}

/// How it is done. All true: as it is.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A wake event that comes on the way to rest is told to the machine.
    pub tells_wake_events_on_the_way_to_rest: bool,
    /// The machine hears of an answer after the host has.
    pub tells_host_first: bool,
    /// The CPU that hibernates the sandbox looks for processes that came in before.
    pub looks_for_execs: bool,
    /// The machine is told how storing came out.
    pub tells_failures: bool,
}

pub const AS_IT_IS: Rules = Rules {
    tells_wake_events_on_the_way_to_rest: true,
    tells_host_first: true,
    looks_for_execs: true,
    tells_failures: true,
};

/// One step, for the trace that leads to a flaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // what they hold is only printed
pub enum Step {
    WantRest,
    WantRunning,
    Holds,
    HoldsHibernated,
    Resumes,
    Starts,
    Exec,
    WakeEvent,
    Hastens,
    GivesUp,
    Takes,
    NotFrozen,
    Does(Work),
    Fails(Obstacle),
    Streams,
    Begins,
    Freezes,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    kernel: kernel::HibernationMachine,
    supervisor: supervisor::StateMachine,
    /// Its first process runs, and it can hibernate.
    can_hibernate: bool,
    queue: Vec<Event>,
    /// The next thing last.
    cpus: [Vec<Work>; CPUS],
    budget: Budget,
    /// The memory is in its home.
    is_stored: bool,
    /// A process has come in and not begun.
    exec_waits: bool,
    /// Something came while no task could run, and no request has come since.
    wake_event: bool,
    /// The largest request that was taken, and how many outcomes each hibernation among them had.
    taken: i64,
    outcomes: Vec<(i64, u8)>,
    asked: Asked,
    /// The kernel wakes the sandbox by itself, from the sleep that this request asked for.
    woken_from: Option<i64>,
    flaw: Option<&'static str>,
}

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

impl World {
    pub fn new(can_hibernate: bool, budget: Budget) -> Self {
        Self {
            kernel: kernel::HibernationMachine::new(),
            supervisor: supervisor::StateMachine::default(),
            can_hibernate,
            queue: Vec::new(),
            cpus: [const { Vec::new() }; CPUS],
            budget,
            is_stored: false,
            exec_waits: false,
            wake_event: false,
            taken: 0,
            outcomes: Vec::new(),
            asked: Asked::Run,
            woken_from: None,
            flaw: None,
        }
    }

    // ---- the supervisor ----

    fn tell_supervisor(&mut self, input: supervisor::Input) {
        for action in self.supervisor.step(input) {
            let number = u64::cast_signed;
            match action {
                supervisor::Action::Pause { request, is_held } => {
                    self.post(Event::Pause { request: number(request), is_held });
                }
                supervisor::Action::Hibernate { request, is_held } => {
                    self.post(Event::Hibernate { request: number(request), is_hastened: false, is_held });
                }
                supervisor::Action::Hasten { request, is_held } => {
                    self.post(Event::Hibernate { request: number(request), is_hastened: true, is_held });
                }
                supervisor::Action::Wake { request, serves } => {
                    self.post(Event::Wake { request: number(request), serves });
                }
                _ => {}
            }
        }
    }

    /// Adds an event to the queue, as `EventQueue::post` does: the last request wins.
    fn post(&mut self, event: Event) {
        if event.is_request() {
            self.queue.retain(|old| !old.is_request());
        }
        match event {
            Event::Pause { .. } => self.asked = Asked::Pause,
            Event::Hibernate { is_hastened: false, .. } => self.asked = Asked::Hibernate,
            Event::Wake { .. } => self.asked = Asked::Run,
            Event::Hibernate { .. } | Event::Exec => {}
        }
        self.queue.push(event);
    }

    // ---- the kernel ----

    /// A CPU steps the machine. What follows comes before what it had to do.
    fn feed(&mut self, cpu: usize, input: kernel::Input) {
        let actions: Vec<_> = self.kernel.step(input).iter().collect();
        if actions.iter().any(|action| matches!(action, kernel::Action::TellWakeEvent(_))) {
            self.woken_from = Some(self.taken);
        }
        self.cpus[cpu].extend(actions.into_iter().rev().map(Work::Perform));
        if !self.kernel.is_paused() {
            self.wake_event = false;
        }
    }

    fn handle(&mut self, cpu: usize, event: Event, rules: Rules) {
        let request = match event {
            Event::Pause { request, .. } | Event::Hibernate { request, .. } | Event::Wake { request, .. } => {
                request
            }
            Event::Exec => {
                self.exec_waits = true;
                self.wake_by(cpu, EXEC, rules);
                return;
            }
        };
        if request > self.taken {
            self.taken = request;
            self.wake_event = false;
            if matches!(event, Event::Hibernate { .. }) {
                self.outcomes.push((request, 0));
            }
        }
        let input = match event {
            Event::Pause { request, is_held: false } => kernel::Input::Pause(request),
            Event::Pause { request, is_held: true } => kernel::Input::Hold(request),
            Event::Hibernate { request, is_hastened, is_held } => {
                kernel::Input::Hibernate(Order { request, since_ns: 0, is_hastened, is_held, stays: false })
            }
            Event::Wake { request, serves } => kernel::Input::Resume { request, serves },
            Event::Exec => return,
        };
        self.feed(cpu, input);
    }

    fn wake_by(&mut self, cpu: usize, by: WakeEvent, rules: Rules) {
        self.wake_event = self.kernel.is_paused();
        let is_on_the_way = matches!(self.kernel.state(), State::Hibernating(_) | State::Answering(_));
        if self.kernel.is_paused() && (rules.tells_wake_events_on_the_way_to_rest || !is_on_the_way) {
            self.feed(cpu, kernel::Input::WakeEvent(by));
        }
    }

    fn report(&mut self, input: supervisor::Input) {
        self.tell_supervisor(input);
    }

    /// Carries out an action, as `hibernate::Carrier` does. An action that can come out in several ways leads to
    /// several worlds.
    fn perform(&self, cpu: usize, action: kernel::Action, rules: Rules, all: &mut Vec<(Step, World)>) {
        let mut next = self.clone();
        let number = |request: i64| request.cast_unsigned();
        let step = Step::Does(Work::Perform(action));
        let feed = |next: &mut World, input| next.cpus[cpu].push(Work::Feed(input));
        match action {
            kernel::Action::Pause(request) => {
                next.report(supervisor::Input::Paused(number(request)));
                feed(&mut next, kernel::Input::CalledOut(request));
            }
            kernel::Action::Resume(request) => {
                if next.woken_from == Some(request) && number(request) == next.supervisor.requests() {
                    next.asked = Asked::Run;
                }
                next.report(supervisor::Input::Resumed { of: number(request), now: start() });
            }
            kernel::Action::TellIdle => {}
            kernel::Action::Store(_) => {
                next.alone(cpu);
                next.store_fails(cpu, rules, all);
                next.is_stored = true;
                feed(&mut next, kernel::Input::Stored);
            }
            kernel::Action::Tell(request, outcome) => {
                next.count(request, outcome);
                let sleeps = matches!(outcome, Outcome::Done | Outcome::Already);
                match sleeps {
                    true => next.report(supervisor::Input::Hibernated(number(request))),
                    false => next.report(supervisor::Input::NotHibernated(number(request))),
                }
                if rules.tells_host_first {
                    feed(&mut next, kernel::Input::Told(request));
                }
                if sleeps && rules.looks_for_execs && next.exec_waits {
                    feed(&mut next, kernel::Input::WakeEvent(EXEC));
                }
            }
            kernel::Action::TellWakeEvent(_) => {
                next.report(supervisor::Input::WakeEvent { what: "socket", now: start() });
            }
            kernel::Action::BringBack => {
                next.alone(cpu);
                next.is_stored = false;
                let mut streams = next.clone();
                feed(&mut streams, kernel::Input::BroughtBack { streams: true });
                all.push((Step::Streams, streams));
                feed(&mut next, kernel::Input::BroughtBack { streams: false });
            }
            kernel::Action::Stream => {
                next.alone(cpu);
                feed(&mut next, kernel::Input::Streamed);
            }
        }
        all.push((step, next));
    }

    /// The worlds in which the pages are not stored.
    fn store_fails(&self, cpu: usize, rules: Rules, all: &mut Vec<(Step, World)>) {
        if self.budget.failures == 0 {
            return;
        }
        for (why, now_ns) in [(Obstacle::Store, 0), (Obstacle::Busy, 0), (Obstacle::Busy, PATIENCE_NS)] {
            let mut failed = self.clone();
            failed.budget.failures -= 1;
            let input = match rules.tells_failures {
                true => kernel::Input::NotStored { why, now_ns },
                false => kernel::Input::Stored,
            };
            failed.cpus[cpu].push(Work::Feed(input));
            all.push((Step::Fails(why), failed));
        }
    }

    fn count(&mut self, request: i64, outcome: Outcome) {
        match self.outcomes.iter_mut().find(|(of, _)| *of == request) {
            None => self.flaw = Some("a request that was not taken has an outcome"),
            Some((_, 1)) => self.flaw = Some("a request has two outcomes"),
            Some((_, count)) => *count += 1,
        }
        if matches!(outcome, Outcome::Done | Outcome::Already) && !self.is_stored {
            self.flaw = Some("the host hears of a sleep, and the memory is not in its home");
        }
        if matches!(outcome, Outcome::Failed(_)) && number_of(request) == self.supervisor.requests() {
            self.asked = Asked::Run;
        }
    }

    /// Nobody else moves pages.
    fn alone(&mut self, cpu: usize) {
        let moves = |work: &Work| {
            use kernel::Action::{BringBack, Store, Stream};
            use kernel::Input::{BroughtBack, NotStored, Stored, Streamed};
            matches!(
                work,
                Work::Perform(Store(_) | BringBack | Stream)
                    | Work::Feed(Stored | NotStored { .. } | BroughtBack { .. } | Streamed)
            )
        };
        if self.cpus.iter().enumerate().any(|(other, todo)| other != cpu && todo.iter().any(moves)) {
            self.flaw = Some("two CPUs move pages at the same time");
        }
    }

    // ---- what can happen next ----

    /// Steps that happen by themselves.
    pub fn internal(&self, rules: Rules) -> Vec<(Step, World)> {
        let mut all = Vec::new();
        for cpu in 0..CPUS {
            let mut next = self.clone();
            match next.cpus[cpu].pop() {
                Some(Work::Handle(event)) => {
                    next.handle(cpu, event, rules);
                    all.push((Step::Does(Work::Handle(event)), next));
                }
                Some(Work::Feed(input)) => {
                    next.feed(cpu, input);
                    all.push((Step::Does(Work::Feed(input)), next));
                }
                Some(Work::Perform(action)) => {
                    if let kernel::Action::Tell(request, _) = action
                        && !rules.tells_host_first
                        && self.kernel.state() == State::Answering(request)
                    {
                        // What follows is another CPU's, if one is idle.
                        let mut follows = next.clone();
                        follows.cpus[cpu].clear();
                        follows.feed(cpu, kernel::Input::Told(request));
                        let todo = std::mem::take(&mut follows.cpus[cpu]);
                        let other = if next.cpus[1 - cpu].is_empty() { 1 - cpu } else { cpu };
                        follows.cpus[cpu] = next.cpus[cpu].clone();
                        follows.cpus[other].extend(todo);
                        follows.cpus[cpu].push(Work::Perform(action));
                        all.push((Step::Does(Work::Feed(kernel::Input::Told(request))), follows));
                        continue;
                    }
                    next.perform(cpu, action, rules, &mut all);
                }
                None => self.idle_steps(cpu, &mut all),
            }
        }
        let mut next = self.clone();
        if next.exec_waits && !next.kernel.is_paused() {
            next.exec_waits = false;
            all.push((Step::Begins, next));
        }
        if self.supervisor.hibernation().is_some_and(|hibernation| hibernation.strict_at.is_some()) {
            let mut next = self.clone();
            next.tell_supervisor(supervisor::Input::Tick { now: start() + IDLE_PATIENCE });
            all.push((Step::Hastens, next));
        }
        all
    }

    /// The steps of an idle CPU.
    fn idle_steps(&self, cpu: usize, all: &mut Vec<(Step, World)>) {
        if cpu > 0 && self.cpus[cpu - 1].is_empty() {
            // One idle CPU is as good as another.
            return;
        }
        if !self.queue.is_empty() {
            let mut next = self.clone();
            let event = next.queue.remove(0);
            next.cpus[cpu].push(Work::Handle(event));
            all.push((Step::Takes, next));
        }
        // A process that came in and may run keeps the scheduler from freezing.
        let is_runnable = self.exec_waits && !self.kernel.is_paused();
        if self.kernel.wants_freeze() && !is_runnable {
            let mut next = self.clone();
            next.feed(cpu, kernel::Input::Frozen);
            all.push((Step::Freezes, next));
        }
    }

    /// The world that stands for all that differ only in the order of CPUs: CPUs are alike, so all that follows is the
    /// same.
    pub fn normal(mut self) -> Self {
        let key = |todo: &Vec<Work>| format!("{todo:?}");
        if self.cpus.iter().all(|todo| !todo.is_empty()) {
            self.cpus.sort_by_cached_key(key);
        } else {
            self.cpus.sort_by_key(Vec::is_empty);
        }
        self
    }
}

fn number_of(request: i64) -> u64 {
    request.cast_unsigned()
}
