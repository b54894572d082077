//! A model of hibernation: the kernel's state machine and the supervisor's, over the channel between them.
//!
//! Both machines are the real ones. Around them are the queue of events, two CPUs that take events, carry out actions and
//! report, and what comes from outside: orders, wake events, processes that come in, and failures. The model goes through
//! every order in which all of this can happen, up to so many things from outside. After each step it checks what always
//! holds ([`World::broken_now`]), and once nothing is left to be done, what holds then ([`World::broken_when_quiet`]).
//!
//! The last tests break one rule each, and the same walk finds the flaw.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::OnceLock;
use std::time::Instant;

use qkernel::hibernate::state_machine as kernel;
use qkernel::hibernate::state_machine::{Goal, Obstacle, Order, Outcome, PATIENCE_NS, State};
use runtime::supervisor::state_machine as supervisor;
use runtime::supervisor::state_machine::{Cause, HIBERNATE_PATIENCE, IDLE_PATIENCE, Place};

const CPUS: usize = 2;
const SOCKET: u64 = 1;
const EXEC: u64 = 3;

/// An event in the VMM's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
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
enum Work {
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
struct Budget {
    orders: u8,
    /// Of `pause` and `resume`.
    holds: u8,
    wake_events: u8,
    execs: u8,
    failures: u8,
}

/// How it is done. All true: as it is.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A wake event that comes on the way down is told to the machine.
    tells_wake_events_on_the_way_down: bool,
    /// The machine hears of an answer after the host has.
    tells_host_first: bool,
    /// The CPU that hibernates the sandbox looks for processes that came in before.
    looks_for_execs: bool,
    /// The machine is told how storing came out.
    tells_failures: bool,
}

const AS_IT_IS: Rules = Rules {
    tells_wake_events_on_the_way_down: true,
    tells_host_first: true,
    looks_for_execs: true,
    tells_failures: true,
};

/// One step, for the trace that leads to a flaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // what they hold is only printed
enum Step {
    WantDown,
    WantAwake,
    Holds,
    HoldsDown,
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
struct World {
    kernel: kernel::Machine,
    supervisor: supervisor::Machine,
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
    fn new(can_hibernate: bool, budget: Budget) -> Self {
        Self {
            kernel: kernel::Machine::new(),
            supervisor: supervisor::Machine::default(),
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
                kernel::Input::Hibernate(Order { request, since_ns: 0, is_hastened, is_held })
            }
            Event::Wake { request, serves } => kernel::Input::Resume { request, serves },
            Event::Exec => return,
        };
        self.feed(cpu, input);
    }

    fn wake_by(&mut self, cpu: usize, by: u64, rules: Rules) {
        self.wake_event = self.kernel.is_paused();
        let is_on_the_way = matches!(self.kernel.state(), State::Hibernating(_) | State::Answering(_));
        if self.kernel.is_paused() && (rules.tells_wake_events_on_the_way_down || !is_on_the_way) {
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
                for (why, now_ns) in
                    [(Obstacle::Store, 0), (Obstacle::Busy, 0), (Obstacle::Busy, PATIENCE_NS)]
                {
                    if next.budget.failures > 0 {
                        let mut failed = next.clone();
                        failed.budget.failures -= 1;
                        let input = match rules.tells_failures {
                            true => kernel::Input::NotStored { why, now_ns },
                            false => kernel::Input::Stored,
                        };
                        feed(&mut failed, input);
                        all.push((Step::Fails(why), failed));
                    }
                }
                next.is_stored = true;
                feed(&mut next, kernel::Input::Stored);
            }
            kernel::Action::Tell(request, outcome) => {
                next.count(request, outcome);
                let sleeps = matches!(outcome, Outcome::Done | Outcome::Already);
                match sleeps {
                    true => next.report(supervisor::Input::Asleep(number(request))),
                    false => next.report(supervisor::Input::StayedWarm(number(request))),
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
    fn internal(&self, rules: Rules) -> Vec<(Step, World)> {
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
        if self.supervisor.fall().is_some_and(|fall| fall.strict_at.is_some()) {
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

    /// Inputs from outside.
    fn external(&self, rules: Rules) -> Vec<(Step, World)> {
        let mut all = Vec::new();
        let mut add = |step, change: &dyn Fn(&mut World)| {
            let mut next = self.clone();
            change(&mut next);
            all.push((step, next));
        };
        if self.budget.orders > 0 {
            add(Step::WantDown, &|next| {
                next.budget.orders -= 1;
                let hibernates = next.can_hibernate;
                let (cause, now) = (Cause::Order, start());
                next.tell_supervisor(supervisor::Input::WantDown { cause, hibernates, now });
            });
            add(Step::WantAwake, &|next| {
                next.budget.orders -= 1;
                next.tell_supervisor(supervisor::Input::WantAwake { cause: Cause::Order, now: start() });
            });
            if !self.can_hibernate {
                add(Step::Starts, &|next| {
                    next.budget.orders -= 1;
                    next.can_hibernate = true;
                });
            }
        }
        if self.budget.holds > 0 {
            let hold = |next: &mut World, hibernates| {
                next.budget.holds -= 1;
                let (cause, now) = (Cause::Pause, start());
                next.tell_supervisor(supervisor::Input::WantDown { cause, hibernates, now });
            };
            if self.supervisor.is_held() {
                add(Step::Resumes, &|next| {
                    next.budget.holds -= 1;
                    let (cause, now) = (Cause::Resume, start());
                    next.tell_supervisor(supervisor::Input::WantAwake { cause, now });
                });
            } else {
                add(Step::Holds, &|next| hold(next, false));
                if self.can_hibernate {
                    add(Step::HoldsDown, &|next| hold(next, true));
                }
            }
        }
        if self.budget.execs > 0 && self.can_hibernate {
            add(Step::Exec, &|next| {
                next.budget.execs -= 1;
                next.post(Event::Exec);
                if next.supervisor.is_hibernated() || next.supervisor.fall().is_some() {
                    let cause = Cause::Request("exec");
                    next.tell_supervisor(supervisor::Input::WantAwake { cause, now: start() });
                }
            });
        }
        if self.budget.failures > 0 {
            if self.supervisor.fall().is_some() {
                add(Step::GivesUp, &|next| {
                    next.budget.failures -= 1;
                    next.tell_supervisor(supervisor::Input::Tick { now: start() + HIBERNATE_PATIENCE });
                });
            }
            if self.kernel.wants_freeze()
                && let Some(cpu) = self.cpus.iter().position(Vec::is_empty)
            {
                add(Step::NotFrozen, &|next| {
                    next.budget.failures -= 1;
                    next.feed(cpu, kernel::Input::NotFrozen { now_ns: PATIENCE_NS });
                });
            }
        }
        if self.budget.wake_events > 0
            && let Some(cpu) = self.cpus.iter().position(Vec::is_empty)
        {
            add(Step::WakeEvent, &|next| {
                next.budget.wake_events -= 1;
                next.wake_by(cpu, SOCKET, rules);
            });
        }
        all
    }

    // ---- what holds ----

    /// The invariant that is broken now, if any.
    fn broken_now(&self) -> Option<&'static str> {
        if self.kernel.state() == State::Running && self.is_stored {
            return Some("tasks run, and their memory is not there");
        }
        if self.kernel.state() == State::Hibernated && !self.is_stored {
            return Some("the sandbox is hibernated, and its memory is not in its home");
        }
        self.flaw
    }

    /// The invariant that is broken although nothing is left to be done.
    fn broken_when_quiet(&self) -> Option<&'static str> {
        let state = self.kernel.state();
        let place = match state {
            State::Running => Place::Running,
            State::Paused => Place::Paused,
            State::Hibernated => Place::Hibernated,
            _ => return Some("a CPU was to go on, and does not"),
        };
        if matches!(self.kernel.goal(), Goal::Hibernate(_)) {
            return Some("a hibernation is not carried out");
        }
        if self.outcomes.iter().any(|(_, count)| *count == 0) {
            return Some("a request has no outcome");
        }
        if state == State::Hibernated && self.wake_event && !self.supervisor.is_held() {
            return Some("a wake event is lost");
        }
        if state == State::Hibernated && self.exec_waits && !self.supervisor.is_held() {
            return Some("a process that came in sleeps with the sandbox");
        }
        let is_as_asked = match self.asked {
            Asked::Run => state == State::Running,
            // A pause leaves a hibernated sandbox as it is.
            Asked::Pause => state == State::Paused || state == State::Hibernated,
            Asked::Hibernate => state == State::Hibernated,
        };
        if !is_as_asked {
            return Some("the last request has not won");
        }
        if self.supervisor.is_held() && !self.supervisor.is_down() {
            return Some("what is held goes on");
        }
        if self.supervisor.place() != place {
            return Some("the supervisor takes the sandbox to be where it is not");
        }
        if self.supervisor.wants_down() != (self.asked != Asked::Run) {
            return Some("the supervisor wants something else than it has asked for");
        }
        if self.supervisor.fall().is_some() || self.supervisor.is_rising() {
            return Some("the supervisor waits for something that does not come");
        }
        None
    }

    /// The world that stands for all that differ only in the order of CPUs: CPUs are alike, so all that follows is the
    /// same.
    fn normal(mut self) -> Self {
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

/// The result of a walk.
#[derive(Debug, Default)]
struct Walk {
    states: usize,
    quiet: usize,
    depth: u32,
    flaw: Option<(&'static str, Vec<Step>)>,
}

/// Goes through every order, breadth first, until it finds a flaw.
fn walk(first: World, rules: Rules) -> Walk {
    let mut ids: HashMap<World, u32> = HashMap::new();
    // Where each state was first come from, and how far from the first one it is.
    let mut from: Vec<(u32, Option<Step>, u32)> = vec![(0, None, 0)];
    let mut worlds = std::collections::VecDeque::from([first.clone()]);
    ids.insert(first, 0);
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut found = Walk::default();
    let mut id = 0;
    while let Some(world) = worlds.pop_front() {
        let internal = world.internal(rules);
        let is_quiet = internal.is_empty();
        found.quiet += usize::from(is_quiet);
        found.depth = from[id as usize].2;
        let broken = world.broken_now().or_else(|| world.broken_when_quiet().filter(|_| is_quiet));
        if let Some(flaw) = broken {
            let mut trace = Vec::new();
            let mut at = id;
            while let (before, Some(step), _) = from[at as usize] {
                trace.push(step);
                at = before;
            }
            trace.reverse();
            found.states = from.len();
            found.flaw = Some((flaw, trace));
            return found;
        }
        let own = internal.len();
        for (at, (step, next)) in internal.into_iter().chain(world.external(rules)).enumerate() {
            let next = next.normal();
            let new = u32::try_from(from.len()).unwrap();
            let to = match ids.entry(next) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(place) => {
                    worlds.push_back(place.key().clone());
                    from.push((id, Some(step), found.depth + 1));
                    *place.insert(new)
                }
            };
            if at < own {
                edges.push((id, to));
            }
        }
        id += 1;
    }
    found.states = from.len();
    if !comes_to_rest(from.len(), &edges) {
        found.flaw = Some(("it never comes to rest by itself", Vec::new()));
    }
    found
}

/// Whether these edges lead in no circle.
fn comes_to_rest(states: usize, edges: &[(u32, u32)]) -> bool {
    let mut incoming = vec![0_u32; states];
    let mut outgoing = vec![Vec::new(); states];
    for (from, to) in edges {
        incoming[*to as usize] += 1;
        outgoing[*from as usize].push(*to);
    }
    let mut free: Vec<usize> = (0..states).filter(|state| incoming[*state] == 0).collect();
    let mut left = states;
    while let Some(state) = free.pop() {
        left -= 1;
        for to in &outgoing[state] {
            incoming[*to as usize] -= 1;
            if incoming[*to as usize] == 0 {
                free.push(*to as usize);
            }
        }
    }
    left == 0
}

fn holds(what: &str, can_hibernate: bool, budget: Budget) {
    let began = Instant::now();
    let Walk { states, quiet, depth, flaw } = walk(World::new(can_hibernate, budget), AS_IT_IS);
    println!("{what}: {states} states, {quiet} of them quiet, {depth} steps deep, {:?}", began.elapsed());
    assert_eq!(flaw, None, "{what}");
    assert!(states > 1000 && quiet > 10);
}

/// Which flaw the walk finds.
fn flaw_of(rules: Rules, budget: Budget) -> &'static str {
    let found = walk(World::new(true, budget), rules);
    println!("{} states, {:#?}", found.states, found.flaw);
    found.flaw.map_or("none", |(flaw, _)| flaw)
}

#[test]
fn orders_and_failures() {
    holds("orders", true, Budget { orders: 6, holds: 0, wake_events: 0, execs: 0, failures: 0 });
    holds("failures", true, Budget { orders: 4, holds: 0, wake_events: 0, execs: 0, failures: 2 });
}

#[test]
fn wake_events() {
    holds("wake events", true, Budget { orders: 3, holds: 0, wake_events: 1, execs: 0, failures: 1 });
    holds("two wake events", true, Budget { orders: 3, holds: 0, wake_events: 2, execs: 0, failures: 1 });
}

#[test]
fn processes_that_come_in() {
    holds("exec", true, Budget { orders: 2, holds: 0, wake_events: 0, execs: 2, failures: 1 });
    holds(
        "exec and a wake event",
        true,
        Budget { orders: 2, holds: 0, wake_events: 1, execs: 1, failures: 1 },
    );
}

#[test]
fn pauses() {
    holds("pauses", false, Budget { orders: 5, holds: 0, wake_events: 1, execs: 0, failures: 0 });
}

#[test]
fn what_is_held_goes_on_by_order_alone() {
    holds("held", true, Budget { orders: 2, holds: 2, wake_events: 1, execs: 0, failures: 1 });
    holds("held and exec", true, Budget { orders: 1, holds: 2, wake_events: 1, execs: 1, failures: 1 });
    holds(
        "held before its start",
        false,
        Budget { orders: 2, holds: 3, wake_events: 1, execs: 0, failures: 0 },
    );
}

const SMALL: Budget = Budget { orders: 2, holds: 0, wake_events: 1, execs: 1, failures: 1 };

#[test]
fn it_finds_a_wake_event_that_is_lost_on_the_way_down() {
    let rules = Rules { tells_wake_events_on_the_way_down: false, ..AS_IT_IS };
    assert_eq!(flaw_of(rules, SMALL), "a wake event is lost");
}

#[test]
fn it_finds_that_the_host_hears_of_a_wake_before_the_sleep() {
    let rules = Rules { tells_host_first: false, ..AS_IT_IS };
    assert_eq!(flaw_of(rules, SMALL), "the host hears of a sleep, and the memory is not in its home");
}

#[test]
fn it_finds_a_process_that_sleeps_with_the_sandbox() {
    let rules = Rules { looks_for_execs: false, ..AS_IT_IS };
    assert_eq!(flaw_of(rules, SMALL), "a process that came in sleeps with the sandbox");
}

#[test]
fn it_finds_a_failure_that_is_taken_for_a_sleep() {
    let rules = Rules { tells_failures: false, ..AS_IT_IS };
    assert_eq!(flaw_of(rules, SMALL), "the host hears of a sleep, and the memory is not in its home");
}
