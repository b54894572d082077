//! Whether somebody outside waits for something that would not wake a sandbox that sleeps: the rule by which one that is at rest may
//! fall asleep by itself.
//!
//! In a sandbox at rest every task sleeps. What goes on from there begins with something from outside, which wakes it, or with a
//! time that comes, which does not. So the question is for whom its tasks wait for a time ([`TimedWait`]):
//!
//! | who waits outside | the sandbox stays awake while |
//! |---|---|
//! | for the answer to a request that no task reads on from: its handler is at work | a task waits in a way that is no habit |
//! | the same, and some task waits for more from the connection, as an event loop always does | such a wait has begun since the request did; or whoever read the request waits in a loop that has a time-out of its own, which hides others |
//! | for the rest of an answer, perhaps | the loop that waits for more from the connection waits in a way that is no habit, or for what is left of a long one; after a write that followed from a timer as above |
//! | for the end of an exec'd process | one of its tasks waits for a time, or, for a while, none waits for its input or a socket |
//! | nobody, but the sandbox has asked somebody itself | a task waits for that answer with a time-out |
//!
//! A wait for more from one accepted connection alone counts for nothing: its time-out ends a connection that nobody uses. What may
//! repeat for ever counts while it begins before a time ([`Facts::trusted_until_ns`]); a single wait counts to its end.

use alloc::vec::Vec;

use crate::net::talks::Phase;
use crate::task::waits::TimedWait;

/// How those wait that read on from a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// Nobody does.
    Nobody,
    /// A task waits for this connection alone.
    Alone,
    /// Tasks wait for it among other things. The wait that counts most, of those that have an end, and whether the task is the one
    /// that read the request.
    Loop(Option<TimedWait>, bool),
}

/// A request that came over an accepted connection and may be open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub phase: Phase,
    pub since_ns: u64,
    pub reading: Reading,
}

/// An exec'd process and its descendants.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exec {
    /// A wait for a time of one of its tasks that waits neither for its input nor for a socket, and the number of that task.
    pub wait: Option<(usize, TimedWait)>,
    /// One of its tasks waits for its input, or a socket.
    pub reads: bool,
}

/// What a sandbox at rest waits for.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// A wait that may repeat counts if it began before.
    pub trusted_until_ns: u64,
    pub now_ns: u64,
    /// Waits for a time of tasks, by their numbers, but for those that wait for one accepted connection alone.
    pub waits: Vec<(usize, TimedWait)>,
    pub requests: Vec<Request>,
    pub execs: Vec<Exec>,
    /// Waits with a time-out for answers to what the sandbox asked, by the number of the connection.
    pub questions: Vec<(usize, TimedWait)>,
}

/// What keeps it awake. The numbers are places in [`Facts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Keeps {
    /// A request is open, and the task with this number waits for a time.
    Request(usize, Option<usize>),
    /// A request may be open: the task that read it waits in a loop that hides what it waits for.
    Perhaps(usize),
    /// An exec'd process is at work; the task that waits for a time, if one does.
    Exec(usize, Option<usize>),
    /// A task waits for the answer to what the sandbox asked.
    Question(usize),
}

impl Facts {
    /// What keeps the sandbox awake; `None`: it may sleep.
    pub fn judge(&self) -> Option<Keeps> {
        let requests = self.requests.iter().enumerate();
        let exec = |(at, exec): (usize, &Exec)| match exec.wait {
            Some((task, _)) => Some(Keeps::Exec(at, Some(task))),
            None => (!exec.reads && self.now_ns <= self.trusted_until_ns).then_some(Keeps::Exec(at, None)),
        };
        let mut requests = requests.filter_map(|(at, request)| self.open(at, request));
        let questions = || self.questions.iter().find(|(_, wait)| self.is_trusted(wait));
        requests
            .next()
            .or_else(|| self.execs.iter().enumerate().find_map(exec))
            .or_else(|| questions().map(|(at, _)| Keeps::Question(*at)))
    }

    /// Whether a request is over: some task waits for the next one, and nothing is there that would answer this one.
    pub fn is_over(&self, at: usize) -> bool {
        self.requests
            .get(at)
            .is_some_and(|request| request.reading != Reading::Nobody && self.open(at, request).is_none())
    }

    /// A wait counts whose beginning is not too late for it to be one of many.
    fn is_trusted(&self, wait: &TimedWait) -> bool {
        wait.begun_ns <= self.trusted_until_ns
    }

    /// A wait that is no habit and began since.
    fn new_since(&self, since_ns: u64) -> Option<usize> {
        let counts = |wait: &TimedWait| !wait.is_habit && wait.begun_ns >= since_ns && self.is_trusted(wait);
        self.waits.iter().find(|(_, wait)| counts(wait)).map(|(task, _)| *task)
    }

    fn open(&self, at: usize, request: &Request) -> Option<Keeps> {
        let by = |task: Option<usize>| task.map(|task| Keeps::Request(at, Some(task)));
        let (own, hides) = match request.reading {
            Reading::Nobody => return by(self.new_since(0)),
            Reading::Alone | Reading::Loop(None, _) => (false, None),
            Reading::Loop(Some(wait), _) if !wait.is_habit => (self.is_trusted(&wait), None),
            Reading::Loop(Some(wait), is_reader) => {
                (false, Some(wait).filter(|_| is_reader && self.now_ns <= self.trusted_until_ns))
            }
        };
        let perhaps = |hides: Option<TimedWait>| hides.map(|_| Keeps::Perhaps(at));
        match request.phase {
            Phase::Quiet => None,
            _ if own => Some(Keeps::Request(at, None)),
            Phase::Answered => perhaps(hides.filter(|wait| wait.is_rest)),
            Phase::Asked | Phase::Late => by(self.new_since(request.since_ns)).or_else(|| perhaps(hides)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUSTED: u64 = 1000;

    fn wait(begun_ns: u64, is_habit: bool) -> TimedWait {
        TimedWait { call: 35, begun_ns, due_ns: u64::MAX, is_habit, is_rest: false }
    }

    /// What is left of a long habit.
    fn rest(begun_ns: u64) -> TimedWait {
        TimedWait { is_rest: true, ..wait(begun_ns, true) }
    }

    fn facts(waits: &[TimedWait], phase: Phase, reading: Reading) -> Facts {
        Facts {
            trusted_until_ns: TRUSTED,
            now_ns: 900,
            waits: waits.iter().copied().enumerate().collect(),
            requests: [Request { phase, since_ns: 100, reading }].into(),
            ..Facts::default()
        }
    }

    /// The rule once more, said in another way, for every small set of facts.
    fn expected(other: Option<TimedWait>, phase: Phase, reading: Reading, now_ns: u64) -> bool {
        let counts = |wait: TimedWait| !wait.is_habit && wait.begun_ns <= TRUSTED;
        let since = other.is_some_and(|wait| counts(wait) && wait.begun_ns >= 100);
        let (is_own, is_hidden, is_rest) = match reading {
            Reading::Nobody => return other.is_some_and(counts),
            Reading::Loop(Some(own), is_reader) => {
                (counts(own), own.is_habit && is_reader && now_ns <= TRUSTED, own.is_rest)
            }
            _ => (false, false, false),
        };
        match phase {
            Phase::Quiet => false,
            Phase::Answered => is_own || is_hidden && is_rest,
            Phase::Asked | Phase::Late => is_own || since || is_hidden,
        }
    }

    #[test]
    fn every_small_set_of_facts_is_judged_by_the_rule() {
        let times = [50, 100, 900, TRUSTED + 1];
        let mut waits = alloc::vec![None];
        waits.extend(times.iter().flat_map(|at| [wait(*at, false), wait(*at, true), rest(*at)]).map(Some));
        let mut readings = alloc::vec![Reading::Nobody, Reading::Alone];
        readings.extend(waits.iter().flat_map(|own| [Reading::Loop(*own, false), Reading::Loop(*own, true)]));
        let mut judged = 0;
        for phase in [Phase::Quiet, Phase::Asked, Phase::Answered, Phase::Late] {
            // Nobody asks about one that is quiet, but for those whose phase changes meanwhile.
            for (reading, other) in
                readings.iter().flat_map(|reading| waits.iter().map(move |wait| (reading, wait)))
            {
                for now_ns in [900, TRUSTED + 5] {
                    let waits: Vec<_> = other.iter().copied().collect();
                    let facts = Facts { now_ns, ..facts(&waits, phase, *reading) };
                    let keeps = facts.judge();
                    let is_kept = expected(*other, phase, *reading, now_ns);
                    assert_eq!(keeps.is_some(), is_kept, "{facts:?}");
                    assert_eq!(facts.is_over(0), !is_kept && *reading != Reading::Nobody, "{facts:?}");
                    judged += 1;
                }
            }
        }
        assert_eq!(judged, 4 * (2 + 2 * 13) * 13 * 2);
    }

    #[test]
    fn a_request_whose_handler_waits_for_nothing_but_the_outside_may_sleep() {
        let idle = facts(&[wait(1, true)], Phase::Asked, Reading::Nobody);
        assert!(idle.judge().is_none() && !idle.is_over(0), "it is open all the same");
        assert_eq!(idle.requests.len(), 1);
    }

    #[test]
    fn an_execd_process_keeps_it_awake_unless_it_waits_for_its_input() {
        for (now_ns, exec, keeps) in [
            (900, Exec { wait: None, reads: true }, None),
            (900, Exec { wait: None, reads: false }, Some(Keeps::Exec(0, None))),
            (TRUSTED + 1, Exec { wait: None, reads: false }, None),
            (
                TRUSTED + 1,
                Exec { wait: Some((3, wait(800, true))), reads: true },
                Some(Keeps::Exec(0, Some(3))),
            ),
        ] {
            let facts = Facts { trusted_until_ns: TRUSTED, now_ns, execs: [exec].into(), ..Facts::default() };
            assert_eq!(facts.judge(), keeps, "{exec:?}");
        }
    }

    #[test]
    fn a_question_counts_while_its_wait_is_none_of_many() {
        for (begun_ns, keeps) in [(TRUSTED, Some(Keeps::Question(0))), (TRUSTED + 1, None)] {
            let questions = [(0, wait(begun_ns, true))].into();
            let facts = Facts { trusted_until_ns: TRUSTED, now_ns: 5000, questions, ..Facts::default() };
            assert_eq!(facts.judge(), keeps);
        }
    }
}
