//! Whether somebody outside waits for something that would not wake a sandbox that sleeps: the rule by which one that is at rest may
//! fall asleep by itself.
//!
//! In a sandbox at rest every task sleeps. What goes on from there begins with something from outside, which wakes it, or with a
//! time that comes, which does not. So the question is for whom its tasks wait for a time ([`TimedWait`]):
//!
//! | who waits outside | the sandbox stays awake while |
//! |---|---|
//! | for the answer to a request that no task reads on from: its handler is at work | a task waits in a way that is no habit; or whoever read the request waits in a loop that has a time-out of its own, which hides others |
//! | the same, and some task waits for more from the connection, as an event loop always does | such a wait has begun since the request did; or such a loop as above |
//! | for the rest of an answer, perhaps | a task sleeps for a time and nothing else, has done so for long, and began to since the connection was last quiet; or the loop that waits for more from the connection waits in a way that is no habit, or for what is left of a long one; after a write that followed from a timer as above |
//! | for the end of an exec'd process | one of its tasks waits for a time, or, for a while, none waits for its input or a socket |
//! | nobody, but the sandbox has asked somebody itself | a task waits for that answer with a time-out |
//!
//! A wait for more from one accepted connection alone counts for nothing: its time-out ends a connection that nobody uses. What may
//! repeat for ever counts while it begins before a time ([`Facts::trusted_until_ns`]); a single wait counts to its end. Timers that
//! tell by a signal or a descriptor count as waits that begin when they are set.

use alloc::vec::Vec;

use crate::net::talks::Phase;
use crate::task::waits::TimedWait;

/// How those wait that read on from a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// Nobody does. With it the wait of the task that read the request, if that has an end.
    Nobody(Option<TimedWait>),
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
    /// When something was last asked, and when the connection was last quiet.
    pub since_ns: u64,
    pub opened_ns: u64,
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

/// The facts by which [`Facts::judge`] decides whether a sandbox at rest is kept awake.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// A wait that may repeat counts if it began before.
    pub trusted_until_ns: u64,
    pub now_ns: u64,
    /// A sleep that began before has lasted for much of the time in which nothing came.
    pub settled_ns: u64,
    /// Waits for a time of tasks, by their numbers, but for those that wait for one accepted connection alone.
    pub waits: Vec<(usize, TimedWait)>,
    pub requests: Vec<Request>,
    pub execs: Vec<Exec>,
    /// Waits with a time-out for answers to what the sandbox asked, by the number of the connection.
    pub questions: Vec<(usize, TimedWait)>,
}

/// The reason for which the sandbox is kept awake. The numbers are places in [`Facts`].
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

/// The latest of the waits that count: no request looks at all of them. The numbers of tasks, and when they began to wait.
#[derive(Clone, Copy, Default)]
struct Latest {
    any: Option<(usize, u64)>,
    /// Of those that wait for a time and nothing else, and have for long.
    sleep: Option<(usize, u64)>,
}

/// The task with this wait, if that has begun since.
fn since(latest: Option<(usize, u64)>, since_ns: u64) -> Option<usize> {
    latest.filter(|(_, begun_ns)| *begun_ns >= since_ns).map(|(task, _)| task)
}

impl Facts {
    /// Returns the reason to keep the sandbox awake; `None`: it may sleep.
    pub fn judge(&self) -> Option<Keeps> {
        let requests = self.requests.iter().enumerate();
        let exec = |(at, exec): (usize, &Exec)| match exec.wait {
            Some((task, wait)) => self.is_trusted(&wait).then_some(Keeps::Exec(at, Some(task))),
            None => (!exec.reads && self.now_ns <= self.trusted_until_ns).then_some(Keeps::Exec(at, None)),
        };
        let latest = self.latest();
        let mut requests = requests.filter_map(|(at, request)| self.open(at, request, latest));
        let questions = || self.questions.iter().find(|(_, wait)| self.is_trusted(wait));
        requests
            .next()
            .or_else(|| self.execs.iter().enumerate().find_map(exec))
            .or_else(|| questions().map(|(at, _)| Keeps::Question(*at)))
    }

    /// The requests that are over: some task waits for the next one, and nothing is there that would answer this one.
    pub fn over(&self) -> impl Iterator<Item = usize> {
        let latest = self.latest();
        let is_read = |request: &Request| !matches!(request.reading, Reading::Nobody(_));
        let requests = self.requests.iter().enumerate().filter(move |(_, request)| is_read(request));
        requests.filter(move |(at, request)| self.open(*at, request, latest).is_none()).map(|(at, _)| at)
    }

    /// A wait counts whose beginning is not too late for it to be one of many.
    fn is_trusted(&self, wait: &TimedWait) -> bool {
        wait.begun_ns <= self.trusted_until_ns
    }

    fn latest(&self) -> Latest {
        let mut latest = Latest::default();
        for (task, wait) in self.waits.iter().filter(|(_, wait)| !wait.is_habit && self.is_trusted(wait)) {
            let later = |known: Option<(usize, u64)>| match known {
                Some((_, begun_ns)) if begun_ns >= wait.begun_ns => known,
                _ => Some((*task, wait.begun_ns)),
            };
            latest.any = later(latest.any);
            if wait.is_sleep() && wait.begun_ns <= self.settled_ns {
                latest.sleep = later(latest.sleep);
            }
        }
        latest
    }

    fn open(&self, at: usize, request: &Request, latest: Latest) -> Option<Keeps> {
        let hides = |wait: TimedWait| Some(wait).filter(|_| self.now_ns <= self.trusted_until_ns);
        let (own, hides) = match request.reading {
            Reading::Nobody(own) => (false, own.filter(|wait| wait.is_habit).and_then(hides)),
            Reading::Alone | Reading::Loop(None, _) => (false, None),
            Reading::Loop(Some(wait), _) if !wait.is_habit => (self.is_trusted(&wait), None),
            Reading::Loop(Some(wait), is_reader) => (false, hides(wait).filter(|_| is_reader)),
        };
        let is_asked = matches!(request.phase, Phase::Asked | Phase::Late);
        let asleep = since(latest.sleep, request.opened_ns);
        let waits = match request.reading {
            // All that waits may be its handler's.
            Reading::Nobody(_) => since(latest.any, 0),
            _ if is_asked => since(latest.any, request.since_ns).or(asleep),
            _ => asleep,
        };
        match request.phase {
            Phase::Quiet => None,
            _ if own => Some(Keeps::Request(at, None)),
            _ => waits
                .map(|task| Keeps::Request(at, Some(task)))
                .or_else(|| hides.filter(|wait| is_asked || wait.is_rest).map(|_| Keeps::Perhaps(at))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUSTED: u64 = 1000;

    fn wait(begun_ns: u64, is_habit: bool) -> TimedWait {
        TimedWait { call: 202, begun_ns, due_ns: u64::MAX, is_habit, is_rest: false }
    }

    /// A sleep.
    fn sleep(begun_ns: u64, is_habit: bool) -> TimedWait {
        TimedWait { call: 230, ..wait(begun_ns, is_habit) }
    }

    /// A wait that is the rest of a long habit.
    fn rest(begun_ns: u64) -> TimedWait {
        TimedWait { is_rest: true, ..wait(begun_ns, true) }
    }

    /// One request, asked last at 100, over a connection that has not been quiet since 60.
    fn facts(waits: &[TimedWait], phase: Phase, reading: Reading) -> Facts {
        Facts {
            trusted_until_ns: TRUSTED,
            now_ns: 900,
            settled_ns: 500,
            waits: waits.iter().copied().enumerate().collect(),
            requests: [Request { phase, since_ns: 100, opened_ns: 60, reading }].into(),
            ..Facts::default()
        }
    }

    /// The rule once more, said in another way, for every small set of facts.
    fn expected(other: Option<TimedWait>, phase: Phase, reading: Reading, now_ns: u64) -> bool {
        let counts = |wait: TimedWait| !wait.is_habit && wait.begun_ns <= TRUSTED;
        let since = |from_ns| other.is_some_and(|wait| counts(wait) && wait.begun_ns >= from_ns);
        let slept = other.is_some_and(|wait| wait.call == 230 && wait.begun_ns <= 500) && since(60);
        let hides = |own: Option<TimedWait>| own.is_some_and(|own| own.is_habit) && now_ns <= TRUSTED;
        let is_rest = |own: Option<TimedWait>| own.is_some_and(|own| own.is_rest);
        match (reading, phase) {
            (_, Phase::Quiet) => false,
            (Reading::Nobody(own), Phase::Answered) => since(0) || hides(own) && is_rest(own),
            (Reading::Nobody(own), _) => since(0) || hides(own),
            (Reading::Alone | Reading::Loop(None, _), Phase::Answered) => slept,
            (Reading::Alone | Reading::Loop(None, _), _) => slept || since(100),
            (Reading::Loop(Some(own), _), _) if counts(own) || slept => true,
            (Reading::Loop(own, is_reader), Phase::Answered) => is_reader && hides(own) && is_rest(own),
            (Reading::Loop(own, is_reader), _) => since(100) || is_reader && hides(own),
        }
    }

    #[test]
    fn every_small_set_of_facts_is_judged_by_the_rule() {
        let times = [50, 70, 100, 900, TRUSTED + 1];
        let kinds =
            |at: &u64| [wait(*at, false), wait(*at, true), rest(*at), sleep(*at, false), sleep(*at, true)];
        let mut waits = alloc::vec![None];
        waits.extend(times.iter().flat_map(kinds).map(Some));
        let mut readings = alloc::vec![Reading::Alone];
        readings.extend(
            waits.iter().flat_map(|own| {
                [Reading::Nobody(*own), Reading::Loop(*own, false), Reading::Loop(*own, true)]
            }),
        );
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
                    let is_read = !matches!(reading, Reading::Nobody(_));
                    assert_eq!(facts.over().count() == 1, !is_kept && is_read, "{facts:?}");
                    judged += 1;
                }
            }
        }
        assert_eq!(judged, 4 * (1 + 3 * 26) * 26 * 2);
    }

    #[test]
    fn of_many_waits_the_latest_that_counts_is_found() {
        let waits = [
            sleep(70, false),
            wait(300, false),
            sleep(200, false),
            wait(400, true),
            wait(TRUSTED + 1, false),
        ];
        let asked = facts(&waits, Phase::Asked, Reading::Alone);
        assert_eq!(asked.judge(), Some(Keeps::Request(0, Some(1))));
        let answered = facts(&waits, Phase::Answered, Reading::Alone);
        assert_eq!(answered.judge(), Some(Keeps::Request(0, Some(2))));
    }

    #[test]
    fn a_request_whose_handler_waits_for_nothing_but_the_outside_may_sleep() {
        let idle = facts(&[wait(1, true)], Phase::Asked, Reading::Nobody(None));
        assert!(idle.judge().is_none() && idle.over().next().is_none(), "it is open all the same");
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
            (TRUSTED + 1, Exec { wait: Some((3, wait(TRUSTED + 1, true))), reads: false }, None),
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
