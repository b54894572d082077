//! A model of content on its way: one frame that is absent, and everybody who has to do with it. Two tasks touch the page
//! (each claims, has the host fetch at once or by itself, waits, looks again), another one unmaps it, another process takes
//! the frame once it is free, the host writes whenever it likes until it has answered, and the sandbox is frozen and its
//! pages stored anew. All orders are gone through.
//!
//! The steps are those of `residency`, `arrival` and `sched::freeze`. The claims: whoever finds the page present finds its
//! content; what the host writes lands in no frame that is somebody else's; no task waits for ever; nothing is on its way
//! while the sandbox is frozen. The same walk finds the fault in each of four shortcuts.

use std::boxed::Box;
use std::collections::HashSet;
use std::vec::Vec;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Content {
    Zeros,
    Stored,
    Strangers,
}

/// A task's next step in touching the page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    Look,
    /// It has claimed the frame, and has given the space's lock back.
    Claimed,
    /// It waits on this CPU for the host.
    Fetches,
    /// It has the host fetch by itself, and is about to wait; or it found the frame on its way.
    Waits,
    Sleeps,
    Uses,
    Done,
}

/// The host's work on the frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Host {
    Nothing,
    /// For the task with this number, or for nobody in particular.
    Reads(Option<usize>),
    Has(Option<usize>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    tasks: [At; 2],
    is_mapped: bool,
    /// The entry shows the frame.
    is_present: bool,
    absent: bool,
    arriving: bool,
    /// References: the entry's, the arrival's, the stranger's.
    references: u8,
    is_strangers: bool,
    content: Content,
    host: Host,
    is_frozen: bool,
    /// How often it may be frozen and stored anew.
    rounds: u8,
    /// Some promise was broken.
    wrong: bool,
}

/// How it is done.
#[derive(Clone, Copy)]
struct Rules {
    /// An arrival has a reference to its frames.
    holds: bool,
    /// A frame that is claimed already is not claimed again.
    claims_once: bool,
    /// Who waits looks once more after it has queued itself.
    looks_again: bool,
    /// Nothing is frozen while the host is at work.
    drains: bool,
}

const RIGHT: Rules = Rules { holds: true, claims_once: true, looks_again: true, drains: true };

impl State {
    fn new() -> Self {
        Self {
            tasks: [At::Look; 2],
            is_mapped: true,
            is_present: false,
            absent: true,
            arriving: false,
            references: 1,
            is_strangers: false,
            content: Content::Zeros,
            host: Host::Nothing,
            is_frozen: false,
            rounds: 1,
            wrong: false,
        }
    }

    /// No step is left, and some task has not come to its end.
    fn is_stuck(&self) -> bool {
        self.tasks.iter().any(|at| *at != At::Done)
    }

    fn next(&self, rules: Rules) -> Vec<State> {
        let mut all = Vec::new();
        for task in 0..self.tasks.len() {
            self.touch(task, rules, &mut all);
        }
        self.serve(rules, &mut all);
        self.change(rules, &mut all);
        all
    }

    /// A task's next step. While the sandbox is frozen none runs.
    fn touch(&self, task: usize, rules: Rules, all: &mut Vec<State>) {
        if self.is_frozen {
            return;
        }
        let mut state = self.clone();
        let at = &mut state.tasks[task];
        match *at {
            At::Look if !self.is_mapped => *at = At::Done,
            At::Look if !self.absent && !self.arriving => {
                *at = At::Uses;
                state.is_present = true;
            }
            At::Look if self.arriving && rules.claims_once => *at = At::Waits,
            At::Look => {
                *at = At::Claimed;
                state.arriving = true;
                state.references += u8::from(rules.holds);
            }
            // On this CPU, or by the host alone. A host at work takes another order only if the rules let it come to that.
            At::Claimed => {
                let mut alone = self.clone();
                (alone.tasks[task], alone.host) = (At::Waits, Host::Reads(None));
                all.push(alone);
                (*at, state.host) = (At::Fetches, Host::Reads(Some(task)));
            }
            At::Waits if self.arriving => *at = At::Sleeps,
            At::Waits => *at = At::Look,
            // It sleeps until it is woken.
            At::Fetches | At::Sleeps | At::Done => return,
            At::Uses => {
                state.wrong |= self.is_mapped && self.is_present && self.content != Content::Stored;
                *at = At::Done;
            }
        }
        if !rules.looks_again && self.tasks[task] == At::Waits && !self.arriving {
            // It sleeps though nobody will wake it.
            state.tasks[task] = At::Sleeps;
        }
        all.push(state);
    }

    fn serve(&self, rules: Rules, all: &mut Vec<State>) {
        let mut state = self.clone();
        match self.host {
            Host::Nothing => return,
            Host::Reads(by) => {
                state.wrong |= self.is_strangers || (self.is_present && self.content != Content::Stored);
                state.content = Content::Stored;
                state.host = Host::Has(by);
            }
            Host::Has(by) => {
                // It lands.
                (state.absent, state.arriving, state.host) = (false, false, Host::Nothing);
                if rules.holds {
                    state.references -= 1;
                }
                if let Some(task) = by {
                    state.tasks[task] = At::Look;
                }
                for at in &mut state.tasks {
                    if *at == At::Sleeps {
                        *at = At::Look;
                    }
                }
                state.wrong |= self.is_frozen;
            }
        }
        all.push(state);
    }

    /// Adds the states after others' steps: unmap the page, take the frame, freeze the sandbox and store its pages.
    fn change(&self, rules: Rules, all: &mut Vec<State>) {
        if self.is_frozen {
            let mut state = self.clone();
            // All that is in memory is stored, marked and released; then it goes on.
            if !self.absent && self.references > 0 && !self.is_strangers {
                state.wrong |= self.content != Content::Stored;
                (state.absent, state.is_present, state.content) = (true, false, Content::Zeros);
            }
            state.is_frozen = false;
            all.push(state);
            return;
        }
        if self.is_mapped {
            let mut state = self.clone();
            (state.is_mapped, state.is_present) = (false, false);
            state.references -= 1;
            all.push(state);
        }
        if self.references == 0 && !self.is_strangers {
            let mut state = self.clone();
            // The allocator forgets what was stored, and waits while the frame is on its way.
            if !self.arriving || !rules.holds {
                (state.is_strangers, state.absent, state.content) = (true, false, Content::Strangers);
                state.references = 1;
                all.push(state);
            }
        }
        let is_busy = self.tasks.iter().any(|at| matches!(at, At::Claimed | At::Fetches | At::Uses));
        let is_drained = !rules.drains || self.host == Host::Nothing;
        if self.rounds > 0 && !is_busy && is_drained {
            let mut state = self.clone();
            (state.is_frozen, state.rounds) = (true, self.rounds - 1);
            all.push(state);
        }
    }
}

/// Walks through everything that can happen; how many states there are, or one that is wrong.
fn walk(rules: Rules) -> Result<usize, Box<State>> {
    let mut seen = HashSet::from([State::new()]);
    let mut open = Vec::from([State::new()]);
    while let Some(state) = open.pop() {
        let next = state.next(rules);
        if state.wrong || next.is_empty() && state.is_stuck() {
            return Err(Box::new(state));
        }
        for next in next {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn content_comes_once_and_to_those_who_asked() {
    let states = walk(RIGHT).unwrap();
    assert!(states > 200, "{states}");
}

#[test]
fn each_shortcut_is_found() {
    let without = [
        Rules { holds: false, ..RIGHT },
        Rules { claims_once: false, ..RIGHT },
        Rules { looks_again: false, ..RIGHT },
        Rules { drains: false, ..RIGHT },
    ];
    for (number, rules) in without.into_iter().enumerate() {
        assert!(walk(rules).is_err(), "shortcut {number}");
    }
}
