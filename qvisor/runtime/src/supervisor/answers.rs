//! Answers those whose wait for an order's outcome is over.

use std::time::Instant;

use vmm::checkpoint::ImageTaken;
use vmm::hibernate::{Hibernated, Woken, micros};

use super::containers::{ContainerId, Rest};
use super::progress::Progress;
use super::stage::Stage;
use super::waiters::{For, Outcome, Waiter};
use crate::control::{self, Answer, ContainerUsage, Figures};

impl Waiter {
    /// Its answer; `None`: not yet.
    fn outcome(&self, progress: &Progress) -> Option<Outcome> {
        let of = self.of;
        let Some(container) = progress.containers.get(of) else { return Some(Err("it ended".into())) };
        if progress.ending || container.stage == Stage::Stopped {
            return Some(Err(progress.last_words(of)));
        }
        if self.is_overtaken(progress.machine.wants_rest()) {
            let why = match &self.what {
                For::Wake => "a later request to hibernate it came in between",
                _ if progress.failure.is_some() => progress.failure.as_deref().unwrap_or_default(),
                _ => "it was woken meanwhile",
            };
            return Some(Err(why.into()));
        }
        let total_us = micros(self.since.elapsed());
        match &self.what {
            For::Start => match container.stage {
                Stage::Running => Some(Ok(None)),
                // It goes on with the others.
                Stage::Starting if progress.awaits_others() => Some(Ok(None)),
                Stage::Starting => None,
                _ => Some(Err(progress.last_words(of))),
            },
            For::Pause if of != ContainerId::FIRST => match container.rest {
                Rest::Held => container.rests.then_some(Ok(None)),
                _ => Some(Err("it was resumed meanwhile".into())),
            },
            For::Pause if !progress.machine.is_held() => Some(Err("it was resumed meanwhile".into())),
            For::Pause => progress.machine.is_at_rest().then_some(Ok(None)),
            For::Processes => {
                let list = progress.processes.as_ref().filter(|(listed, _)| *listed == of);
                list.map(|(_, list)| Ok(Some(Figures::Processes(list.clone()))))
            }
            For::Usage(request) => {
                let usage = progress.usage.as_ref().filter(|(answered, _)| answered == request);
                let usage = usage.map(|(_, usage)| usage.map_or_else(ContainerUsage::default, Into::into));
                usage.map(|usage| Ok(Some(Figures::Usage(progress.as_it_sleeps(usage)))))
            }
            For::Limits(request) => {
                let answer = progress.limits.as_ref().filter(|(answered, _)| answered == request);
                answer.map(|(_, outcome)| outcome.clone().map(|()| None))
            }
            For::Checkpoint(number) => {
                let image = progress.image.as_ref().filter(|(taken, _)| taken == number);
                let figures = |taken: ImageTaken| Some(Figures::Checkpoint(Box::new(taken)));
                image.map(|(_, outcome)| outcome.clone().map(figures))
            }
            // The asker may continue the leash as soon as it has the answer: the leash has to be stopped by then.
            For::Hibernation(Some(Figures::Hibernated(done)))
                if progress.containers.first().shows_stopped() || !progress.machine.wants_rest() =>
            {
                Some(Ok(Some(Figures::Hibernated(Hibernated { total_us, ..done.clone() }))))
            }
            // One that `pause` holds stays paused when it cannot hibernate, as it is wanted, so nothing overtakes the order.
            For::Hibernation(None) if progress.machine.is_at_rest() && !progress.machine.is_hibernated() => {
                progress.failure.clone().map(Err)
            }
            For::Hibernation(_) => None,
            For::Wake if progress.machine.is_hibernated() || progress.machine.is_waking() => None,
            For::Wake => Some(Ok(Some(Figures::Woken(Woken { total_us, ..progress.woken.clone() })))),
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
            control::send_now(&waiter.peer, &self.answer(waiter.of, outcome));
            false
        });
        self.waiters = waiters;
    }

    /// Of a container's memory, what is in memory: nothing of its programs' while the sandbox is hibernated.
    fn as_it_sleeps(&self, usage: ContainerUsage) -> ContainerUsage {
        let hibernated_bytes = if self.machine.is_hibernated() { usage.frames_bytes } else { 0 };
        let memory_bytes = usage.memory_bytes.saturating_sub(hibernated_bytes);
        ContainerUsage { memory_bytes, hibernated_bytes, ..usage }
    }

    /// The answer to an order about a container.
    pub(super) fn answer(&self, of: ContainerId, outcome: Outcome) -> Answer {
        let (figures, error) = match outcome {
            Ok(figures) => (figures, None),
            Err(error) => (None, Some(error)),
        };
        Answer { error, status: Some(self.status(of)), figures, ..Answer::default() }
    }
}
