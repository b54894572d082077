//! The pause of one container: its tasks rest at the user boundary, whatever comes but their end, as in a frozen control
//! group. (`machine::sched::pause` is that of the whole sandbox. A task may rest for both.)
//!
//! Sleeps in calls that a signal ends are ended, and the calls made again afterwards. A task that waits for something
//! which only another task or the host can bring counts as resting: it comes to the boundary before it runs user code.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use abi::hostcall::{REPORT_CONTAINER_PAUSED, REPORT_CONTAINER_RESUMED};
use machine::host;
use machine::sched::pause;
use machine::sync::{Rank, SpinLock};

use crate::task::container::Container;
use crate::task::core::Task;
use crate::task::process::call_attention;

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
enum Input {
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

/// An answer to a request of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Paused(i64),
    Resumed(i64),
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

    /// Takes what happened to a container of so many tasks; result: what the host is to be told.
    fn step(&mut self, input: Input, tasks: usize) -> Option<Answer> {
        match input {
            Input::Pause(request) if request > self.last => {
                (self.state, self.last) = (State::Pausing(request), request);
            }
            Input::Resume(request) if request > self.last => {
                (self.state, self.last) = (State::Running, request);
                return Some(Answer::Resumed(request));
            }
            Input::Rests => self.at_rest += 1,
            Input::Moves => self.at_rest -= 1,
            Input::Pause(_) | Input::Resume(_) | Input::Left | Input::SandboxRests => {}
        }
        match self.state {
            State::Pausing(request) if self.at_rest >= tasks || input == Input::SandboxRests => {
                self.state = State::Paused;
                Some(Answer::Paused(request))
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
}

impl Pause {
    /// Of a container that runs.
    pub(super) const fn new() -> Self {
        Self { machine: SpinLock::new(Rank::Leaf, PauseMachine::new()), is_wanted: AtomicBool::new(false) }
    }

    /// Whether tasks are to rest.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst)
    }
}

impl Container {
    /// The requests of another VMM count from one again; what the last one of the former asked for holds.
    pub fn count_pauses_anew(&self) {
        self.pause.machine.lock().last = 0;
    }

    /// Has all its tasks rest, unless a later request has been taken. The host is told once they do.
    pub fn pause(&self, request: i64) {
        self.step_pause(Input::Pause(request));
        if pause::is_paused() {
            // Who sleeps in a call is not woken: that would touch memory which may be away.
            pause::call_out();
            self.step_pause(Input::SandboxRests);
        } else {
            self.end_sleeps();
        }
    }

    /// Lets its tasks go on, unless a later request has been taken; whether they were paused.
    pub fn resume(&self, request: i64) -> bool {
        let was_wanted = self.pause.is_wanted();
        self.step_pause(Input::Resume(request));
        let goes_on = was_wanted && !self.pause.is_wanted();
        if goes_on {
            self.processes().iter().for_each(|process| call_attention(process));
        }
        goes_on
    }

    /// If it is paused, the sleeps of its tasks end that a signal would end. They come to rest at the user boundary.
    pub fn end_sleeps(&self) {
        if self.pause.is_wanted() {
            self.tasks().iter().for_each(Task::call_attention);
        }
    }

    /// Whether its tasks rest, or are to.
    pub fn is_paused(&self) -> bool {
        self.pause.is_wanted()
    }

    /// A task of it has ended.
    pub fn task_left(&self) {
        if self.pause.is_wanted() {
            self.step_pause(Input::Left);
        }
    }

    /// The current task, which is its, counts as resting during `wait`.
    pub fn resting<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.step_pause(Input::Rests);
        let result = wait();
        self.step_pause(Input::Moves);
        result
    }

    fn step_pause(&self, input: Input) {
        let answer = {
            let mut machine = self.pause.machine.lock();
            let answer = machine.step(input, self.task_count());
            self.pause.is_wanted.store(machine.state != State::Running, Ordering::SeqCst);
            answer
        };
        match answer {
            Some(Answer::Paused(request)) => {
                host::report_container(REPORT_CONTAINER_PAUSED, self.id.0, request.cast_unsigned());
            }
            Some(Answer::Resumed(request)) => {
                host::report_container(REPORT_CONTAINER_RESUMED, self.id.0, request.cast_unsigned());
            }
            None => {}
        }
    }
}

/// Whether the current task is to rest for the sandbox or for its container.
pub fn is_to_rest(task: &Task) -> bool {
    pause::is_paused() || is_to_rest_in_container(task)
}

fn is_to_rest_in_container(task: &Task) -> bool {
    task.process.container.pause.is_wanted() && !task.process.is_exiting() && !task.is_dying()
}

/// The current task rests for as long as its sandbox or its container is paused; true: it has rested, and should look at
/// everything anew.
pub fn rest(task: &Arc<Task>) -> bool {
    if !is_to_rest(task) {
        return false;
    }
    task.process.container.resting(|| {
        pause::rest();
        task.process.stop_wait.wait_uninterruptible(|| !is_to_rest_in_container(task));
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every transition: the state before with the number of the last request and of tasks at rest, the input and the
    /// number of tasks there are; the same afterwards, and the answer.
    #[test]
    fn the_host_is_told_once_all_rest() {
        use Answer::Resumed;
        use Input::{Left, Moves, Pause, Rests, Resume, SandboxRests};
        use State::{Paused, Pausing, Running};
        let table = [
            ((Running, 0, 0), (Pause(1), 2), (Pausing(1), 1, 0), None),
            ((Running, 0, 2), (Pause(1), 2), (Paused, 1, 2), Some(Answer::Paused(1))),
            ((Running, 0, 0), (Pause(1), 0), (Paused, 1, 0), Some(Answer::Paused(1))),
            ((Running, 0, 0), (Resume(1), 2), (Running, 1, 0), Some(Resumed(1))),
            ((Running, 5, 1), (Pause(5), 1), (Running, 5, 1), None),
            ((Running, 5, 1), (Pause(4), 1), (Running, 5, 1), None),
            ((Running, 5, 1), (Resume(5), 1), (Running, 5, 1), None),
            ((Running, 0, 0), (Rests, 1), (Running, 0, 1), None),
            ((Running, 0, 1), (Moves, 1), (Running, 0, 0), None),
            ((Running, 0, 1), (Left, 1), (Running, 0, 1), None),
            ((Running, 0, 0), (SandboxRests, 1), (Running, 0, 0), None),
            ((Pausing(1), 1, 0), (Rests, 2), (Pausing(1), 1, 1), None),
            ((Pausing(1), 1, 1), (Rests, 2), (Paused, 1, 2), Some(Answer::Paused(1))),
            ((Pausing(1), 1, 1), (Moves, 2), (Pausing(1), 1, 0), None),
            ((Pausing(1), 1, 1), (Left, 2), (Pausing(1), 1, 1), None),
            ((Pausing(1), 1, 1), (Left, 1), (Paused, 1, 1), Some(Answer::Paused(1))),
            ((Pausing(1), 1, 0), (SandboxRests, 2), (Paused, 1, 0), Some(Answer::Paused(1))),
            ((Pausing(1), 1, 1), (Resume(2), 2), (Running, 2, 1), Some(Resumed(2))),
            ((Pausing(2), 2, 1), (Resume(1), 2), (Pausing(2), 2, 1), None),
            ((Pausing(1), 1, 1), (Pause(2), 2), (Pausing(2), 2, 1), None),
            ((Paused, 1, 2), (Pause(2), 2), (Paused, 2, 2), Some(Answer::Paused(2))),
            ((Paused, 1, 2), (Pause(2), 3), (Pausing(2), 2, 2), None),
            ((Paused, 1, 2), (Pause(1), 2), (Paused, 1, 2), None),
            ((Paused, 1, 2), (Resume(2), 2), (Running, 2, 2), Some(Resumed(2))),
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
