//! What holds in every world, and once nothing is left to be done.

use qkernel::hibernate::state_machine::{Goal, State};
use runtime::supervisor::state_machine::KernelState;

use super::{Asked, World};

impl World {
    /// The invariant that is broken now, if any.
    pub fn broken_now(&self) -> Option<&'static str> {
        if self.kernel.state() == State::Running && self.is_stored {
            return Some("tasks run, and their memory is not there");
        }
        if self.kernel.state() == State::Hibernated && !self.is_stored {
            return Some("the sandbox is hibernated, and its memory is not in its home");
        }
        self.flaw
    }

    /// The invariant that is broken although nothing is left to be done.
    pub fn broken_when_quiet(&self) -> Option<&'static str> {
        let state = self.kernel.state();
        let kernel_state = match state {
            State::Running => KernelState::Running,
            State::Paused => KernelState::Paused,
            State::Hibernated => KernelState::Hibernated,
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
        if self.supervisor.is_held() && !self.supervisor.is_at_rest() {
            return Some("what is held goes on");
        }
        if self.supervisor.kernel_state() != kernel_state {
            return Some("the supervisor takes the sandbox to be where it is not");
        }
        if self.supervisor.wants_rest() != (self.asked != Asked::Run) {
            return Some("the supervisor wants something else than it has asked for");
        }
        if self.supervisor.hibernation().is_some() || self.supervisor.is_waking() {
            return Some("the supervisor waits for something that does not come");
        }
        None
    }
}
