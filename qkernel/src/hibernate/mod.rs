//! Hibernation (Hibernate Container, section 3): the sandbox pauses, its memory goes to the home of pages, and comes back
//! by page faults or, as far as it belongs to the working set, all at once.
//!
//! [`state_machine`] decides what happens. This module steps it, under one lock, and carries out its actions, without
//! that lock. A hibernation happens in the idle loop of the CPU that went idle last, with the scheduler frozen: no task
//! runs, none waits for a CPU, and no lock is waited for. Until the pages are safely stored nothing has changed, and
//! whatever fails leaves the sandbox warm.

mod awaited;
pub mod deadlines;
mod deflate;
mod facts;
pub mod idle;
mod regions;
pub mod snapshot;
pub mod state_machine;
pub mod timers;

use abi::hostcall as hc;
use abi::hostcall::{
    HIBERNATE_ALREADY, HIBERNATE_BUSY, HIBERNATE_CANCELLED, HIBERNATE_DONE, HIBERNATE_NO_MEMORY,
    HIBERNATE_STORE, HibernateReport,
};
use abi::report::{Report, WakeEvent};

use crate::net::talks;
use crate::task::container;
use deadlines::Deadlines;
pub use facts::Outbound;
use machine::host;
use machine::mm::{residency, stats, working_set};
use machine::objects::{self, Untied};
use machine::platform;
use machine::recording;
use machine::sched;
use machine::sched::{Frozen, pause};
use machine::sync::{Rank, SpinLock};
use machine::time;
use state_machine::{Action, Actions, HibernationMachine, Input, Obstacle, Order, Outcome};

/// How soon an idle CPU tries again when something was in the way.
const AGAIN_NS: u64 = 2_000_000;

/// The hibernation of this sandbox.
static HIBERNATION: Hibernation = Hibernation::new();

struct Hibernation {
    /// [`pause::is_paused`] is written under this lock, and says what [`HibernationMachine::is_paused`] does.
    machine: SpinLock<HibernationMachine>,
    idle: SpinLock<idle::Watch>,
    /// Deadlines of programs that end a sleep.
    deadlines: SpinLock<Deadlines>,
}

/// Pauses the sandbox, unless a later request has been taken. `is_held`: no wake event ends it, should it be hibernated.
pub fn pause(request: i64, is_held: bool) {
    take(if is_held { Input::Hold(request) } else { Input::Pause(request) });
}

/// Wants the sandbox hibernated, unless a later request has been taken: at once, which pauses it, or when it is `idle`.
/// The same request may come again, no longer `idle`. `is_held`: no wake event wakes it. `stays`: content stays in memory.
pub fn request(request: i64, idle: bool, is_held: bool, stays: bool) {
    let order = Order { request, since_ns: time::monotonic_ns(), is_hastened: !idle, is_held, stays };
    take(Input::Hibernate(order));
}

/// Takes back a request whose reason was that nothing came: something has.
fn withdraw(request: i64) {
    take(Input::Withdraw(request));
}

/// Wakes the sandbox, or ends a mere pause, unless a later request has been taken; `serves`: for something that has come.
pub fn wake(request: i64, serves: bool) {
    if !serves {
        idle::note_activity();
    }
    take(Input::Resume { request, serves });
}

/// Something came from outside that a task waits for, or that a socket's reader finds: wakes the sandbox if it sleeps, or
/// as soon as it does.
pub fn wake_event(by: WakeEvent) {
    wake_event_of(by, 0);
}

/// Reports a wake event of the socket with this token, as [`wake_event`] does for one of no socket.
pub fn wake_event_of(by: WakeEvent, token: u64) {
    if pause::is_paused() {
        talks::woken_by(token);
        take(Input::WakeEvent(by));
    }
}

/// Another VMM has taken over, while the sandbox slept; with an image, or with all that the former one had.
pub fn revive(is_image: bool) {
    HIBERNATION.machine.lock().count_anew(is_image);
}

/// A sandbox that sleeps, and has just begun with a snapshot: it sleeps on until it is told to wake, whatever comes.
pub fn hold() {
    HIBERNATION.machine.lock().hold_asleep();
    HIBERNATION.deadlines.lock().forget();
}

/// Latest time at which an idle CPU looks again.
pub fn look_again_ns() -> u64 {
    let is_wanted = HIBERNATION.machine.lock().is_wanted() || snapshot::is_wanted();
    if is_wanted {
        return time::monotonic_ns() + AGAIN_NS;
    }
    idle::look_at_ns().min(timers::look_at_ns()).min(recording::look_at_ns())
}

/// Hibernates the sandbox if that is wanted and everything is at rest; true: something has changed. For the idle loop.
/// `is_awaited`: something has come in that the sandbox is not to sleep with.
pub fn attempt(is_awaited: fn() -> bool) -> bool {
    let is_wanted = HIBERNATION.machine.lock().wants_freeze();
    if !is_wanted {
        return false;
    }
    // Nor while an image is written of what has stayed in memory.
    let frozen = if residency::is_staying() { None } else { sched::freeze() };
    if cfg!(feature = "checks") && frozen.is_some() {
        // Whatever the sandbox holds of the host's, another VMM could find, if nobody outside stands in the way.
        match objects::check() {
            Err((handle, Untied::NodeGone)) => panic!("nobody knows where handle {handle} comes from"),
            Err((handle, why)) => machine::warn!("handle {handle} could not be opened anew: {why:?}"),
            Ok(()) => {}
        }
    }
    let actions = HIBERNATION.freeze(frozen.as_ref());
    let stores = actions.iter().any(|action| matches!(action, Action::Store(_)));
    let frozen = frozen.filter(|_| stores);
    Carrier { frozen, is_awaited: Some(is_awaited), ..Carrier::default() }.carry_out(&actions);
    !actions.is_empty()
}

fn take(input: Input) {
    let actions = HIBERNATION.step(input);
    Carrier::default().carry_out(&actions);
}

impl Hibernation {
    const fn new() -> Self {
        Self {
            machine: SpinLock::new(Rank::Hibernation, HibernationMachine::new()),
            idle: SpinLock::new(Rank::Leaf, idle::Watch::new()),
            deadlines: SpinLock::new(Rank::Leaf, Deadlines::new()),
        }
    }

    fn step(&self, input: Input) -> Actions {
        let mut machine = self.machine.lock();
        let actions = machine.step(input);
        pause::set(machine.is_paused());
        actions
    }

    /// Steps the machine with what an attempt to freeze the scheduler came to.
    fn freeze(&self, frozen: Option<&Frozen>) -> Actions {
        let now_ns = time::monotonic_ns();
        let mut machine = self.machine.lock();
        let was_paused = machine.is_paused();
        // A task that is woken from now on was woken in a pause, by what counts as a wake event. One that was woken
        // before waits for a CPU.
        let is_undisturbed = frozen.is_some_and(|frozen| {
            pause::set(true);
            frozen.is_undisturbed()
        });
        let actions = machine.step(if is_undisturbed { Input::Frozen } else { Input::NotFrozen { now_ns } });
        let is_paused = machine.is_paused();
        pause::set(is_paused);
        drop(machine);
        if frozen.is_some() && !was_paused && !is_paused {
            // Another CPU may have seen the pause.
            pause::let_go();
        }
        actions
    }
}

/// A CPU that carries out actions.
#[derive(Default)]
struct Carrier {
    /// It has frozen the scheduler.
    frozen: Option<Frozen>,
    /// See [`attempt`].
    is_awaited: Option<fn() -> bool>,
    /// The report on the pages it stored.
    report: HibernateReport,
}

impl Carrier {
    /// Carries out actions, and those that follow from them.
    fn carry_out(&mut self, actions: &Actions) {
        for action in actions.iter() {
            if let Some(input) = self.perform(action) {
                let actions = HIBERNATION.step(input);
                self.carry_out(&actions);
            }
        }
    }

    /// Carries out one action; result: what the machine is to know of it.
    fn perform(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Pause(request) => {
                pause::call_out();
                host::report(&Report::Paused { request: request.cast_unsigned() });
                Some(Input::CalledOut(request))
            }
            Action::Resume(request) => {
                pause::let_go();
                // Tasks of a container that was paused meanwhile.
                container::all().iter().for_each(|container| container.end_sleeps());
                host::report(&Report::Resumed { request: request.cast_unsigned() });
                None
            }
            Action::TellIdle => {
                idle::serve();
                None
            }
            Action::Store(order) => Some(self.store(order)),
            Action::Tell(request, outcome) => {
                self.tell(request, outcome);
                Some(Input::Told(request))
            }
            Action::TellWakeEvent(by) => {
                host::report(&Report::WakeEvent { by });
                None
            }
            Action::BringBack => Some(bring_back()),
            Action::Stream => {
                working_set::bring_back(true);
                Some(Input::Streamed)
            }
        }
    }

    fn store(&mut self, order: Order) -> Input {
        let pause_ns = time::monotonic_ns().saturating_sub(order.since_ns);
        recording::finish();
        idle::sleep();
        timers::sleep();
        // Only who has frozen the scheduler is told to store.
        let result =
            self.frozen.take().ok_or(Obstacle::Busy).and_then(|frozen| deflate::run(&frozen, order.stays));
        match result {
            Ok(report) => {
                time::hold();
                self.report = HibernateReport { pause_ns, ..report };
                Input::Stored
            }
            Err(why) => Input::NotStored { why, now_ns: time::monotonic_ns() },
        }
    }

    fn tell(&self, request: i64, outcome: Outcome) {
        let report = match outcome {
            Outcome::Done => self.report,
            other => HibernateReport { outcome: code(other), ..HibernateReport::default() },
        };
        let args = [platform::phys_of(&raw const report), request.cast_unsigned(), 0, 0, 0, 0];
        // Who is told that it sleeps may ask for figures at once.
        stats::refresh();
        let _ = platform::call(hc::HIBERNATED, args);
        let sleeps = matches!(outcome, Outcome::Done | Outcome::Already);
        if sleeps && self.is_awaited.is_some_and(|is_awaited| is_awaited()) {
            // Who comes in came before the sleep did, and is not to sleep with it.
            wake_event(WakeEvent::Exec);
        }
    }
}

/// How the host names an outcome.
fn code(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Done => HIBERNATE_DONE,
        Outcome::Already => HIBERNATE_ALREADY,
        Outcome::Cancelled => HIBERNATE_CANCELLED,
        Outcome::Failed(Obstacle::Busy) => HIBERNATE_BUSY,
        Outcome::Failed(Obstacle::NoMemory) => HIBERNATE_NO_MEMORY,
        Outcome::Failed(Obstacle::Store) => HIBERNATE_STORE,
    }
}

/// Brings the working set back, as far as that comes before tasks run.
fn bring_back() -> Input {
    time::release();
    let how = platform::call(hc::BEGIN_WAKE, [0; 6]).unwrap_or(hc::REAP_OFF);
    residency::comes_at_once(how & hc::REAP_AT_ONCE != 0);
    let how = how & !hc::REAP_AT_ONCE;
    if how == hc::REAP_IN_PLACE {
        working_set::begin_in_place();
    } else {
        working_set::begin_wake(how != hc::REAP_OFF);
    }
    // Tasks can only run meanwhile if there is another CPU.
    let streams = how == hc::REAP_STREAM && platform::cpus() > 1;
    if how == hc::REAP_FIRST || how == hc::REAP_STREAM && !streams {
        working_set::bring_back(false);
    }
    recording::wake();
    idle::wake();
    Input::BroughtBack { streams }
}
