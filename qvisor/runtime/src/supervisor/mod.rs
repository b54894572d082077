//! The supervisor of a sandbox in its VMM: how far the sandbox has got, who is told, and how it ends.
//!
//! One [`Progress`] behind one lock says what is wanted and what is. Nothing waits under that lock, nor for anything
//! but events: orders that take time leave a [`waiters::Waiter`] behind, which is answered by whoever brings the news.

mod answers;
#[cfg(fuzzing)]
pub mod fuzz;
mod journal;
mod peers;
mod progress;
mod requests;
mod serve;
mod stage;
#[cfg(test)]
mod tests;
mod waiters;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, OnceLock, Weak};
use std::time::Instant;

use abi::hostcall::{
    REPORT_ASLEEP, REPORT_IDLE, REPORT_IDLE_TIMEOUT, REPORT_PAUSED, REPORT_READY, REPORT_RESUMED,
    REPORT_RUNNING, REPORT_STAYED_WARM, REPORT_WAKE_EVENT, WAKE_EVENT_EXEC, WAKE_EVENT_STREAM,
};
use vmm::exec_relay::ExecRelay;
use vmm::hibernate::{Hibernated, Hibernation, Woken, micros};
use vmm::hostcall::events::EventQueue;
use vmm::leash::Leash;
use vmm::lock::{Guard, Mutex, Rank};
use vmm::process;
use vmm::sandbox::Sandbox;

use crate::control::{self, Figures, Report};
use crate::status::SandboxState;
use crate::stderr_log;
use journal::Transition;
use progress::{Progress, Rise};
use stage::{Cause, Stage};

/// See the module.
pub(crate) struct Supervisor {
    progress: Mutex<Progress>,
    changed: Condvar,
    channel: Arc<UnixStream>,
    leash: Option<Leash>,
    events: Arc<EventQueue>,
    hibernation: Arc<Hibernation>,
    execs: Arc<ExecRelay>,
    /// Whether it can hibernate at all, or why not.
    can_hibernate: Result<(), String>,
    /// Makes [`Supervisor::serve`] look at the deadlines anew: its end, and ours.
    nudge: (UnixStream, UnixStream),
    sandbox: OnceLock<Weak<Sandbox>>,
}

impl Supervisor {
    pub(crate) fn new(
        channel: Arc<UnixStream>,
        leash: Option<Leash>,
        events: Arc<EventQueue>,
        hibernation: Hibernation,
    ) -> std::io::Result<Self> {
        Ok(Self {
            progress: Mutex::new(Rank::Progress, Progress::new(leash.is_some())),
            changed: Condvar::new(),
            channel,
            leash,
            events,
            can_hibernate: hibernation.check(),
            hibernation: Arc::new(hibernation),
            execs: Arc::default(),
            nudge: UnixStream::pair()?,
            sandbox: OnceLock::new(),
        })
    }

    /// The home of its pages.
    pub(crate) fn hibernation(&self) -> &Arc<Hibernation> {
        &self.hibernation
    }

    /// Processes that come in from outside.
    pub(crate) fn execs(&self) -> &Arc<ExecRelay> {
        &self.execs
    }

    pub(crate) fn leash(&self) -> Option<&Leash> {
        self.leash.as_ref()
    }

    /// Whose terminal it is that may change its size.
    pub(crate) fn set_sandbox(&self, sandbox: Weak<Sandbox>) {
        let _ = self.sandbox.set(sandbox);
    }

    fn sandbox(&self) -> Option<Arc<Sandbox>> {
        self.sandbox.get().and_then(Weak::upgrade)
    }

    fn lock(&self) -> Guard<'_, Progress> {
        self.progress.lock()
    }

    /// Keeps a line of the log that says why a container does not start; true: it is not for standard error.
    pub(crate) fn keep(&self, level: u32, text: &str) -> bool {
        let mut progress = self.lock();
        let keeps = self.leash.is_some() && level == 0 && progress.stage < Stage::Running;
        if keeps {
            progress.said = Some(text.trim_end().to_owned());
        }
        keeps
    }

    /// The kernel says how far it has got. Answers may overtake one another: the one to the latest request counts.
    pub(crate) fn report(&self, what: u64, of: u64) {
        // Not under the lock: the home may be reading pages.
        let last = matches!(what, REPORT_ASLEEP | REPORT_STAYED_WARM).then(|| self.hibernation.last());
        let woken = (what == REPORT_RESUMED).then(|| self.hibernation.woken());
        let progress = &mut *self.lock();
        match what {
            REPORT_READY => {
                progress.stage = Stage::Created;
                let _ = control::send(&self.channel, &Report::Created);
            }
            REPORT_RUNNING => {
                progress.stage = Stage::Running;
                let _ = control::send(&self.channel, &Report::Started);
            }
            REPORT_PAUSED if of >= progress.answered => {
                (progress.paused, progress.answered) = (true, of);
                if let Some(fall) = progress.fall.as_mut().filter(|fall| of >= fall.request) {
                    // It is on its way down, however long that takes.
                    fall.strict_at = None;
                }
            }
            REPORT_RESUMED if of >= progress.answered => {
                (progress.paused, progress.answered) = (false, of);
                self.has_resumed(progress, of, woken.unwrap_or_default());
            }
            REPORT_ASLEEP if of >= progress.answered => {
                self.has_fallen_asleep(progress, of, last.and_then(Result::ok).unwrap_or_default());
            }
            REPORT_STAYED_WARM => {
                let why = last.and_then(Result::err);
                self.has_stayed_warm(progress, of, why.unwrap_or_else(|| "it was woken meanwhile".into()));
            }
            REPORT_WAKE_EVENT if progress.is_asleep && progress.rise.is_none() => {
                let what = match of {
                    WAKE_EVENT_STREAM => "stdin",
                    WAKE_EVENT_EXEC => "exec",
                    _ => "socket",
                };
                let cause = Cause::Request(what);
                progress.rise = Some(Rise { request: None, cause, since: Instant::now() });
            }
            REPORT_IDLE if progress.awake_as == SandboxState::HibernateRunning => {
                progress.awake_as = SandboxState::WokenUp;
                let transition =
                    Transition::new(Some(SandboxState::HibernateRunning), progress.awake_as, None);
                if !progress.is_asleep {
                    progress.readers.tell(&transition);
                }
            }
            REPORT_IDLE_TIMEOUT
                if progress.stage == Stage::Running
                    && !progress.wants_down
                    && self.can_hibernate.is_ok()
                    && !self.execs.is_any_starting() =>
            {
                self.want_down(progress, Cause::IdleTimeout);
            }
            _ => {}
        }
        self.settle(progress);
    }

    fn has_fallen_asleep(&self, progress: &mut Progress, of: u64, done: Hibernated) {
        let from = progress.sandbox_state();
        let fall = progress.fall.take_if(|fall| of >= fall.request);
        // A wake that this has overtaken.
        progress.rise.take_if(|rise| rise.request.is_some_and(|request| request < of));
        if progress.is_asleep {
            // It was told once more, by somebody who came before a wake did, and there was nothing left to do.
            progress.fallen(&Figures::Hibernated(done));
            return;
        }
        (progress.is_asleep, progress.failure) = (true, None);
        progress.cycles.hibernations += 1;
        let total_us = fall.map_or(done.total_us, |fall| micros(fall.since.elapsed()));
        let figures = Figures::Hibernated(Hibernated { total_us, ..done });
        progress.fallen(&figures);
        let transition = Transition::new(Some(from), SandboxState::Hibernated, Some(progress.down_cause));
        progress.readers.tell(&Transition { figures: Some(&figures), ..transition });
    }

    /// The hibernation did not come about; the sandbox goes on.
    fn has_stayed_warm(&self, progress: &mut Progress, of: u64, why: String) {
        // One that was called off is no failure.
        if progress.fall.take_if(|fall| of >= fall.request).is_none() {
            return;
        }
        // Its tasks go on in a moment; who hears of the failure sees it run.
        progress.paused &= of < progress.answered;
        self.gives_up(progress, why);
    }

    fn gives_up(&self, progress: &mut Progress, why: String) {
        progress.wants_down = false;
        let state = progress.sandbox_state();
        let transition = Transition::new(Some(state), state, Some(progress.down_cause));
        progress.readers.tell(&Transition { error: Some(&why), ..transition });
        progress.failure = Some(why);
        progress.cycles.failed += 1;
    }

    fn has_resumed(&self, progress: &mut Progress, of: u64, woken: Woken) {
        let rise = progress.rise.take_if(|rise| rise.request.is_none_or(|request| of >= request));
        if !std::mem::take(&mut progress.is_asleep) {
            return;
        }
        let by_itself = Rise { request: None, cause: Cause::Request("event"), since: Instant::now() };
        let rise = rise.unwrap_or(by_itself);
        // What came for the container woke it, and nobody has wanted it down since.
        if rise.request.is_none() && progress.fall.is_none() {
            progress.wants_down = false;
        }
        progress.awake_as = match rise.cause {
            Cause::Request(_) => SandboxState::HibernateRunning,
            _ => SandboxState::WokenUp,
        };
        progress.woken = Woken { total_us: micros(rise.since.elapsed()), ..woken };
        progress.cycles.woken(progress.woken.total_us);
        let transition = Transition::new(Some(SandboxState::Hibernated), progress.awake_as, Some(rise.cause));
        let figures = Figures::Woken(progress.woken.clone());
        progress.readers.tell(&Transition { figures: Some(&figures), ..transition });
    }

    /// Ends the VMM with all its threads, once everybody knows how the sandbox ended. The first call counts.
    pub(crate) fn finish(&self, end: Result<i32, String>) -> ! {
        let mut progress = self.lock();
        while progress.ending {
            progress = progress.wait(&self.changed);
        }
        progress.ending = true;
        let began =
            self.leash.is_none() || progress.stage == Stage::Running || progress.stage == Stage::Created;
        let (status, report) = match end {
            Ok(status) if began => (status, Report::Exited { status }),
            Ok(status) => {
                let said =
                    progress.said.clone().unwrap_or_else(|| "the container ended before it began".into());
                let code = Some(process::exit_code(status));
                (status, Report::Failed { message: format!("{said}; correct process in config.json"), code })
            }
            Err(message) => (125 << 8, Report::Failed { message, code: None }),
        };
        if let Report::Failed { message, .. } = &report {
            progress.said = Some(message.clone());
            if progress.released {
                // Its front end, which would say so, is gone.
                let _ = writeln!(std::io::stderr(), "dormouse: {message}");
            }
        }
        progress.answer_waiters();
        if let (Report::Failed { message, .. }, true) = (&report, progress.released) {
            // Nobody else would hear of it.
            stderr_log::write(0, message, "\n");
            let state = progress.sandbox_state();
            progress
                .readers
                .tell(&Transition { error: Some(message), ..Transition::new(Some(state), state, None) });
        }
        drop(progress);
        // First the leash: whoever hears of the end may look at it.
        if let Some(leash) = &self.leash {
            leash.end(status);
        }
        let _ = control::send(&self.channel, &report);
        process::exit_now(0)
    }
}
