//! A model of a task that rests: a task T that sleeps and is woken, another one U that comes now and then and never rests, and two CPUs
//! that run whichever they pick. All orders of their steps are gone through.
//!
//! The claims: a CPU that runs U holds nothing of T's that is nowhere else; T goes on with its own registers, on one CPU at a time;
//! no CPU waits for ever. The same walk finds the fault in each of three shortcuts.

use std::collections::HashSet;
use std::vec::Vec;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Who {
    T,
    U,
}

/// The next step of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    Idle,
    /// It has picked a task, and ends the rest of who rests on it.
    Ends(Who),
    /// It ends T's rest on a CPU, to run a task then. `true`: before it takes what it picked.
    Tries(usize, Who, bool),
    Fetches(usize, Who, bool),
    Frees(usize, Who, bool),
    Waits(usize, Who, bool),
    /// It takes what it picked from where it rests.
    Takes(Who),
    Switches(Who),
    Runs(Who),
    /// T was switched out.
    Begins,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Rest {
    Nowhere,
    On(usize),
    Fetched(usize),
}

/// Where T's registers are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Registers {
    Saved,
    In(usize),
    Lost,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    cpus: [At; 2],
    /// CPUs that remember T as resting on them.
    keeps: [bool; 2],
    is_queued: bool,
    sleeps: bool,
    on_cpu: bool,
    rest: Rest,
    registers: Registers,
    /// How often T is woken and U comes from now on.
    wakes: u8,
    visits: u8,
    wrong: bool,
}

/// How it is done.
#[derive(Clone, Copy)]
struct Rules {
    /// A CPU ends T's rest before it runs U.
    ends: bool,
    /// One alone fetches.
    fetches_once: bool,
    /// Who comes second waits.
    waits: bool,
}

const RIGHT: Rules = Rules { ends: true, fetches_once: true, waits: true };

impl State {
    fn new() -> Self {
        Self {
            cpus: [At::Idle; 2],
            keeps: [false; 2],
            is_queued: true,
            sleeps: false,
            on_cpu: false,
            rest: Rest::Nowhere,
            registers: Registers::Saved,
            wakes: 3,
            visits: 3,
            wrong: false,
        }
    }

    fn next(&self, rules: Rules) -> Vec<State> {
        let mut all: Vec<_> = (0..2).flat_map(|cpu| self.step(cpu, rules)).collect();
        if self.sleeps && self.wakes > 0 {
            all.push(State { sleeps: false, is_queued: true, wakes: self.wakes - 1, ..self.clone() });
        }
        all
    }

    fn step(&self, cpu: usize, rules: Rules) -> Vec<State> {
        let mut state = self.clone();
        let go_on = |who, takes| if takes { At::Takes(who) } else { At::Switches(who) };
        state.cpus[cpu] = match self.cpus[cpu] {
            At::Idle => return self.pick(cpu),
            At::Ends(who) => {
                let kept = core::mem::take(&mut state.keeps[cpu]);
                if kept && who == Who::U && rules.ends { At::Tries(cpu, who, true) } else { At::Takes(who) }
            }
            At::Tries(from, who, takes) if self.rest == Rest::On(from) || !rules.fetches_once => {
                state.rest = Rest::Fetched(from);
                At::Fetches(from, who, takes)
            }
            At::Tries(from, who, takes) => At::Waits(from, who, takes),
            At::Fetches(from, who, takes) => {
                state.wrong |= self.registers != Registers::In(from);
                state.registers = Registers::Saved;
                state.keeps[from] = false;
                state.on_cpu = false;
                At::Frees(from, who, takes)
            }
            At::Frees(_, who, takes) => {
                state.rest = Rest::Nowhere;
                go_on(who, takes)
            }
            At::Waits(from, ..)
                if rules.waits && [Rest::On(from), Rest::Fetched(from)].contains(&self.rest) =>
            {
                return Vec::new();
            }
            At::Waits(_, who, takes) => go_on(who, takes),
            At::Takes(Who::T) => match self.rest {
                Rest::Nowhere => At::Switches(Who::T),
                Rest::On(from) if from == cpu => {
                    (state.rest, state.on_cpu) = (Rest::Nowhere, false);
                    At::Switches(Who::T)
                }
                Rest::On(from) | Rest::Fetched(from) => At::Tries(from, Who::T, false),
            },
            At::Takes(Who::U) => At::Switches(Who::U),
            At::Switches(Who::T) if self.on_cpu => return Vec::new(),
            At::Switches(who) => {
                state.on_cpu |= who == Who::T;
                At::Runs(who)
            }
            At::Runs(who) => state.run(cpu, who),
            At::Begins => {
                (state.rest, state.keeps[cpu]) = (Rest::On(cpu), true);
                At::Idle
            }
        };
        state.wrong |= state.registers == Registers::Lost;
        Vec::from([state])
    }

    /// A CPU has run a task until it sleeps.
    fn run(&mut self, cpu: usize, who: Who) -> At {
        if who == Who::U {
            if self.registers == Registers::In(cpu) {
                self.registers = Registers::Lost;
            }
            return At::Idle;
        }
        self.wrong |= ![Registers::Saved, Registers::In(cpu)].contains(&self.registers);
        self.wrong |= self.cpus[1 - cpu] == At::Runs(Who::T);
        (self.registers, self.sleeps) = (Registers::In(cpu), true);
        At::Begins
    }

    /// An idle CPU picks a task, under the queue's lock.
    fn pick(&self, cpu: usize) -> Vec<State> {
        let mut all = Vec::new();
        if self.is_queued && (!self.on_cpu || self.rest != Rest::Nowhere) {
            let mut state = self.clone();
            (state.is_queued, state.cpus[cpu]) = (false, At::Ends(Who::T));
            all.push(state);
        }
        if self.visits > 0 {
            let mut state = self.clone();
            (state.visits, state.cpus[cpu]) = (self.visits - 1, At::Ends(Who::U));
            all.push(state);
        }
        all
    }

    /// No step is left, and somebody has not come to an end.
    fn is_stuck(&self) -> bool {
        self.is_queued || self.cpus != [At::Idle; 2]
    }
}

/// Goes through all orders; how many states there are, and one in which something is wrong.
fn walk(rules: Rules) -> (usize, Option<State>) {
    let mut seen = HashSet::from([State::new()]);
    let mut open = Vec::from([State::new()]);
    while let Some(state) = open.pop() {
        let next = state.next(rules);
        if state.wrong || next.is_empty() && state.is_stuck() {
            return (seen.len(), Some(state));
        }
        open.extend(next.into_iter().filter(|state| seen.insert(state.clone())));
    }
    (seen.len(), None)
}

#[test]
fn all_orders_end_well() {
    let (states, wrong) = walk(RIGHT);
    assert_eq!(wrong, None);
    assert!(states > 1000, "{states}");
}

#[test]
fn shortcuts_are_found_out() {
    for rules in [
        Rules { ends: false, ..RIGHT },
        Rules { fetches_once: false, ..RIGHT },
        Rules { waits: false, ..RIGHT },
    ] {
        assert!(walk(rules).1.is_some());
    }
}
