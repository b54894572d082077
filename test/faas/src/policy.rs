//! Which function runs, sleeps, or is stopped: a value with one [`Policy::step`], which knows no clocks and no processes.
//!
//! The memory of the functions that are awake is kept within a budget. Of those that serve no request the one that was used
//! least recently is put to sleep first, or stopped where the runtime has no sleep. What is asleep is not counted.

use std::collections::BTreeSet;

#[cfg(test)]
mod tests;

/// A function, by its place in the configuration.
pub type FunctionIndex = usize;

/// A request, from its arrival to its end. No two are the same.
pub type Ticket = u64;

/// One start of a function. Reports about an earlier one are ignored.
pub type Instance = u64;

/// An event that the policy reacts to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are said by their types")]
pub enum Event {
    /// A request arrives.
    Request { function: FunctionIndex, ticket: Ticket },
    /// A request has its answer, has failed, or its client has gone away.
    Gone { function: FunctionIndex, ticket: Ticket },
    /// The runtime tells about a start of a function.
    Report { function: FunctionIndex, instance: Instance, report: Report },
    /// Some time has passed: functions that could not be put to sleep may be tried again.
    Tick,
}

/// A thing that became of a start of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// It listens at its port.
    Started,
    /// It does not run, and nothing is left of it.
    StartFailed {
        /// The end of a sentence that names the function.
        why: String,
    },
    /// It is awake again, and takes requests.
    Woken,
    /// It is asleep as before.
    WakeFailed,
    /// It is asleep.
    Slept,
    /// It is awake as before.
    SleepFailed,
    /// It does not run, and nothing is left of it.
    Stopped,
    /// It ended without being asked to.
    Died,
    /// The memory that it uses, measured while it was asleep or awake.
    Memory {
        /// Bytes that are charged to its container.
        bytes: u64,
        /// It was asleep when they were measured.
        is_asleep: bool,
    },
}

/// An order that the policy gives. Orders are carried out in their sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are said by their types")]
pub enum Action {
    /// The function is ready for the request.
    Grant { ticket: Ticket },
    /// The request gets no answer.
    Refuse { ticket: Ticket, refusal: Refusal },
    /// The function is started; answered by [`Report::Started`] or [`Report::StartFailed`].
    Start { function: FunctionIndex, instance: Instance },
    /// The function is woken; answered by [`Report::Woken`] or [`Report::WakeFailed`].
    Wake { function: FunctionIndex, instance: Instance },
    /// The function is put to sleep; answered by [`Report::Slept`] or [`Report::SleepFailed`].
    Sleep { function: FunctionIndex, instance: Instance },
    /// The function is ended; answered by [`Report::Stopped`].
    Stop { function: FunctionIndex, instance: Instance },
}

/// The reason why a request gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The function has as many requests already as it may have.
    Busy,
    /// The function cannot be started.
    NotStarted {
        /// The end of a sentence that names the function.
        why: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Absent,
    Starting,
    Awake,
    FallingAsleep,
    Asleep,
    Waking,
    Stopping,
}

#[derive(Debug)]
struct Function {
    state: State,
    /// The last start.
    instance: Instance,
    /// Requests that wait for it, or that it serves if it is awake.
    requests: BTreeSet<Ticket>,
    /// When a request last came or went, in steps of the policy.
    last_used: u64,
    /// The last figures. Those of an earlier start are the best guess for the next one.
    awake_bytes: u64,
    asleep_bytes: u64,
    /// It could not be put to sleep since the last tick or request.
    refuses_sleep: bool,
}

impl Function {
    fn new() -> Self {
        Self {
            state: State::Absent,
            instance: 0,
            requests: BTreeSet::new(),
            last_used: 0,
            awake_bytes: 0,
            asleep_bytes: 0,
            refuses_sleep: false,
        }
    }

    /// Whether its memory counts.
    fn is_up(&self) -> bool {
        matches!(self.state, State::Starting | State::Awake | State::Waking)
    }

    fn may_be_put_to_sleep(&self) -> bool {
        self.state == State::Awake && self.requests.is_empty() && !self.refuses_sleep
    }

    fn grant_all(&self) -> impl Iterator<Item = Action> {
        self.requests.iter().map(|ticket| Action::Grant { ticket: *ticket })
    }
}

/// How often things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests that got no answer of a function.
    pub refused: u64,
    /// Starts of functions that were absent.
    pub cold_starts: u64,
    /// Starts after which the function did not listen in time.
    pub failed_starts: u64,
    /// Wakes of functions that were asleep.
    pub wakes: u64,
    /// Times that a function was put to sleep.
    pub sleeps: u64,
    /// Times that a function could not be put to sleep, and stayed awake.
    pub failed_sleeps: u64,
    /// Functions that were ended by order of the policy.
    pub stops: u64,
    /// Functions that ended without being asked to.
    pub deaths: u64,
}

/// The functions' present numbers by state, and their memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Now {
    /// Functions that take requests.
    pub awake: u64,
    /// Functions that sleep.
    pub asleep: u64,
    /// On the way from one to another: started, woken, put to sleep, stopped.
    pub changing: u64,
    /// Memory of those that are awake, as last measured.
    pub awake_bytes: u64,
    /// Memory of those that sleep, as last measured.
    pub asleep_bytes: u64,
}

/// The bounds that functions are kept to.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Of all that are awake, together.
    pub budget_bytes: u64,
    /// Requests at one function, those that wait included.
    pub requests_each: usize,
    /// Without sleep functions are stopped instead.
    pub can_sleep: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Policy {
    bounds: Bounds,
    functions: Vec<Function>,
    steps: u64,
    last_instance: Instance,
    counters: Counters,
}

impl Policy {
    /// A policy for so many functions, none of which runs.
    #[must_use]
    pub fn new(bounds: Bounds, function_count: usize) -> Self {
        Self {
            bounds,
            functions: (0..function_count).map(|_| Function::new()).collect(),
            steps: 0,
            last_instance: 0,
            counters: Counters::default(),
        }
    }

    /// Takes an event; result: what to do about it.
    ///
    /// # Panics
    /// When the event names a function that there is not.
    pub fn step(&mut self, event: Event) -> Vec<Action> {
        self.steps += 1;
        let mut actions = match event {
            Event::Request { function, ticket } => self.request(function, ticket),
            Event::Gone { function, ticket } => self.gone(function, ticket),
            Event::Report { function, instance, report } => {
                if self.functions[function].instance == instance {
                    self.report(function, report)
                } else {
                    Vec::new()
                }
            }
            Event::Tick => {
                for function in &mut self.functions {
                    function.refuses_sleep = false;
                }
                Vec::new()
            }
        };
        self.keep_within_budget(&mut actions);
        actions
    }

    /// How often things happened since the policy was made.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How many functions are in which state, and their memory.
    #[must_use]
    pub fn now(&self) -> Now {
        let mut now = Now::default();
        for function in &self.functions {
            match function.state {
                State::Absent => {}
                State::Awake => now.awake += 1,
                State::Asleep => now.asleep += 1,
                State::Starting | State::FallingAsleep | State::Waking | State::Stopping => now.changing += 1,
            }
            if function.is_up() {
                now.awake_bytes += function.awake_bytes;
            } else if function.state == State::Asleep {
                now.asleep_bytes += function.asleep_bytes;
            }
        }
        now
    }

    /// Whether the function rests: its memory is then that of a sleeper.
    #[must_use]
    pub fn is_asleep(&self, function: FunctionIndex) -> bool {
        self.functions[function].state == State::Asleep
    }

    fn request(&mut self, index: FunctionIndex, ticket: Ticket) -> Vec<Action> {
        self.counters.requests += 1;
        let function = &mut self.functions[index];
        if function.requests.len() >= self.bounds.requests_each {
            self.counters.refused += 1;
            return vec![Action::Refuse { ticket, refusal: Refusal::Busy }];
        }
        function.requests.insert(ticket);
        function.last_used = self.steps;
        function.refuses_sleep = false;
        match function.state {
            State::Absent => vec![self.start(index)],
            State::Asleep => vec![self.wake(index)],
            State::Awake => vec![Action::Grant { ticket }],
            State::Starting | State::FallingAsleep | State::Waking | State::Stopping => Vec::new(),
        }
    }

    fn gone(&mut self, index: FunctionIndex, ticket: Ticket) -> Vec<Action> {
        let function = &mut self.functions[index];
        if function.requests.remove(&ticket) {
            function.last_used = self.steps;
        }
        Vec::new()
    }

    fn report(&mut self, index: FunctionIndex, report: Report) -> Vec<Action> {
        let function = &mut self.functions[index];
        match (function.state, report) {
            (State::Starting, Report::Started) | (State::Waking, Report::Woken) => self.rise(index),
            (State::Starting, Report::StartFailed { why }) => self.start_failed(index, &why),
            (State::Starting, Report::Died) => self.start_failed(index, "it ended at once"),
            (State::Waking, Report::WakeFailed) => vec![self.stop(index)],
            (State::FallingAsleep, Report::Slept) => {
                self.counters.sleeps += 1;
                function.state = State::Asleep;
                if function.requests.is_empty() { Vec::new() } else { vec![self.wake(index)] }
            }
            (State::FallingAsleep, Report::SleepFailed) => {
                self.counters.failed_sleeps += 1;
                function.refuses_sleep = true;
                self.rise(index)
            }
            (State::Stopping, Report::Stopped) => self.fall(index),
            (State::Awake, Report::Died) => {
                // Those that it served find out by themselves.
                function.requests.clear();
                self.counters.deaths += 1;
                self.fall(index)
            }
            (State::FallingAsleep | State::Asleep | State::Waking, Report::Died) => {
                self.counters.deaths += 1;
                self.fall(index)
            }
            (State::Awake, Report::Memory { bytes, is_asleep: false }) => {
                function.awake_bytes = bytes;
                Vec::new()
            }
            (State::Asleep, Report::Memory { bytes, is_asleep: true }) => {
                function.asleep_bytes = bytes;
                Vec::new()
            }
            // What was measured before the state changed, and the end of what is being stopped.
            _ => Vec::new(),
        }
    }

    fn rise(&mut self, index: FunctionIndex) -> Vec<Action> {
        let function = &mut self.functions[index];
        function.state = State::Awake;
        function.grant_all().collect()
    }

    /// Nothing is left of the function; it is started again if a request waits.
    fn fall(&mut self, index: FunctionIndex) -> Vec<Action> {
        let function = &mut self.functions[index];
        function.state = State::Absent;
        if function.requests.is_empty() { Vec::new() } else { vec![self.start(index)] }
    }

    fn start_failed(&mut self, index: FunctionIndex, why: &str) -> Vec<Action> {
        let function = &mut self.functions[index];
        function.state = State::Absent;
        self.counters.failed_starts += 1;
        let refused = std::mem::take(&mut function.requests);
        self.counters.refused += refused.len() as u64;
        let refusal = Refusal::NotStarted { why: why.to_owned() };
        refused.into_iter().map(|ticket| Action::Refuse { ticket, refusal: refusal.clone() }).collect()
    }

    fn start(&mut self, index: FunctionIndex) -> Action {
        self.counters.cold_starts += 1;
        self.last_instance += 1;
        let function = &mut self.functions[index];
        function.state = State::Starting;
        function.instance = self.last_instance;
        function.refuses_sleep = false;
        Action::Start { function: index, instance: function.instance }
    }

    fn wake(&mut self, index: FunctionIndex) -> Action {
        self.counters.wakes += 1;
        let function = &mut self.functions[index];
        function.state = State::Waking;
        Action::Wake { function: index, instance: function.instance }
    }

    fn stop(&mut self, index: FunctionIndex) -> Action {
        self.counters.stops += 1;
        let function = &mut self.functions[index];
        function.state = State::Stopping;
        Action::Stop { function: index, instance: function.instance }
    }

    fn keep_within_budget(&mut self, actions: &mut Vec<Action>) {
        let up = self.functions.iter().filter(|function| function.is_up());
        let mut used_bytes: u64 = up.map(|function| function.awake_bytes).sum();
        while used_bytes > self.bounds.budget_bytes {
            let idle =
                self.functions.iter().enumerate().filter(|(_, function)| function.may_be_put_to_sleep());
            let Some((index, _)) = idle.min_by_key(|(_, function)| function.last_used) else { return };
            let function = &mut self.functions[index];
            used_bytes -= function.awake_bytes;
            actions.push(if self.bounds.can_sleep {
                function.state = State::FallingAsleep;
                Action::Sleep { function: index, instance: function.instance }
            } else {
                self.stop(index)
            });
        }
    }
}
