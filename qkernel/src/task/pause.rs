//! The pause of one container: its tasks rest at the user boundary, whatever comes but their end, as in a frozen control
//! group. (`machine::sched::pause` is that of the whole sandbox. A task may rest for both.)
//!
//! Sleeps in calls that a signal ends are ended, and the calls made again afterwards. A task that waits for something
//! which only another task or the host can bring counts as resting: it comes to the boundary before it runs user code.
//!
//! A pause may let in what comes by exec: such processes get a *pass*, which their children inherit, and run until the pause is over.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::report::Report;
use machine::host;
use machine::sched::pause;

use crate::task::container::Container;
use crate::task::core::Task;
use crate::task::pause_state::Input;
use crate::task::process::{Process, call_attention};

/// The next pass of processes that run in a pause.
static NEXT_PASS: AtomicU64 = AtomicU64::new(1);

impl Container {
    /// The requests of another VMM count from one again; what the last one of the former asked for holds.
    pub fn count_pauses_anew(&self) {
        self.pause.count_anew();
    }

    /// Has all its tasks rest, unless a later request has been taken. The host is told once they do. `lets_in`: what comes in by exec
    /// meanwhile runs.
    pub fn pause(&self, request: i64, lets_in: bool) {
        self.step_pause(Input::Pause(request));
        self.pause.let_in(request, if lets_in { NEXT_PASS.fetch_add(1, Ordering::Relaxed) } else { 0 });
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

    /// Whether a process of it rests, or is to.
    pub fn rests(&self, process: &Process) -> bool {
        self.pause.is_wanted() && !self.pause.has_pass(process.pass.load(Ordering::Relaxed))
    }

    /// A process has come in by exec.
    pub fn came_in(&self, process: &Process) {
        process.pass.store(self.pause.pass(), Ordering::Relaxed);
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
        if let Some(request) = self.pause.step(input, || self.task_count()) {
            host::report(&Report::ContainerPaused { container: self.id, request: request.cast_unsigned() });
        }
    }
}

/// Whether the current task is to rest for the sandbox or for its container.
pub fn is_to_rest(task: &Task) -> bool {
    pause::is_paused() || is_to_rest_in_container(task)
}

fn is_to_rest_in_container(task: &Task) -> bool {
    let process = &task.process;
    process.container.rests(process) && !process.is_exiting() && !task.is_dying()
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
