//! What is wanted of a sandbox: that it is down, or goes on. The last one who says so counts, whoever it is.
//!
//! The kernel is asked by numbered requests, and takes the one with the largest number. The leash shows others what is
//! wanted, and is one of those who say it:
//!
//! - When the VMM sees the leash stopped although the sandbox is to go on, or continued although it is to be down,
//!   somebody else has done that, and it is what is wanted from now on. Edges are not counted: several signals may be
//!   seen as one, but the last state is always seen.
//! - When the sandbox is to go on for another reason, and the leash is stopped, the VMM continues it, and takes the news
//!   of that itself under the same lock. So a leash that is seen continued later was continued by others; and when a
//!   `SIGSTOP` comes right after, the leash is seen stopped, and that counts, being the last.
//! - When the sandbox is down for another reason, the VMM tells the leash to stop itself (it has no right to stop it),
//!   which takes a moment. Until the leash is seen stopped it is *told*: a stop that is seen then is nobody's wish, and
//!   nothing is done to the leash, so that it cannot stop itself after it was continued. Who waits for a hibernation
//!   hears of it only afterwards, since before that a `SIGCONT` would do nothing.
//!
//! A `SIGSTOP` to a leash that is stopped does nothing, as to any process: it counts if it comes after the leash was
//! continued.

use std::time::{Duration, Instant};

use abi::hostcall::{EVENT_HIBERNATE, EVENT_PAUSE, EVENT_WAKE, Event};
use vmm::process::ChildEvent;

use super::Supervisor;
use super::progress::{Fall, Progress, Rise};
use super::stage::{Cause, Stage};

/// How long a sandbox that is to hibernate may go on with what it does.
const IDLE_PATIENCE: Duration = Duration::from_millis(200);
/// How long its memory may take to be written or read.
pub(super) const HIBERNATE_PATIENCE: Duration = Duration::from_secs(300);

pub(super) fn event(kind: u32, flags: u32, value: i64) -> Event {
    Event { kind, flags, token: 0, value }
}

impl Supervisor {
    /// Asks the kernel to pause, to hibernate or to go on. The last request counts, in whatever order they get there.
    pub(super) fn request(&self, progress: &mut Progress, kind: u32, flags: u32) -> u64 {
        progress.requests += 1;
        self.events.post(event(kind, flags, progress.requests.cast_signed()));
        progress.requests
    }

    /// It is to be hibernated; where that cannot be, to pause.
    pub(super) fn want_down(&self, progress: &mut Progress, cause: Cause) {
        let sleeps = progress.is_asleep && progress.rise.is_none();
        let is_down = progress.wants_down && (sleeps || progress.fall.is_some());
        progress.wants_down = true;
        if is_down {
            return;
        }
        progress.down_cause = cause;
        if progress.stage != Stage::Running || self.can_hibernate.is_err() {
            self.request(progress, EVENT_PAUSE, 0);
            return;
        }
        // First when nobody is in the middle of a request; a sandbox that is never idle is stopped wherever it is.
        let (since, request) = (Instant::now(), self.request(progress, EVENT_HIBERNATE, 1));
        let (strict_at, deadline) = (Some(since + IDLE_PATIENCE), since + HIBERNATE_PATIENCE);
        progress.fall = Some(Fall { request, since, strict_at, deadline });
        progress.failure = None;
        self.nudge();
    }

    /// It is to go on.
    pub(super) fn want_awake(&self, progress: &mut Progress, cause: Cause) {
        (progress.wants_down, progress.fall) = (false, None);
        let since = Instant::now();
        let serves = matches!(cause, Cause::Request(_));
        let request = Some(self.request(progress, EVENT_WAKE, serves.into()));
        progress.rise = Some(Rise { request, cause, since });
    }

    /// Makes the leash show what is wanted, and tells those whose wait is over.
    pub(super) fn settle(&self, progress: &mut Progress) {
        self.settle_leash(progress);
        progress.answer_waiters();
        self.changed.notify_all();
    }

    fn settle_leash(&self, progress: &mut Progress) {
        let Some(leash) = &self.leash else { return };
        if progress.leash.is_told || progress.ending {
            return;
        }
        let is_down = progress.is_asleep || progress.down_cause == Cause::Signal;
        if !progress.wants_down && progress.leash.is_stopped {
            leash.resume();
            self.take_leash_news(progress);
        } else if progress.wants_down && !progress.leash.is_stopped && is_down {
            progress.leash.is_told = true;
            leash.stop();
        }
    }

    /// The leash is continued, even if it is only about to be stopped: by order of somebody who says so now.
    pub(super) fn continue_leash(&self, progress: &mut Progress) {
        let Some(leash) = &self.leash else { return };
        if !progress.leash.is_told {
            leash.resume();
            self.take_leash_news(progress);
        }
    }

    /// Takes what became of the leash since it was last seen.
    pub(super) fn take_leash_news(&self, progress: &mut Progress) {
        let Some(leash) = &self.leash else { return };
        while let Some(seen) = leash.look() {
            let is_stopped = seen == ChildEvent::Stopped;
            let was_told = std::mem::take(&mut progress.leash.is_told);
            let is_news = progress.leash.is_stopped != is_stopped;
            progress.leash.is_stopped = is_stopped;
            match is_stopped {
                true if !progress.wants_down && !was_told => self.want_down(progress, Cause::Signal),
                false if progress.wants_down && (is_news || was_told) => {
                    self.want_awake(progress, Cause::Signal);
                }
                _ => {}
            }
        }
    }

    /// What time alone brings about.
    pub(super) fn tick(&self) {
        let progress = &mut *self.lock();
        let now = Instant::now();
        if progress.fall.as_ref().is_some_and(|fall| fall.deadline <= now) {
            self.want_awake(progress, Cause::Order);
            self.gives_up(progress, "it did not come to rest".into());
        }
        if let Some(fall) = progress.fall.as_mut().filter(|fall| fall.strict_at.is_some_and(|at| at <= now)) {
            // The same request: once it is done, this means nothing.
            self.events.post(event(EVENT_HIBERNATE, 0, fall.request.cast_signed()));
            fall.strict_at = None;
        }
        self.settle(progress);
    }
}
