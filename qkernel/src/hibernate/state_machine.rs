//! The states of a sandbox that hibernates (Hibernate Container, section 3.1), and every transition between them.
//!
//! A [`HibernationMachine`] is a value: it takes an [`Input`], changes its state, and says which [`Action`]s are to be carried out.
//! It calls nobody and keeps no time, so `test/tests/hibernation_model.rs` can try all orders of inputs.
//!
//! Two things make up what it knows: where the sandbox is ([`State`]), and what the last request asks for ([`Goal`]).
//! Requests carry growing numbers. The largest number wins, in whatever order CPUs take them: a smaller one is out of
//! date, and nobody is told of it. Each request to hibernate that is taken has exactly one outcome.
//!
//! Several CPUs step the machine and carry out actions at the same time. The states [`State::Hibernating`],
//! [`State::Answering`] and [`State::Waking`] stand for a CPU that is at work and that alone ends them. So pages are
//! never stored and brought back at the same time, and the host hears of a sleep before it hears of the wake.

use abi::report::WakeEvent;

/// How long tasks may take to come to rest, in nanoseconds: much longer than it takes, unless the host gives no processor time.
pub const PATIENCE_NS: u64 = 10_000_000_000;

/// The state of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// User code may run.
    Running,
    /// No task enters user code. A CPU calls the others out of it on behalf of this request, and tells the host.
    Pausing(i64),
    /// No user code runs, and the host knows.
    Paused,
    /// One CPU stores the memory on behalf of this request. The scheduler is frozen.
    Hibernating(i64),
    /// The memory is in its home. One CPU tells the host how this request came out.
    Answering(i64),
    /// The memory is in its home.
    Hibernated,
    /// One CPU brings the working set back on behalf of this request.
    Waking(i64),
}

/// The part of the last request that has not been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// User code runs.
    Run,
    /// No user code runs. Memory stays where it is.
    Pause,
    /// The memory goes to its home.
    Hibernate(Order),
}

/// A request to hibernate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    pub request: i64,
    /// When it was taken, in nanoseconds.
    pub since_ns: u64,
    /// Tasks are paused wherever they are. Otherwise the sandbox hibernates once every task waits for something.
    pub is_hastened: bool,
    /// No wake event ends the sleep, only a request to go on.
    pub is_held: bool,
    /// Content stays in memory, for an image that is taken next.
    pub stays: bool,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Requests of the host's.
    Pause(i64),
    /// A request to pause as by [`Input::Pause`], but should the memory be in its home, no wake event brings it back.
    Hold(i64),
    Hibernate(Order),
    /// `serves`: for something that has come for the sandbox.
    Resume {
        request: i64,
        serves: bool,
    },
    /// Something came from outside that a task waits for.
    WakeEvent(WakeEvent),
    /// Something came since the sandbox was found idle, which was the reason for this request.
    Withdraw(i64),
    /// An idle CPU froze the scheduler. No task runs or waits for a CPU.
    Frozen,
    /// An idle CPU could not: some task runs.
    NotFrozen {
        now_ns: u64,
    },
    /// [`Action::Pause`] was carried out.
    CalledOut(i64),
    /// How [`Action::Store`] came out.
    Stored,
    NotStored {
        why: Obstacle,
        now_ns: u64,
    },
    /// [`Action::Tell`] was carried out.
    Told(i64),
    /// [`Action::BringBack`] was carried out, but for what comes while tasks run (`streams`).
    BroughtBack {
        streams: bool,
    },
    /// [`Action::Stream`] was carried out.
    Streamed,
}

/// Why memory was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Obstacle {
    /// A task holds a lock, and has to go on a little.
    Busy,
    NoMemory,
    Store,
}

/// How a request to hibernate came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Done,
    /// The sandbox was hibernated before.
    Already,
    /// A later request came first.
    Cancelled,
    Failed(Obstacle),
}

/// Something to be done, in the order of the list, once the lock is let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Call the other CPUs out of user code, and tell the host. Then [`Input::CalledOut`].
    Pause(i64),
    /// Let tasks go on, and tell the host.
    Resume(i64),
    /// Tell the host, the next time that no task has anything to do.
    TellIdle,
    /// Store the memory. Then [`Input::Stored`] or [`Input::NotStored`].
    Store(Order),
    /// Tell the host how a request came out. Then [`Input::Told`].
    Tell(i64, Outcome),
    /// Tell the host that a wake event wakes the sandbox.
    TellWakeEvent(WakeEvent),
    /// Bring the working set back. Then [`Input::BroughtBack`].
    BringBack,
    /// Bring the rest back while tasks run. Then [`Input::Streamed`].
    Stream,
}

/// Most actions of one step.
const ACTIONS_MAX: usize = 4;

/// The actions of one step, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Actions {
    list: [Option<Action>; ACTIONS_MAX],
    len: usize,
}

impl Actions {
    fn push(&mut self, action: Action) {
        debug_assert!(self.len < ACTIONS_MAX);
        if let Some(place) = self.list.get_mut(self.len) {
            *place = Some(action);
            self.len += 1;
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Action> {
        self.list.iter().flatten().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HibernationMachine {
    state: State,
    goal: Goal,
    /// The last request that was taken.
    last: i64,
    /// The last request that led to [`Action::Pause`] or [`Action::Resume`], which tell the host of it.
    reported: i64,
    /// A wake event came since the last request, while the sandbox slept or was on its way there.
    wake_event: Option<WakeEvent>,
    /// The last request lets no wake event end what it asks for.
    is_held: bool,
    /// The last request to go on was for something that has come for the sandbox.
    serves: bool,
    /// A CPU brings pages back while tasks run.
    is_streaming: bool,
    /// The memory is in its home for tasks alone: its content has stayed in memory, and has been stored nowhere.
    is_in_place: bool,
    /// It is to stay by the order that is carried out.
    stays: bool,
}

impl Default for HibernationMachine {
    fn default() -> Self {
        Self::new()
    }
}

impl HibernationMachine {
    /// Of a sandbox that runs.
    pub const fn new() -> Self {
        Self {
            state: State::Running,
            goal: Goal::Run,
            last: 0,
            reported: 0,
            wake_event: None,
            is_held: false,
            serves: false,
            is_streaming: false,
            is_in_place: false,
            stays: false,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn goal(&self) -> Goal {
        self.goal
    }

    /// Whether tasks stay out of user code.
    pub fn is_paused(&self) -> bool {
        self.state != State::Running
    }

    /// Whether a hibernation is to be carried out, now or soon.
    pub fn is_wanted(&self) -> bool {
        let is_at_work = matches!(self.state, State::Hibernating(_) | State::Answering(_) | State::Waking(_));
        matches!(self.goal, Goal::Hibernate(_)) && !is_at_work
    }

    /// Whether the memory is in its home, and stays there until somebody asks for it.
    pub fn is_hibernated(&self) -> bool {
        self.state == State::Hibernated && !self.is_streaming
    }

    /// Whether a CPU is at work on where the memory is.
    pub fn is_at_work(&self) -> bool {
        self.is_streaming
            || matches!(self.state, State::Hibernating(_) | State::Answering(_) | State::Waking(_))
    }

    /// Whether the sandbox sleeps, and a wake event would wake it.
    pub fn is_woken_by_events(&self) -> bool {
        self.state == State::Hibernated && self.goal == Goal::Pause && !self.is_held
    }

    /// The requests of another VMM count from one again; what the last one of the former asked for holds.
    /// `is_image`: memory that had stayed is in its home now.
    pub fn count_anew(&mut self, is_image: bool) {
        (self.last, self.reported) = (0, 0);
        self.is_in_place &= !is_image;
    }

    /// From now on no wake event wakes it, which is asleep.
    pub fn hold_asleep(&mut self) {
        if self.state == State::Hibernated {
            self.is_held = true;
        }
    }

    /// Whether an idle CPU should try to freeze the scheduler, and say [`Input::Frozen`] or [`Input::NotFrozen`].
    pub fn wants_freeze(&self) -> bool {
        self.is_wanted() && !self.is_streaming && !matches!(self.state, State::Pausing(_))
    }

    /// Takes what happened; result: what is to be done about it.
    pub fn step(&mut self, input: Input) -> Actions {
        let mut todo = Actions::default();
        match input {
            Input::Pause(_) | Input::Hold(_) | Input::Resume { .. } | Input::Hibernate(_) => {
                self.request(input, &mut todo);
            }
            Input::Withdraw(request) => self.withdraw(request, &mut todo),
            Input::WakeEvent(by) => self.note_wake_event(by),
            Input::CalledOut(_) | Input::Frozen | Input::NotFrozen { .. } => self.descend(input, &mut todo),
            Input::Stored | Input::NotStored { .. } | Input::Told(_) => self.finish_descent(input, &mut todo),
            Input::BroughtBack { streams } => self.ascend(streams, &mut todo),
            Input::Streamed => self.is_streaming = false,
        }
        self.approach(&mut todo);
        todo
    }

    /// Requests. The last one wins.
    fn request(&mut self, input: Input, todo: &mut Actions) {
        match (self.goal, input) {
            (_, Input::Pause(request)) => self.take(request, Goal::Pause, Manner::default(), todo),
            (_, Input::Hold(request)) => self.take(request, Goal::Pause, Manner::HELD, todo),
            (_, Input::Resume { request, serves }) => {
                self.take(request, Goal::Run, Manner { serves, ..Manner::default() }, todo);
            }
            (Goal::Hibernate(order), Input::Hibernate(again)) if again.request == order.request => {
                let (is_hastened, stays) =
                    (order.is_hastened || again.is_hastened, order.stays || again.stays);
                self.goal = Goal::Hibernate(Order { is_hastened, stays, ..order });
            }
            (_, Input::Hibernate(order)) => {
                let manner = Manner { is_held: order.is_held, ..Manner::default() };
                self.take(order.request, Goal::Hibernate(order), manner, todo);
            }
            _ => {}
        }
    }

    /// A request that was made because nothing came is taken back. On its way down it is what came that ends the sleep.
    fn withdraw(&mut self, request: i64, todo: &mut Actions) {
        if let (State::Running, Goal::Hibernate(order)) = (self.state, self.goal)
            && order.request == request
            && !order.is_held
        {
            self.fail(request, Outcome::Cancelled, todo);
        }
    }

    /// Keeps a wake event. To a sandbox that is held, in a mere pause, and while the sandbox runs or is woken, it means nothing.
    fn note_wake_event(&mut self, by: WakeEvent) {
        if self.is_held {
            return;
        }
        match (self.state, self.goal) {
            (State::Hibernating(_) | State::Answering(_) | State::Hibernated, Goal::Pause)
            | (_, Goal::Hibernate(_)) => self.wake_event = Some(by),
            _ => {}
        }
    }

    /// The way down as far as the frozen scheduler. An input that came too late means nothing.
    fn descend(&mut self, input: Input, todo: &mut Actions) {
        match (self.state, self.goal, input) {
            (State::Pausing(of), _, Input::CalledOut(request)) if of == request => self.state = State::Paused,
            (State::Running | State::Paused, Goal::Hibernate(order), Input::Frozen)
                if self.wants_freeze() =>
            {
                self.reported = order.request;
                todo.push(Action::Pause(order.request));
                self.store(order, todo);
            }
            (State::Running | State::Paused, Goal::Hibernate(order), Input::NotFrozen { now_ns })
                if self.wants_freeze() && order.is_overdue(now_ns) =>
            {
                self.fail(order.request, Outcome::Failed(Obstacle::Busy), todo);
            }
            // Asleep, but the memory is still to go to its home.
            (State::Hibernated, Goal::Hibernate(order), Input::Frozen)
                if self.is_in_place && !order.stays =>
            {
                self.store(order, todo);
            }
            (State::Hibernated, Goal::Hibernate(order), Input::NotFrozen { now_ns })
                if self.is_in_place && !order.stays && order.is_overdue(now_ns) =>
            {
                self.fail(order.request, Outcome::Failed(Obstacle::Busy), todo);
            }
            (State::Hibernated, Goal::Hibernate(order), Input::NotFrozen { .. })
                if self.is_in_place && !order.stays => {}
            // Asleep before.
            (State::Hibernated, Goal::Hibernate(order), Input::Frozen | Input::NotFrozen { .. }) => {
                self.answer(order.request, Outcome::Already, todo);
            }
            _ => {}
        }
    }

    /// The memory was stored or was not, or the host has been told. An input that came too late means nothing.
    fn finish_descent(&mut self, input: Input, todo: &mut Actions) {
        match (self.state, self.goal, input) {
            (State::Hibernating(request), _, Input::Stored) => {
                self.is_in_place = self.stays;
                self.answer(request, Outcome::Done, todo);
            }
            (
                State::Hibernating(request),
                Goal::Hibernate(order),
                Input::NotStored { why: Obstacle::Busy, now_ns },
            ) if order.request == request && !order.is_overdue(now_ns) => self.state = self.unstored(),
            (State::Hibernating(request), goal, Input::NotStored { why, .. }) => {
                let is_overtaken = why == Obstacle::Busy && !goal.is_for(request);
                let outcome = if is_overtaken { Outcome::Cancelled } else { Outcome::Failed(why) };
                self.fail(request, outcome, todo);
            }
            (State::Answering(of), _, Input::Told(request)) if of == request => {
                self.state = State::Hibernated
            }
            _ => {}
        }
    }

    /// The way up.
    fn ascend(&mut self, streams: bool, todo: &mut Actions) {
        if let State::Waking(request) = self.state {
            self.rise(request, todo);
            if streams {
                self.is_streaming = true;
                todo.push(Action::Stream);
            }
        }
    }

    /// Takes a request, unless a later one was taken. It overtakes a hibernation that has not begun.
    fn take(&mut self, request: i64, goal: Goal, manner: Manner, todo: &mut Actions) {
        if request <= self.last {
            return;
        }
        if let Goal::Hibernate(order) = self.goal
            && self.state != State::Hibernating(order.request)
        {
            todo.push(Action::Tell(order.request, Outcome::Cancelled));
        }
        (self.last, self.goal) = (request, goal);
        (self.serves, self.is_held) = (manner.serves, manner.is_held);
        self.wake_event = None;
    }

    /// The memory is in its home: a CPU tells the host of this request.
    fn answer(&mut self, request: i64, outcome: Outcome, todo: &mut Actions) {
        self.done(request, Goal::Pause);
        self.state = State::Answering(request);
        todo.push(Action::Tell(request, outcome));
    }

    /// A hibernation failed. The sandbox goes on, unless a later request says otherwise.
    fn fail(&mut self, request: i64, outcome: Outcome, todo: &mut Actions) {
        if self.goal.is_for(request) {
            self.is_held = false;
        }
        self.done(request, Goal::Run);
        todo.push(Action::Tell(request, outcome));
        if self.is_in_place {
            self.state = State::Hibernated;
            self.approach(todo);
        } else {
            self.rise(request, todo);
        }
    }

    /// The scheduler is frozen: a CPU stores the memory.
    fn store(&mut self, order: Order, todo: &mut Actions) {
        self.state = State::Hibernating(order.request);
        self.stays = order.stays;
        todo.push(Action::Store(order));
    }

    /// The state of a sandbox whose memory was not stored.
    fn unstored(&self) -> State {
        if self.is_in_place { State::Hibernated } else { State::Paused }
    }

    /// A request to hibernate has been carried out, or has failed. A later one remains.
    fn done(&mut self, request: i64, goal: Goal) {
        if self.goal.is_for(request) {
            self.goal = goal;
        }
    }

    /// The memory is there again, or still is. One that is to hibernate only when idle goes on until then.
    fn rise(&mut self, request: i64, todo: &mut Actions) {
        self.state = State::Paused;
        if matches!(self.goal, Goal::Hibernate(Order { is_hastened: false, .. })) {
            self.resume(request, todo);
        }
        self.approach(todo);
    }

    fn resume(&mut self, request: i64, todo: &mut Actions) {
        self.state = State::Running;
        self.reported = request;
        todo.push(Action::Resume(request));
        if core::mem::take(&mut self.serves) {
            todo.push(Action::TellIdle);
        }
    }

    /// Goes where the last request and wake events want it, if no CPU is at work that alone may go on.
    fn approach(&mut self, todo: &mut Actions) {
        let is_news = self.reported < self.last;
        match (self.state, self.goal) {
            (State::Pausing(_) | State::Paused, Goal::Run) => self.resume(self.last, todo),
            (State::Running, Goal::Run) if is_news => self.resume(self.last, todo),
            (State::Running, Goal::Pause | Goal::Hibernate(Order { is_hastened: true, .. })) => {
                self.pause(todo);
            }
            (
                State::Pausing(_) | State::Paused,
                Goal::Pause | Goal::Hibernate(Order { is_hastened: true, .. }),
            ) if is_news => self.pause(todo),
            (State::Hibernated, Goal::Run) => self.wake(todo),
            (State::Hibernated, Goal::Pause) => {
                if let Some(by) = self.wake_event.take() {
                    // As if nobody had asked for the sleep.
                    (self.goal, self.serves) = (Goal::Run, true);
                    todo.push(Action::TellWakeEvent(by));
                    self.wake(todo);
                }
            }
            _ => {}
        }
        let is_mere_pause = matches!(
            (self.state, self.goal),
            (State::Pausing(_) | State::Paused | State::Waking(_), Goal::Pause)
        );
        if is_mere_pause || self.goal == Goal::Run || self.state == State::Running {
            self.wake_event = None;
        }
    }

    fn pause(&mut self, todo: &mut Actions) {
        self.state = State::Pausing(self.last);
        self.reported = self.last;
        todo.push(Action::Pause(self.last));
    }

    fn wake(&mut self, todo: &mut Actions) {
        self.state = State::Waking(self.last);
        self.is_in_place = false;
        todo.push(Action::BringBack);
    }
}

/// How a request is meant, beside what it asks for.
#[derive(Clone, Copy, Default)]
struct Manner {
    /// See [`HibernationMachine::serves`].
    serves: bool,
    /// See [`HibernationMachine::is_held`].
    is_held: bool,
}

impl Manner {
    const HELD: Self = Self { serves: false, is_held: true };
}

impl Goal {
    /// Whether this hibernation is still wanted.
    fn is_for(&self, request: i64) -> bool {
        matches!(self, Self::Hibernate(order) if order.request == request)
    }
}

impl Order {
    fn is_overdue(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) >= PATIENCE_NS
    }
}

#[cfg(test)]
mod tests;
