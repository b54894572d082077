//! The supervisor of a sandbox in its VMM: how far the sandbox has got, who is told, and how it ends.
//!
//! One [`Progress`] behind one lock says what is wanted and what is. Nothing waits under that lock, nor for anything
//! but events: orders that take time leave a [`waiters::Waiter`] behind, which is answered by whoever brings the news.

mod accepting;
mod answers;
mod arrivals;
mod checkpoint;
mod containers;
#[cfg(fuzzing)]
pub mod fuzz;
mod journal;
mod peers;
mod pod;
mod progress;
mod requests;
mod restored;
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

use abi::report::{Report, WakeEvent};
use vmm::container_queue::ContainerQueue;
use vmm::exec_relay::ExecRelay;
use vmm::hibernate::{ExecProbe, Hibernation, TimerWake};
use vmm::hostcall::events::EventQueue;
use vmm::leash::Leash;
use vmm::lock::{Guard, Mutex, Rank};
use vmm::process;
use vmm::sandbox::Sandbox;

use crate::control;
use crate::stderr_log;
use containers::ContainerId;
pub(crate) use containers::FURTHER_MAX;
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
    /// Further containers that the kernel has not taken.
    coming: Arc<ContainerQueue>,
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
            coming: Arc::default(),
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

    /// Further containers that the kernel has not taken.
    pub(crate) fn coming_containers(&self) -> &Arc<ContainerQueue> {
        &self.coming
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

    /// Takes a report of the kernel's. Answers may overtake one another: the one to the latest request counts.
    pub(crate) fn report(&self, report: &Report<'_>) {
        // Not under the lock: the home may be reading pages.
        let woken = matches!(report, Report::Resumed { .. }).then(|| self.hibernation.woken());
        let news = News { last: None, woken };
        let now = Instant::now();
        let progress = &mut *self.lock();
        match *report {
            Report::ContainerReady { container } => {
                let created = control::Report::Created { number: container.0 };
                self.reached(progress, container, Stage::Created, &created);
                self.hold_until_start(progress, container);
                self.start_if_complete(progress);
                self.start_restored_command(progress, container);
            }
            Report::ContainerRunning { container } => {
                self.reached(progress, container, Stage::Running, &control::Report::Started);
            }
            Report::Paused { request } => self.step(progress, Input::Paused(request), news),
            Report::Resumed { request } => {
                self.step(progress, Input::Resumed { of: request, now }, news);
                self.goes_on_as_started(progress);
            }
            Report::WakeEvent { by } => {
                self.step(progress, Input::WakeEvent { what: request_of(by), now }, news)
            }
            Report::Idle => self.step(progress, Input::Idle, news),
            Report::IdleTimeout => self.has_been_idle(progress),
            _ => self.take_container_news(progress, report),
        }
        self.settle(progress);
        // Whoever asked has the answer.
        progress.processes = None;
        progress.usage = None;
    }

    /// A hibernation came out: the memory is stored, or it is not.
    pub(crate) fn hibernated(&self, request: u64, is_stored: bool) {
        // Not under the lock: the home may be reading pages.
        let news = News { last: Some(self.hibernation.last()), woken: None };
        let input = if is_stored { Input::Hibernated(request) } else { Input::NotHibernated(request) };
        let progress = &mut *self.lock();
        self.step(progress, input, news);
        self.settle(progress);
    }

    /// Nothing has come for the sandbox for as long as it was told to wait.
    fn has_been_idle(&self, progress: &mut Progress) {
        let may_sleep = progress.is_running() && !progress.machine.wants_rest() && self.can_hibernate.is_ok();
        if may_sleep && !self.execs.is_any_starting() {
            self.want_rest(progress, Cause::IdleTimeout);
        }
    }

    /// Takes what a container has become, or an answer about one.
    fn take_container_news(&self, progress: &mut Progress, report: &Report<'_>) {
        let text_of = |text| String::from_utf8_lossy(text).into_owned();
        match *report {
            Report::ContainerFailed { container, status, why } => {
                self.could_not_run(progress, container, text_of(why), status);
            }
            Report::ContainerEnded { container, status } => self.container_ended(progress, container, status),
            Report::ContainerPaused { container, request } => self.rested(progress, container, request),
            Report::LimitAnswered { request, holds } => {
                let why = "device or resource busy: it holds more memory than that; have it free some first";
                progress.limits = Some((request, if holds { Ok(()) } else { Err(why.into()) }));
            }
            Report::OomKill { container } => progress.readers.tell_of_oom(container),
            Report::Processes { container, lines } => progress.processes = Some((container, text_of(lines))),
            Report::Usage { request, usage } => progress.usage = Some((request, usage)),
            Report::WorkingSet { frames } => progress.tell_working_set(frames),
            Report::NotTaken { request, why } => self.not_taken(progress, request, &text_of(why)),
            Report::Written { lines } => progress.note_written(lines),
            Report::KeptAwake { kept } => progress.tell_what_keeps_awake(kept.as_ref()),
            Report::WokenFor { who } => progress.tell_whom_it_woke_for(&who),
            // The wake itself comes next.
            Report::Timer { timer } => progress.timer = Some(TimerWake::from(&timer)),
            // The relay's, and the sandbox's own.
            Report::ExecStarted { .. } | Report::ExecFailed { .. } | Report::ExecEnded { .. } => {}
            // The caller has taken them.
            Report::ContainerReady { .. } | Report::ContainerRunning { .. } => {}
            Report::Paused { .. } | Report::Resumed { .. } | Report::WakeEvent { .. } => {}
            Report::Idle | Report::IdleTimeout => {}
        }
    }

    /// Tells those who read events what becomes of pages while it sleeps.
    pub(crate) fn watch_pages(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.hibernation.when_told(move |told| {
            if let Some(this) = this.upgrade() {
                this.lock().tell_of_pages(told);
            }
        });
    }

    /// A container has got so far. It gets nowhere twice, and not back, whatever the kernel says: front ends run hooks.
    fn reached(&self, progress: &mut Progress, id: ContainerId, stage: Stage, report: &control::Report) {
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
        let awaits_start = progress.awaits_start();
        let why_not = awaits_start && (first.said.is_some() || end.is_err());
        let began = first.leash.is_none() && !progress.is_restored
            || matches!(first.stage, Stage::Running | Stage::Created)
            || awaits_start;
        let began = began && !why_not;
        let (status, report) = match end {
            Ok(status) if began => (status, control::Report::Exited { status }),
            Ok(status) => {
                let said = first.said.clone().unwrap_or_else(|| "the container ended before it began".into());
                let code = Some(process::exit_code(status));
                (status, control::Report::Failed { message: progress.why_it_did_not_run(said), code })
            }
            Err(message) => (125 << 8, control::Report::Failed { message, code: None }),
        };
        let failure =
            if let control::Report::Failed { message, .. } = &report { Some(message.clone()) } else { None };
        if let (Some(message), true) = (&failure, why_not) {
            progress.could_not_begin(message.clone());
        }
        if let (Some(message), true) = (&failure, progress.released) {
            // Its front end, which would say so, is gone.
            let _ = writeln!(std::io::stderr(), "dormouse: {message}");
        }
        if let Some(first) = progress.containers.get_mut(ContainerId::FIRST) {
            first.exit = Some(status);
            first.said = failure.or(first.said.take());
        }
        progress.answer_waiters();
        if let (control::Report::Failed { message, .. }, true) = (&report, progress.released) {
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

/// The name of what woke the sandbox by itself.
const fn request_of(by: WakeEvent) -> &'static str {
    match by {
        WakeEvent::Socket => "socket",
        WakeEvent::Stream => "stdin",
        WakeEvent::Exec => "exec",
        WakeEvent::Container => "container",
        WakeEvent::Timer => TIMER,
    }
}
