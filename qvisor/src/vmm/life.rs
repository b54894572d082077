//! The life of a sandbox as its VMM sees it: how far it has got, who is told, and how it ends.

use std::io::BufReader;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use abi::hostcall::{
    EVENT_HIBERNATE, EVENT_PAUSE, EVENT_RESUME, EVENT_SIGNAL, EVENT_START, EVENT_WAKE, EVENT_WINSIZE, Event,
    REPORT_ASLEEP, REPORT_PAUSED, REPORT_READY, REPORT_RESUMED, REPORT_RUNNING, REPORT_STAYED_WARM,
};

use super::{VmmError, chain};
use crate::control::{self, Answer, Figures, Order, Report};
use crate::hibernate::{Hibernation, Woken, micros};
use crate::hostcall::events::EventQueue;
use crate::leash::{Leash, News};
use crate::process::{self, ChildEvent};
use crate::sandbox::Sandbox;
use crate::state::Status;

/// How long somebody who waits for the start may take to be told that it failed.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the first program may take to be loaded.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long a sandbox that is to hibernate may go on with what it does.
const IDLE_PATIENCE: Duration = Duration::from_millis(200);
/// How long its memory may take to be written or read.
const HIBERNATE_PATIENCE: Duration = Duration::from_secs(300);

/// How far it has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Stage {
    Creating,
    Created,
    Starting,
    Running,
}

/// Where its memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    Awake,
    /// On its way to its home.
    FallingAsleep,
    Asleep,
}

#[derive(Debug)]
struct Progress {
    stage: Stage,
    paused: bool,
    sleep: Sleep,
    /// The first request of the last hibernation.
    falls_by: u64,
    /// The last request to pause or resume that was answered.
    answered: u64,
    /// The kernel's last words before the first program ran.
    said: Option<String>,
    /// The front end may go.
    released: bool,
    ending: bool,
    /// Somebody on the control socket waits for the start.
    awaited: bool,
}

impl Progress {
    /// What those hear who waited for something else than its end.
    fn last_words(&self) -> String {
        self.said.clone().unwrap_or_else(|| "it ended".into())
    }
}

/// See the module.
pub(super) struct Life {
    progress: Mutex<Progress>,
    changed: Condvar,
    channel: Arc<UnixStream>,
    leash: Option<Leash>,
    events: Arc<EventQueue>,
    hibernation: Arc<Hibernation>,
    /// Requests to pause, to hibernate and to go on so far.
    requests: AtomicI64,
    sandbox: OnceLock<Weak<Sandbox>>,
}

fn event(kind: u32, flags: u32, value: i64) -> Event {
    Event { kind, flags, token: 0, value }
}

impl control::Target for Life {
    fn answer(&self, order: Order) -> Answer {
        self.carry_out(order)
    }

    fn answered(&self) {
        self.lock().awaited = false;
        self.changed.notify_all();
    }
}

impl Life {
    pub(super) fn new(
        channel: Arc<UnixStream>,
        leash: Option<Leash>,
        events: Arc<EventQueue>,
        hibernation: Hibernation,
    ) -> Self {
        let progress = Progress {
            stage: Stage::Creating,
            paused: false,
            sleep: Sleep::Awake,
            falls_by: 0,
            answered: 0,
            said: None,
            released: false,
            ending: false,
            awaited: false,
        };
        Self {
            progress: Mutex::new(progress),
            changed: Condvar::new(),
            channel,
            leash,
            events,
            hibernation: Arc::new(hibernation),
            requests: AtomicI64::new(0),
            sandbox: OnceLock::new(),
        }
    }

    /// The home of its pages.
    pub(super) fn hibernation(&self) -> &Arc<Hibernation> {
        &self.hibernation
    }

    pub(super) fn leash(&self) -> Option<&Leash> {
        self.leash.as_ref()
    }

    /// Whose terminal it is that may change its size.
    pub(super) fn set_sandbox(&self, sandbox: Weak<Sandbox>) {
        let _ = self.sandbox.set(sandbox);
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a line of the log that says why a container does not start; true: it is not for standard error.
    pub(super) fn keep(&self, level: u32, text: &str) -> bool {
        let mut progress = self.lock();
        let keeps = self.leash.is_some() && level == 0 && progress.stage < Stage::Running;
        if keeps {
            progress.said = Some(text.trim_end().to_owned());
        }
        keeps
    }

    /// The kernel says how far it has got.
    pub(super) fn report(&self, what: u64, of: u64) {
        let mut progress = self.lock();
        match what {
            REPORT_READY => {
                progress.stage = Stage::Created;
                let _ = control::send(&self.channel, &Report::Created);
            }
            REPORT_RUNNING => {
                progress.stage = Stage::Running;
                let _ = control::send(&self.channel, &Report::Started);
            }
            // Answers may overtake one another; the kernel has taken the later request in any case.
            REPORT_PAUSED | REPORT_RESUMED if of >= progress.answered => {
                (progress.paused, progress.answered) = (what != REPORT_RESUMED, of);
                let was = progress.sleep;
                // An earlier request's answer may come late.
                let overtaken = was == Sleep::FallingAsleep && of < progress.falls_by;
                if what == REPORT_RESUMED && !overtaken {
                    progress.sleep = Sleep::Awake;
                }
                // What came from outside may have woken it; what others see does not drift.
                if let (REPORT_RESUMED, Sleep::Asleep, Some(leash)) = (what, was, &self.leash) {
                    leash.resume();
                }
            }
            REPORT_ASLEEP if progress.sleep == Sleep::FallingAsleep => progress.sleep = Sleep::Asleep,
            REPORT_STAYED_WARM if progress.sleep == Sleep::FallingAsleep => {
                progress.sleep = Sleep::Awake;
                // Its tasks go on in a moment; who hears of the failure sees it run.
                progress.paused &= of < progress.answered;
            }
            _ => {}
        }
        self.changed.notify_all();
    }

    /// Ends the VMM with all its threads, once everybody knows how the sandbox ended. The first call counts.
    pub(super) fn finish(&self, end: Result<i32, VmmError>) -> ! {
        let mut progress = self.lock();
        while progress.ending {
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
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
            Err(error) => (125 << 8, Report::Failed { message: chain(&error), code: None }),
        };
        if let Report::Failed { message, .. } = &report {
            progress.said = Some(message.clone());
        }
        self.changed.notify_all();
        if progress.awaited {
            let told = self.changed.wait_timeout_while(progress, PATIENCE, |progress| progress.awaited);
            drop(told);
        } else {
            drop(progress);
        }
        // First the leash: whoever hears of the end may look at it.
        if let Some(leash) = &self.leash {
            leash.end(status);
        }
        let _ = control::send(&self.channel, &report);
        process::exit_now(0)
    }

    /// Takes orders until the front end is gone and has not let go of the sandbox.
    pub(super) fn serve(&self, listener: &UnixListener) {
        let mut orders = BufReader::new(&*self.channel);
        let mut channel = self.channel.as_raw_fd();
        let mut leash = self.leash.as_ref().map_or(-1, Leash::as_raw_fd);
        loop {
            let [from_front, from_socket, from_leash] =
                process::wait_readable([channel, listener.as_raw_fd(), leash], -1);
            // The front end writes whole lines, so one that began will end.
            while from_front && channel >= 0 {
                match control::read_order(&mut orders) {
                    Ok(Some(order)) => drop(self.obey(order)),
                    Ok(None) if self.lock().released => channel = -1,
                    Ok(None) => self.abandoned(),
                    Err(_) => {}
                }
                if orders.buffer().is_empty() {
                    break;
                }
            }
            if from_leash {
                match self.leash.as_ref().and_then(Leash::news) {
                    Some(News::Gone) => leash = -1,
                    Some(News::Signal(signal)) => self.events.post(event(EVENT_SIGNAL, 0, signal.into())),
                    Some(News::Resized) => self.take_size(),
                    None => {}
                }
            }
            if from_socket && let Ok((peer, _)) = listener.accept() {
                let _ = control::serve_peer(&peer, self);
            }
        }
    }

    /// The front end is gone, and with it the reason to run.
    fn abandoned(&self) -> ! {
        if self.leash.is_some() {
            self.finish(Ok(libc::SIGKILL));
        }
        process::exit_now(1)
    }

    /// Sees the leash stopped, continued and killed.
    pub(super) fn watch(&self) {
        let Some(leash) = &self.leash else { return };
        leash.watch(|seen| match seen {
            ChildEvent::Stopped => {
                self.request(EVENT_PAUSE);
            }
            ChildEvent::Continued => {
                self.request(EVENT_RESUME);
            }
            // Its status is there for the subreaper; nothing else may run on.
            ChildEvent::Ended => self.finish(Ok(libc::SIGKILL)),
        });
    }

    /// Asks the kernel to pause or to go on. The last request counts, in whatever order they get there.
    fn request(&self, kind: u32) -> u64 {
        self.request_with(kind, 0)
    }

    fn request_with(&self, kind: u32, flags: u32) -> u64 {
        let request = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        self.events.post(event(kind, flags, request));
        request.cast_unsigned()
    }

    fn take_size(&self) {
        let sandbox = self.sandbox.get().and_then(Weak::upgrade);
        if let Some((rows, columns)) = sandbox.and_then(|sandbox| sandbox.files.terminal_size()) {
            self.resize(rows, columns);
        }
    }

    fn resize(&self, rows: u16, columns: u16) {
        self.events.post(event(EVENT_WINSIZE, 0, i64::from(rows) << 16 | i64::from(columns)));
    }

    fn carry_out(&self, order: Order) -> Answer {
        let result = match (order, &self.leash) {
            (Order::Start, Some(_)) => self.start(true).and_then(|()| self.await_start()).map(|()| None),
            (Order::Hibernate, _) => self.hibernate().map(Some),
            (Order::Wake { reap }, _) => self.wake(reap).map(Some),
            _ => self.obey(order).map(|()| None),
        };
        let (figures, error) = match result {
            Ok(figures) => (figures, None),
            Err(error) => (None, Some(error)),
        };
        Answer { error, status: self.status(), figures }
    }

    fn obey(&self, order: Order) -> Result<(), String> {
        match (order, &self.leash) {
            (Order::Kill { signal: libc::SIGKILL, .. }, _) => self.finish(Ok(libc::SIGKILL)),
            (Order::Kill { signal: libc::SIGSTOP, .. }, Some(leash)) => leash.stop(),
            (Order::Kill { signal: libc::SIGCONT, .. }, Some(leash)) => leash.resume(),
            (Order::Kill { signal, foreground, all }, _) => {
                if !(1..=crate::signals::SIGNAL_MAX).contains(&signal) {
                    return Err(format!("{signal} is not a signal"));
                }
                // Whom a signal is for has to run to see it.
                if self.lock().sleep == Sleep::Asleep {
                    self.go_on();
                }
                let flags = if all { 2 } else { u32::from(foreground) };
                self.events.post(event(EVENT_SIGNAL, flags, i64::from(signal)));
            }
            (Order::Winsize { rows, columns }, _) => self.resize(rows, columns),
            (Order::Start, Some(_)) => return self.start(false),
            (Order::Release, Some(_)) => {
                self.lock().released = true;
                let _ = control::send(&self.channel, &Report::Released);
            }
            (Order::Hibernate, _) => return self.hibernate().map(drop),
            (Order::Wake { reap }, _) => return self.wake(reap).map(drop),
            (Order::Start | Order::Release | Order::Proceed, _) => {
                return Err("it is not waiting for this".into());
            }
            (Order::State, _) => {}
        }
        Ok(())
    }

    /// Has its memory stored; waits for the end.
    fn hibernate(&self) -> Result<Figures, String> {
        let start = Instant::now();
        self.hibernation.check()?;
        let mut progress = self.lock();
        match (progress.stage, progress.sleep) {
            (Stage::Running, Sleep::Awake) => {}
            (Stage::Running, _) => return Err("it is hibernated already".into()),
            _ => return Err("its first process does not run yet".into()),
        }
        (progress.sleep, progress.awaited) = (Sleep::FallingAsleep, true);
        let falls = |progress: &mut Progress| progress.sleep == Sleep::FallingAsleep && !progress.ending;
        // First when nobody is in the middle of a request; a sandbox that is never idle is stopped wherever it is.
        progress.falls_by = self.request_with(EVENT_HIBERNATE, 1);
        let waited = self.changed.wait_timeout_while(progress, IDLE_PATIENCE, falls);
        let (mut progress, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && falls(&mut progress) {
            // The same request: once it is done, this means nothing.
            self.events.post(event(EVENT_HIBERNATE, 0, progress.falls_by.cast_signed()));
        }
        let waited = self.changed.wait_timeout_while(progress, HIBERNATE_PATIENCE, falls);
        let (progress, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() || progress.sleep != Sleep::Asleep {
            let ended = progress.ending.then(|| progress.last_words());
            drop(progress);
            let why = ended.unwrap_or_else(|| self.why_warm(waited.timed_out()));
            if let Some(leash) = &self.leash {
                leash.resume();
            }
            return Err(why);
        }
        drop(progress);
        // What others see of it does not drift.
        if let Some(leash) = &self.leash {
            leash.stop();
        }
        let done = self.hibernation.last()?;
        Ok(Figures::Hibernated(crate::hibernate::Hibernated { total_us: micros(start.elapsed()), ..done }))
    }

    fn why_warm(&self, timed_out: bool) -> String {
        if timed_out {
            self.go_on();
            return "it did not come to rest".into();
        }
        self.hibernation.last().err().unwrap_or_else(|| "it was woken meanwhile".into())
    }

    /// Makes it go on, by order of the leash if there is one.
    fn go_on(&self) -> u64 {
        let request = self.request(EVENT_WAKE);
        if let Some(leash) = &self.leash {
            leash.resume();
        }
        request
    }

    /// Brings it back; waits until it goes on.
    fn wake(&self, reap: Option<bool>) -> Result<Figures, String> {
        let start = Instant::now();
        let mut progress = self.lock();
        if progress.sleep != Sleep::Asleep {
            return Err("it is not hibernated".into());
        }
        progress.awaited = true;
        self.hibernation.begin_wake(reap);
        let request = self.go_on();
        let sleeps = |progress: &Progress| progress.sleep == Sleep::Asleep && !progress.ending;
        let unanswered = |progress: &mut Progress| sleeps(progress) && progress.answered <= request;
        let waited = self.changed.wait_timeout_while(progress, HIBERNATE_PATIENCE, unanswered);
        let progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        // A pause that came in between may be the leash's own, which goes on by our order.
        let waited = self.changed.wait_timeout_while(progress, PATIENCE, |progress| sleeps(progress));
        let progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        if progress.ending {
            return Err(progress.last_words());
        }
        if sleeps(&progress) {
            return Err("it does not answer, or was told to stop meanwhile".into());
        }
        let total_us = micros(start.elapsed());
        Ok(Figures::Woken(Woken { total_us, ..self.hibernation.woken() }))
    }

    /// `awaited`: somebody will ask how it went, before the sandbox may go.
    fn start(&self, awaited: bool) -> Result<(), String> {
        let mut progress = self.lock();
        if progress.stage != Stage::Created || progress.ending {
            return Err("it has been started before".into());
        }
        (progress.stage, progress.awaited) = (Stage::Starting, awaited);
        self.events.post(event(EVENT_START, 0, 0));
        Ok(())
    }

    /// Waits until the first program runs, or is known not to.
    fn await_start(&self) -> Result<(), String> {
        let progress = self.lock();
        let waits = |progress: &mut Progress| progress.stage == Stage::Starting && !progress.ending;
        let waited = self.changed.wait_timeout_while(progress, START_PATIENCE, waits);
        let progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        match progress.stage {
            Stage::Running => Ok(()),
            _ => Err(progress.said.clone().unwrap_or_else(|| "it does not start".into())),
        }
    }

    fn status(&self) -> Option<Status> {
        let progress = self.lock();
        Some(match progress.stage {
            Stage::Creating => Status::Creating,
            _ if progress.sleep == Sleep::Asleep => Status::Hibernated,
            _ if progress.paused => Status::Paused,
            Stage::Created => Status::Created,
            Stage::Starting | Stage::Running => Status::Running,
        })
    }
}
