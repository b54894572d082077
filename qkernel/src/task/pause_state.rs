//! The state of a container's pause.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use machine::sync::{Rank, SpinLock};

/// Whether the tasks of a container are to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Some task has not come to rest since this request.
    Pausing(i64),
    /// All tasks rest, and the host was told. Those that come in meanwhile rest before they run user code.
    Paused,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// Requests of the host's, with growing numbers. A smaller one is out of date.
    Pause(i64),
    Resume(i64),
    /// A task begins to rest, or goes on.
    Rests,
    Moves,
    /// A task has ended.
    Left,
    /// No task of the sandbox runs user code.
    SandboxRests,
}

/// The state of a container's pause, and the requests that led to it.
struct PauseMachine {
    state: State,
    last: i64,
    /// Tasks that rest, whether or not they are asked to.
    at_rest: usize,
}

impl PauseMachine {
    const fn new() -> Self {
        Self { state: State::Running, last: 0, at_rest: 0 }
    }

    /// Takes what happened to a container of so many tasks; result: the request for a pause that the host is told of
    /// as answered.
    fn step(&mut self, input: Input, tasks: usize) -> Option<i64> {
        match input {
            Input::Pause(request) if request > self.last => {
                (self.state, self.last) = (State::Pausing(request), request);
            }
            Input::Resume(request) if request > self.last => {
                (self.state, self.last) = (State::Running, request);
            }
            Input::Rests => self.at_rest += 1,
            Input::Moves => self.at_rest -= 1,
            Input::Pause(_) | Input::Resume(_) | Input::Left | Input::SandboxRests => {}
        }
        match self.state {
            State::Pausing(request) if self.at_rest >= tasks || input == Input::SandboxRests => {
                self.state = State::Paused;
                Some(request)
            }
            _ => None,
        }
    }
}

/// The pause of a container.
pub struct Pause {
    machine: SpinLock<PauseMachine>,
    /// The state is another than [`State::Running`]. Written under the machine's lock.
    is_wanted: AtomicBool,
    /// Processes with this pass run all the same; 0: there are none. Written under the machine's lock.
    pass: AtomicU64,
}

impl Pause {
    /// Of a container that runs.
    pub(super) const fn new() -> Self {
        Self {
            machine: SpinLock::new(Rank::Leaf, PauseMachine::new()),
            is_wanted: AtomicBool::new(false),
            pass: AtomicU64::new(0),
        }
    }

    /// The requests count from one again; what the last one asked for holds.
    pub(super) fn count_anew(&self) {
        self.machine.lock().last = 0;
    }

    /// Takes what happened to a container of so many tasks; result: the request for a pause that the host is
    /// told of as answered.
    pub(super) fn step(&self, input: Input, tasks: impl FnOnce() -> usize) -> Option<i64> {
        let mut machine = self.machine.lock();
        let answer = machine.step(input, tasks());
        self.is_wanted.store(machine.state != State::Running, Ordering::SeqCst);
        answer
    }

    /// Processes with this pass run although it is paused by this request, if it is.
    pub(super) fn let_in(&self, request: i64, pass: u64) {
        let machine = self.machine.lock();
        if machine.last == request && machine.state != State::Running {
            self.pass.store(pass, Ordering::SeqCst);
        }
    }

    /// Whether this is the pass of processes that run.
    pub(super) fn has_pass(&self, pass: u64) -> bool {
        pass != 0 && pass == self.pass()
    }

    /// See [`Self::let_in`].
    pub(super) fn pass(&self) -> u64 {
        self.pass.load(Ordering::SeqCst)
    }

    /// Whether tasks are to rest.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every transition: the state before with the number of the last request and of tasks at rest, the input and the
    /// number of tasks there are; the same afterwards, and the answer.
    #[test]
    fn the_host_is_told_once_all_rest() {
        use Input::{Left, Moves, Pause, Rests, Resume, SandboxRests};
        use State::{Paused, Pausing, Running};
        let table = [
            ((Running, 0, 0), (Pause(1), 2), (Pausing(1), 1, 0), None),
            ((Running, 0, 2), (Pause(1), 2), (Paused, 1, 2), Some(1)),
            ((Running, 0, 0), (Pause(1), 0), (Paused, 1, 0), Some(1)),
            ((Running, 0, 0), (Resume(1), 2), (Running, 1, 0), None),
            ((Running, 5, 1), (Pause(5), 1), (Running, 5, 1), None),
            ((Running, 5, 1), (Pause(4), 1), (Running, 5, 1), None),
            ((Running, 5, 1), (Resume(5), 1), (Running, 5, 1), None),
            ((Running, 0, 0), (Rests, 1), (Running, 0, 1), None),
            ((Running, 0, 1), (Moves, 1), (Running, 0, 0), None),
            ((Running, 0, 1), (Left, 1), (Running, 0, 1), None),
            ((Running, 0, 0), (SandboxRests, 1), (Running, 0, 0), None),
            ((Pausing(1), 1, 0), (Rests, 2), (Pausing(1), 1, 1), None),
            ((Pausing(1), 1, 1), (Rests, 2), (Paused, 1, 2), Some(1)),
            ((Pausing(1), 1, 1), (Moves, 2), (Pausing(1), 1, 0), None),
            ((Pausing(1), 1, 1), (Left, 2), (Pausing(1), 1, 1), None),
            ((Pausing(1), 1, 1), (Left, 1), (Paused, 1, 1), Some(1)),
            ((Pausing(1), 1, 0), (SandboxRests, 2), (Paused, 1, 0), Some(1)),
            ((Pausing(1), 1, 1), (Resume(2), 2), (Running, 2, 1), None),
            ((Pausing(2), 2, 1), (Resume(1), 2), (Pausing(2), 2, 1), None),
            ((Pausing(1), 1, 1), (Pause(2), 2), (Pausing(2), 2, 1), None),
            ((Paused, 1, 2), (Pause(2), 2), (Paused, 2, 2), Some(2)),
            ((Paused, 1, 2), (Pause(2), 3), (Pausing(2), 2, 2), None),
            ((Paused, 1, 2), (Pause(1), 2), (Paused, 1, 2), None),
            ((Paused, 1, 2), (Resume(2), 2), (Running, 2, 2), None),
            ((Paused, 2, 2), (Resume(1), 2), (Paused, 2, 2), None),
            // One that came in meanwhile, and one that was killed.
            ((Paused, 1, 2), (Rests, 3), (Paused, 1, 3), None),
            ((Paused, 1, 2), (Moves, 2), (Paused, 1, 1), None),
            ((Paused, 1, 1), (Left, 1), (Paused, 1, 1), None),
            ((Paused, 1, 1), (SandboxRests, 1), (Paused, 1, 1), None),
        ];
        for (before, (input, tasks), after, answer) in table {
            let (state, last, at_rest) = before;
            let mut machine = PauseMachine { state, last, at_rest };
            let got = machine.step(input, tasks);
            let is = (machine.state, machine.last, machine.at_rest);
            assert_eq!((is, got), (after, answer), "{before:?} {input:?} of {tasks}");
        }
    }
}
