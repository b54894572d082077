//! Who waits for an order's outcome. Nobody is waited for in turn: an answer that does not fit is dropped.

use std::os::unix::net::UnixStream;
use std::time::Instant;

use super::progress::{Progress, Stage};
use crate::control::{self, Answer, Figures};
use crate::hibernate::{Hibernated, Woken, micros};

/// Most of them at a time.
pub(super) const WAITERS_MAX: usize = 64;

/// What somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// The first program runs, or is known not to.
    Start,
    /// The memory is in its home, which came to this.
    Hibernation(Option<Figures>),
    Wake,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Waiter {
    pub peer: UnixStream,
    pub what: For,
    pub since: Instant,
    pub deadline: Instant,
}

/// How an order came out.
pub(super) type Outcome = Result<Option<Figures>, String>;

impl Waiter {
    pub(super) fn has_fallen(&mut self, figures: &Figures) {
        if let For::Hibernation(came_to) = &mut self.what {
            came_to.get_or_insert_with(|| figures.clone());
        }
    }

    /// Whether a later request for the opposite has made the wait vain.
    pub(super) fn is_overtaken(&self, wants_down: bool) -> bool {
        match &self.what {
            For::Start => false,
            For::Hibernation(came_to) => !wants_down && came_to.is_none(),
            For::Wake => wants_down,
        }
    }

    /// What it is to be told; `None`: not yet.
    fn outcome(&self, progress: &Progress) -> Option<Outcome> {
        if progress.ending {
            return Some(Err(progress.last_words()));
        }
        if self.is_overtaken(progress.wants_down) {
            let why = match &self.what {
                For::Wake => "a later request to hibernate it came in between",
                _ if progress.failure.is_some() => progress.failure.as_deref().unwrap_or_default(),
                _ => "it was woken meanwhile",
            };
            return Some(Err(why.into()));
        }
        let total_us = micros(self.since.elapsed());
        match &self.what {
            For::Start => match progress.stage {
                Stage::Running => Some(Ok(None)),
                Stage::Starting => None,
                _ => Some(Err(progress.last_words())),
            },
            // Whoever is told may continue the leash at once: it has to be stopped by then.
            For::Hibernation(Some(Figures::Hibernated(done)))
                if !progress.has_leash || progress.leash.is_stopped || !progress.wants_down =>
            {
                Some(Ok(Some(Figures::Hibernated(Hibernated { total_us, ..done.clone() }))))
            }
            For::Hibernation(_) => None,
            For::Wake if progress.is_asleep || progress.rise.is_some() => None,
            For::Wake => Some(Ok(Some(Figures::Woken(Woken { total_us, ..progress.woken.clone() })))),
        }
    }

    fn timed_out(&self) -> &'static str {
        match self.what {
            For::Start => "it does not start",
            For::Hibernation(_) => "it did not come to rest",
            For::Wake => "it does not answer",
        }
    }
}

impl Progress {
    /// Answers all whose wait is over.
    pub(super) fn answer_waiters(&mut self) {
        let now = Instant::now();
        let mut waiters = std::mem::take(&mut self.waiters);
        waiters.retain(|waiter| {
            let late = || (waiter.deadline <= now).then(|| Err(waiter.timed_out().to_owned()));
            let Some(outcome) = waiter.outcome(self).or_else(late) else { return true };
            control::send_now(&waiter.peer, &self.answer(outcome));
            false
        });
        self.waiters = waiters;
    }

    /// The answer to an order.
    pub(super) fn answer(&self, outcome: Outcome) -> Answer {
        let (figures, error) = match outcome {
            Ok(figures) => (figures, None),
            Err(error) => (None, Some(error)),
        };
        Answer { error, status: Some(self.status()), figures, ..Answer::default() }
    }
}
