//! The supervisor of a sandbox in its VMM: how far the sandbox has got, who is told, and how it ends.
//!
//! One [`Progress`] behind one lock says what is wanted and what is. Nothing waits under that lock, nor for anything
//! but events: orders that take time leave a [`waiters::Waiter`] behind, which is answered by whoever brings the news.

mod accepting;
mod answers;
mod containers;
#[cfg(fuzzing)]
pub mod fuzz;
mod journal;
mod peers;
mod pod;
mod progress;
mod requests;
mod serve;
mod stage;
pub mod state_machine;
#[cfg(test)]
mod tests;
mod waiters;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, OnceLock, Weak};
use std::time::Instant;

use abi::hostcall::{
    REPORT_HIBERNATED, REPORT_IDLE, REPORT_IDLE_TIMEOUT, REPORT_LIMIT_HOLDS, REPORT_LIMIT_REFUSED,
    REPORT_NOT_HIBERNATED, REPORT_OOM_KILL, REPORT_PAUSED, REPORT_READY, REPORT_RESUMED, REPORT_RUNNING,
    REPORT_WAKE_EVENT, WAKE_EVENT_CONTAINER, WAKE_EVENT_EXEC, WAKE_EVENT_STREAM, WAKE_EVENT_TIMER,
};
use vmm::exec_relay::ExecRelay;
use vmm::hibernate::{ExecProbe, Hibernation, TimerWake};
use vmm::hostcall::events::EventQueue;
use vmm::leash::Leash;
use vmm::lock::{Guard, Mutex, Rank};
use vmm::process;
use vmm::sandbox::{ContainerNews, Sandbox};

use crate::control::{self, Report};
use crate::stderr_log;
use containers::ContainerId;
use journal::Transition;
use progress::{News, Progress};
use stage::{Cause, Stage, TIMER};
use state_machine::Input;

/// See the module.
pub(crate) struct Supervisor {
    progress: Mutex<Progress>,
    changed: Condvar,
    channel: Arc<UnixStream>,
    events: Arc<EventQueue>,
    hibernation: Arc<Hibernation>,
    execs: Arc<ExecRelay>,
    /// Whether it can hibernate at all, or why not.
    can_hibernate: Result<(), String>,
    /// `pause` hibernates it.
    pause_hibernates: bool,
    exec_probe: ExecProbe,
    /// It is a command's (`dormouse do`), with which it ends.
    is_command: bool,
    /// Further containers may begin in it.
    is_pod: bool,
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
        pause_hibernates: bool,
    ) -> std::io::Result<Self> {
        Ok(Self {
            progress: Mutex::new(Rank::Progress, Progress::new(leash.map(Arc::new))),
            changed: Condvar::new(),
            channel,
            events,
            can_hibernate: hibernation.check(),
            hibernation: Arc::new(hibernation),
            execs: Arc::default(),
            pause_hibernates,
            exec_probe: ExecProbe::default(),
            is_command: false,
            is_pod: false,
            nudge: UnixStream::pair()?,
            sandbox: OnceLock::new(),
        })
    }

    /// Sets whether this sandbox is one of `dormouse do`.
    pub(crate) fn of_a_command(self, is_command: bool) -> Self {
        Self { is_command, ..self }
    }

    /// Sets whether this sandbox is a pod's.
    pub(crate) fn of_a_pod(self, is_pod: bool) -> Self {
        Self { is_pod, ..self }
    }

    /// Sets the answer to probes that find this sandbox hibernated.
    pub(crate) fn with_exec_probe(self, exec_probe: ExecProbe) -> Self {
        Self { exec_probe, ..self }
    }

    pub(crate) fn is_command(&self) -> bool {
        self.is_command
    }

    /// The home of its pages.
    pub(crate) fn hibernation(&self) -> &Arc<Hibernation> {
        &self.hibernation
    }

    /// Processes that come in from outside.
    pub(crate) fn execs(&self) -> &Arc<ExecRelay> {
        &self.execs
    }

    /// The first container's leash.
    pub(crate) fn leash(&self) -> Option<Arc<Leash>> {
        self.lock().containers.first().leash.clone()
    }

    /// Sets the sandbox, whose terminal may change its size.
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
        let Some(first) = progress.containers.get_mut(ContainerId::FIRST) else { return false };
        let keeps = first.leash.is_some() && level == 0 && first.stage < Stage::Running;
        if keeps {
            first.said = Some(text.trim_end().to_owned());
        }
        keeps
    }

    /// The kernel says how far it has got. Answers may overtake one another: the one to the latest request counts.
    pub(crate) fn report(&self, what: u64, of: u64) {
        // Not under the lock: the home may be reading pages.
        let news = News {
            last: matches!(what, REPORT_HIBERNATED | REPORT_NOT_HIBERNATED).then(|| self.hibernation.last()),
            woken: (what == REPORT_RESUMED).then(|| self.hibernation.woken()),
        };
        let now = Instant::now();
        let progress = &mut *self.lock();
        match what {
            REPORT_READY => {
                self.reached(progress, ContainerId(of), Stage::Created, &Report::Created { number: of })
            }
            REPORT_RUNNING => self.reached(progress, ContainerId(of), Stage::Running, &Report::Started),
            REPORT_PAUSED => self.step(progress, Input::Paused(of), news),
            REPORT_RESUMED => self.step(progress, Input::Resumed { of, now }, news),
            REPORT_HIBERNATED => self.step(progress, Input::Hibernated(of), news),
            REPORT_NOT_HIBERNATED => self.step(progress, Input::NotHibernated(of), news),
            REPORT_WAKE_EVENT => {
                let what = match of {
                    WAKE_EVENT_STREAM => "stdin",
                    WAKE_EVENT_EXEC => "exec",
                    WAKE_EVENT_CONTAINER => "container",
                    WAKE_EVENT_TIMER => TIMER,
                    _ => "socket",
                };
                self.step(progress, Input::WakeEvent { what, now }, news);
            }
            REPORT_LIMIT_HOLDS => progress.limits = Some((of, Ok(()))),
            REPORT_LIMIT_REFUSED => {
                let why = "device or resource busy: it holds more memory than that; have it free some first";
                progress.limits = Some((of, Err(why.into())));
            }
            REPORT_OOM_KILL => progress.readers.tell_of_oom(ContainerId(of)),
            REPORT_IDLE => self.step(progress, Input::Idle, news),
            REPORT_IDLE_TIMEOUT
                if progress.is_running()
                    && !progress.machine.wants_rest()
                    && self.can_hibernate.is_ok()
                    && !self.execs.is_any_starting() =>
            {
                self.want_rest(progress, Cause::IdleTimeout);
            }
            _ => {}
        }
        self.settle(progress);
    }

    /// Tells those who read events how packing comes out.
    pub(crate) fn watch_packing(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.hibernation.when_packed(move |result| {
            if let Some(this) = this.upgrade() {
                this.lock().tell_of_packing(result);
            }
        });
    }

    /// The kernel has news of a container.
    pub(crate) fn take_container_news(&self, of: u64, news: ContainerNews) {
        let (of, progress) = (ContainerId(of), &mut *self.lock());
        match news {
            ContainerNews::Processes(list) => progress.processes = Some((of, list)),
            ContainerNews::Failed { why, status } => self.could_not_run(progress, of, why, status),
            ContainerNews::KeptAwake(text) => progress.tell_what_keeps_awake(&text),
            ContainerNews::WokenFor(text) => progress.tell_whom_it_woke_for(&text),
            // Whoever resumed it has its answer.
            ContainerNews::WentOn(_) => {}
            ContainerNews::Usage { request, text } => progress.usage = Some((request, text)),
            ContainerNews::Rested(request) => self.rested(progress, of, request),
            // The wake itself comes next.
            ContainerNews::Timer(text) => progress.timer = Some(TimerWake::read(&text)),
            ContainerNews::Ended(status) => self.container_ended(progress, of, status),
        }
        self.settle(progress);
        progress.processes = None;
        progress.usage = None;
    }

    /// A container has got so far. It gets nowhere twice, and not back, whatever the kernel says: front ends run hooks.
    fn reached(&self, progress: &mut Progress, id: ContainerId, stage: Stage, report: &Report) {
        if let Some(container) = progress.containers.get_mut(id).filter(|container| container.stage < stage) {
            container.stage = stage;
            if id == ContainerId::FIRST {
                let _ = control::send(&self.channel, report);
            } else if container.keeper.is_some() {
                container.tell(report);
            } else {
                // Its keeper went while the kernel made it, and the signal that this led to may have found nothing.
                self.deliver(progress, id, libc::SIGKILL, pod::ALL);
            }
        }
    }

    /// Ends the VMM with all its threads, once everybody knows how the sandbox ended. The first call counts.
    pub(crate) fn finish(&self, end: Result<i32, String>) -> ! {
        let mut progress = self.lock();
        while progress.ending {
            progress = progress.wait(&self.changed);
        }
        progress.ending = true;
        let first = progress.containers.first();
        let began = first.leash.is_none() || matches!(first.stage, Stage::Running | Stage::Created);
        let (status, report) = match end {
            Ok(status) if began => (status, Report::Exited { status }),
            Ok(status) => {
                let said = first.said.clone().unwrap_or_else(|| "the container ended before it began".into());
                let code = Some(process::exit_code(status));
                (status, Report::Failed { message: format!("{said}; correct process in config.json"), code })
            }
            Err(message) => (125 << 8, Report::Failed { message, code: None }),
        };
        let failure = if let Report::Failed { message, .. } = &report { Some(message.clone()) } else { None };
        if let (Some(message), true) = (&failure, progress.released) {
            // Its front end, which would say so, is gone.
            let _ = writeln!(std::io::stderr(), "dormouse: {message}");
        }
        if let Some(first) = progress.containers.get_mut(ContainerId::FIRST) {
            first.exit = Some(status);
            first.said = failure.or(first.said.take());
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
        let leash = progress.containers.first().leash.clone();
        drop(progress);
        self.execs.end();
        self.execs.outlive();
        // First the leash: whoever hears of the end may look at it.
        if let Some(leash) = leash {
            leash.end(status);
        }
        let _ = control::send(&self.channel, &report);
        process::exit_now(0)
    }
}
