//! Wishes for a sandbox: that it rests, or goes on. The last one counts, whoever utters it.
//!
//! The kernel is asked by numbered requests, and takes the one with the largest number. The leash shows others what is
//! wanted, and is one of those who say it:
//!
//! - When the VMM sees the leash stopped although the sandbox is to go on, or continued although it is to rest,
//!   somebody else has done that, and it is what is wanted from now on. Edges are not counted: several signals may be
//!   seen as one, but the last state is always seen.
//! - When the sandbox is to go on for another reason, and the leash is stopped, the VMM continues it, and takes the news
//!   of that itself under the same lock. So a leash that is seen continued later was continued by others; and when a
//!   `SIGSTOP` comes right after, the leash is seen stopped, and that counts, being the last.
//! - When the sandbox rests for another reason, the VMM tells the leash to stop itself (it has no right to stop it),
//!   which takes a moment. Until the leash is seen stopped it is *told*: a stop that is seen then is nobody's wish, and
//!   nothing is done to the leash, so that it cannot stop itself after it was continued. Who waits for a hibernation
//!   hears of it only afterwards, since before that a `SIGCONT` would do nothing.
//!
//! While the sandbox is *held*, paused by `pause`, all of that means nothing: the leash is brought back to what is wanted, and only
//! `resume`, or `wake` if the sandbox is hibernated, makes it go on.
//!
//! A `SIGSTOP` to a leash that is stopped does nothing, as to any process: it counts if it comes after the leash was
//! continued.

use std::time::Instant;

use abi::hostcall::{
    EVENT_FLAG_HELD, EVENT_FLAG_IDLE, EVENT_FLAG_STAYS, EVENT_HIBERNATE, EVENT_PAUSE, EVENT_WAKE, Event,
};
use vmm::process::ChildEvent;

use super::Supervisor;
use super::journal::Transition;
use super::progress::{News, Progress};
use super::stage::Cause;
use super::state_machine::{Action, Input};
use crate::control::Figures;
use crate::status::SandboxState;

pub(super) fn event(kind: u32, flags: u32, value: i64) -> Event {
    Event { kind, flags, token: 0, value }
}

impl Supervisor {
    /// Takes what happened, and carries out what is to be done about it.
    pub(super) fn step(&self, progress: &mut Progress, input: Input, news: News) {
        for action in progress.machine.step(input) {
            self.perform(progress, action, &news);
        }
        progress.cycles.is_now(progress.machine.is_hibernated());
    }

    fn perform(&self, progress: &mut Progress, action: Action, news: &News) {
        // The last request counts, in whatever order they get there.
        let ask = |kind, flags, request: u64| self.events.post(event(kind, flags, request.cast_signed()));
        let held = |is_held| if is_held { EVENT_FLAG_HELD } else { 0 };
        let for_image = |stays| if stays { EVENT_FLAG_STAYS } else { 0 };
        match action {
            Action::Pause { request, is_held } => ask(EVENT_PAUSE, held(is_held), request),
            Action::Hibernate { request, is_held } => {
                let idle = progress.machine.rest_cause() == Cause::IdleTimeout;
                // For a checkpoint nothing that comes may wake it.
                let stays = progress.is_held_for_checkpoint();
                let flags =
                    1 | held(stays || is_held) | for_image(stays) | if idle { EVENT_FLAG_IDLE } else { 0 };
                ask(EVENT_HIBERNATE, flags, request);
                progress.failure = None;
                self.nudge();
            }
            Action::Hasten { request, is_held } => {
                let stays = progress.is_held_for_checkpoint();
                ask(EVENT_HIBERNATE, held(stays || is_held) | for_image(stays), request);
            }
            Action::Wake { request, serves } => ask(EVENT_WAKE, serves.into(), request),
            Action::Hibernated { from, since } => progress.tell_of_sleep(from, since, news.slept()),
            Action::HibernatedAlready => progress.hibernation_came_to(&Figures::Hibernated(news.slept())),
            // Something came in between, as on any other day.
            Action::NotHibernated
                if progress.machine.rest_cause() == Cause::IdleTimeout && news.is_without_failure() => {}
            Action::NotHibernated => progress.tell_of_failure(news.failure()),
            Action::GaveUp => progress.tell_of_failure("it did not come to rest".into()),
            Action::Woken(wake) => {
                progress.tell_of_wake(&wake, news.woken());
                progress.continue_stopped();
            }
            Action::WokenUp => {
                let (from, to) = (SandboxState::HibernateRunning, progress.machine.sandbox_state());
                progress.readers.tell(&Transition::new(Some(from), to, None));
            }
        }
    }

    /// It is to be hibernated; where that cannot be, to pause.
    pub(super) fn want_rest(&self, progress: &mut Progress, cause: Cause) {
        progress.rests_after_checkpoint();
        let hibernates = progress.is_running() && self.can_hibernate.is_ok();
        self.step(progress, Input::WantRest { cause, hibernates, now: Instant::now() }, News::default());
    }

    /// It is to go on.
    pub(super) fn want_running(&self, progress: &mut Progress, cause: Cause) {
        progress.overtakes_checkpoint(cause);
        self.step(progress, Input::WantRunning { cause, now: Instant::now() }, News::default());
    }

    /// Makes the leash show what is wanted, and tells those whose wait is over.
    pub(super) fn settle(&self, progress: &mut Progress) {
        self.go_on_with_checkpoint(progress);
        self.settle_leash(progress);
        progress.answer_waiters();
        self.changed.notify_all();
    }

    fn settle_leash(&self, progress: &mut Progress) {
        let is_ending = progress.ending;
        let Progress { containers, machine, .. } = progress;
        let Some((leash, state)) = containers.leash() else { return };
        if state.is_told || is_ending {
            return;
        }
        let rests = machine.is_hibernated() || machine.rest_cause() == Cause::Signal;
        if !machine.wants_rest() && state.is_stopped {
            leash.resume();
            self.take_leash_news(progress);
        } else if machine.wants_rest() && !state.is_stopped && rests {
            state.is_told = true;
            leash.stop();
        }
    }

    /// The leash is continued, even if it is only about to be stopped: by order of somebody who says so now.
    pub(super) fn continue_leash(&self, progress: &mut Progress) {
        if progress.machine.is_held() {
            return;
        }
        let Some((leash, state)) = progress.containers.leash() else { return };
        if !state.is_told {
            leash.resume();
            self.take_leash_news(progress);
        }
    }

    /// Takes what became of the leash since it was last seen.
    pub(super) fn take_leash_news(&self, progress: &mut Progress) {
        while let Some((leash, state)) = progress.containers.leash()
            && let Some(seen) = leash.look()
        {
            let is_stopped = seen == ChildEvent::Stopped;
            let was_told = std::mem::take(&mut state.is_told);
            let is_news = state.is_stopped != is_stopped;
            state.is_stopped = is_stopped;
            match is_stopped {
                true if !progress.machine.wants_rest() && !was_told => {
                    self.want_rest(progress, Cause::Signal)
                }
                false if progress.machine.wants_rest() && (is_news || was_told) => {
                    self.want_running(progress, Cause::Signal);
                }
                _ => {}
            }
        }
    }

    /// Carries out what is due by now.
    pub(super) fn tick(&self) {
        let progress = &mut *self.lock();
        self.step(progress, Input::Tick { now: Instant::now() }, News::default());
        self.settle(progress);
    }
}
