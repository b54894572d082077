//! A model of a frame's life: allocated, mapped, its unmapping queued, confirmed by the stub, free. Two CPUs of one
//! address space (one that faults and runs user code, one that unmaps) and another process that takes frames go through
//! every interleaving, and every operation of the stub's may fail.
//!
//! The steps are those of `AddressSpace::commit`, `flush_mirror` and `drop_mirror`. The claim: what a stub has mapped is
//! never free, and never another process's. The same walk finds the fault in each of three shortcuts. Entries may be present without
//! being shown to the stub; those are given up without an order (`aspace::may_be_seen`).

use std::boxed::Box;
use std::collections::HashSet;
use std::vec::Vec;

/// The owner of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Owner {
    Nobody,
    Space,
    Stranger,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Op {
    Map(usize),
    Unmap,
}

/// A CPU's next step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// Takes the space's lock.
    Begin,
    /// Changes the entry and fills the batch.
    Change,
    /// Takes the mirror's lock and queues the batch.
    Queue,
    /// The stub carries out what is queued, one after the other.
    Carry,
    /// Something failed: the stub gives everything up, or dies.
    GiveUp,
    /// Gives the mirror's lock back.
    Queued,
    /// Frees the frames.
    Free,
    /// Gives the space's lock back.
    End,
    /// Takes the mirror's lock before user code runs.
    Flush,
    FlushCarry,
    FlushGiveUp,
    Flushed,
    Done,
}

/// The progress of a CPU: its batch, the operations that it has taken out, the frames it frees.
type Cpu = (At, Vec<Op>, Vec<Op>, Option<usize>);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    owners: [Owner; 2],
    /// The page's entry.
    entry: Option<usize>,
    /// It is marked as one that the stub maps, or is about to.
    is_shown: bool,
    /// The frame that the stub has mapped at the page.
    mapped: Option<usize>,
    queued: Vec<Op>,
    cpus: [Cpu; 2],
    space_lock: Option<usize>,
    mirror_lock: Option<usize>,
    /// How often each CPU may begin anew.
    rounds: [u8; 2],
}

/// How it is done.
#[derive(Clone, Copy)]
struct Rules {
    /// Frames are freed once the stub has confirmed, not when the operation is queued.
    confirms: bool,
    /// The mirror's lock is held while the stub carries operations out.
    holds: bool,
    /// An entry is marked as shown when that is queued, not when the stub has done it.
    marks: bool,
}

const FAULTS: usize = 0;
const UNMAPS: usize = 1;

impl State {
    fn new() -> Self {
        let cpu = || (At::Begin, Vec::new(), Vec::new(), None);
        Self {
            owners: [Owner::Nobody; 2],
            entry: None,
            is_shown: false,
            mapped: None,
            queued: Vec::new(),
            cpus: [cpu(), cpu()],
            space_lock: None,
            mirror_lock: None,
            rounds: [2, 2],
        }
    }

    /// The broken promise, if there is one.
    fn is_wrong(&self) -> bool {
        self.mapped.is_some_and(|frame| self.owners[frame] != Owner::Space)
    }

    fn carry_out(&mut self, op: Op) {
        self.mapped = match op {
            Op::Map(frame) => Some(frame),
            Op::Unmap => None,
        };
    }

    /// The steps that can follow.
    fn next(&self, rules: Rules) -> Vec<State> {
        let mut all = Vec::new();
        for cpu in [FAULTS, UNMAPS] {
            self.step(cpu, rules, &mut all);
        }
        if let Some(frame) = self.owners.iter().position(|owner| *owner == Owner::Nobody) {
            let mut state = self.clone();
            state.owners[frame] = Owner::Stranger;
            all.push(state);
        }
        for frame in 0..self.owners.len() {
            if self.owners[frame] == Owner::Stranger {
                let mut state = self.clone();
                state.owners[frame] = Owner::Nobody;
                all.push(state);
            }
        }
        all
    }

    /// The step of one CPU, unless it waits for a lock or is done.
    fn step(&self, cpu: usize, rules: Rules, all: &mut Vec<State>) {
        let at = self.cpus[cpu].0;
        let waits = match at {
            At::Begin => self.space_lock.is_some() && self.rounds[cpu] != 0,
            At::Queue | At::Flush => self.mirror_lock.is_some(),
            At::Done => true,
            _ => false,
        };
        if waits {
            return;
        }
        let mut state = self.clone();
        match at {
            At::Begin | At::Done => state.begin(cpu),
            At::Change if cpu == FAULTS => state.fault(all),
            At::Change => state.unmap(rules),
            At::Queue => state.queue(cpu, rules),
            At::Carry | At::FlushCarry => state.carry(cpu, rules, all),
            At::GiveUp | At::FlushGiveUp => {
                state.cpus[cpu].0 = if at == At::GiveUp { At::Queued } else { At::Flushed };
                state.mapped = None;
                // The other one takes the space's lock for that, and meanwhile marks say too much.
                state.is_shown &= at != At::GiveUp;
            }
            At::Queued => {
                state.cpus[cpu].0 = At::Free;
                state.mirror_lock = None;
            }
            At::Free => {
                state.cpus[cpu].0 = At::End;
                if let Some(frame) = state.cpus[cpu].3.take() {
                    state.owners[frame] = Owner::Nobody;
                }
            }
            At::End => {
                state.cpus[cpu].0 = if cpu == FAULTS { At::Flush } else { At::Begin };
                state.space_lock = None;
            }
            At::Flush => state.flush(cpu, rules),
            At::Flushed => {
                state.cpus[cpu].0 = At::Begin;
                if state.mirror_lock == Some(cpu) {
                    state.mirror_lock = None;
                }
            }
        }
        all.push(state);
    }

    /// Takes the space's lock, which is free, or ends after the last round.
    fn begin(&mut self, cpu: usize) {
        if self.rounds[cpu] == 0 {
            self.cpus[cpu].0 = At::Done;
            return;
        }
        self.cpus[cpu].0 = At::Change;
        self.space_lock = Some(cpu);
        self.rounds[cpu] -= 1;
    }

    /// Maps a frame if there is none yet, and shows it to the stub.
    fn fault(&mut self, all: &mut Vec<State>) {
        let free = self.owners.iter().position(|owner| *owner == Owner::Nobody);
        self.cpus[FAULTS].0 = At::End;
        let was_there = self.entry.is_some();
        let frame = match self.entry {
            Some(frame) if !self.is_shown => Some(frame),
            Some(_) => None,
            None => free,
        };
        let Some(frame) = frame else { return };
        (self.entry, self.owners[frame]) = (Some(frame), Owner::Space);
        if !was_there {
            // It comes ahead of a touch, and is not shown yet.
            all.push(self.clone());
        }
        let (next, batch, ..) = &mut self.cpus[FAULTS];
        batch.push(Op::Map(frame));
        (*next, self.is_shown) = (At::Queue, true);
    }

    /// Unmaps the frame if there is one. The stub hears of it if it may show the frame.
    fn unmap(&mut self, rules: Rules) {
        let (next, batch, _, freed) = &mut self.cpus[UNMAPS];
        *next = At::End;
        if let Some(frame) = self.entry.take() {
            let is_shown = if rules.marks { self.is_shown } else { self.mapped.is_some() };
            if is_shown {
                batch.push(Op::Unmap);
            }
            (*next, *freed) = (if is_shown { At::Queue } else { At::Free }, Some(frame));
            self.is_shown = false;
        }
    }

    /// Takes the mirror's lock, which is free, and queues the batch.
    fn queue(&mut self, cpu: usize, rules: Rules) {
        let (next, batch, taken, freed) = &mut self.cpus[cpu];
        let mut ops = core::mem::take(batch);
        // Operations that only give access wait for the next run of user code.
        let withdraws = freed.is_some() && rules.confirms;
        *next = if withdraws { At::Carry } else { At::Queued };
        self.queued.append(&mut ops);
        if withdraws && !rules.holds {
            *taken = core::mem::take(&mut self.queued);
        }
        self.mirror_lock = Some(cpu);
    }

    /// The stub carries out one operation, or fails to.
    fn carry(&mut self, cpu: usize, rules: Rules, all: &mut Vec<State>) {
        let (next, _, taken, _) = &mut self.cpus[cpu];
        let (done, failed) =
            if *next == At::Carry { (At::Queued, At::GiveUp) } else { (At::Flushed, At::FlushGiveUp) };
        // Without the lock, what was taken out is this CPU's own.
        let ops = if rules.holds { &mut self.queued } else { taken };
        if ops.is_empty() {
            *next = done;
            return;
        }
        let op = ops.remove(0);
        let mut fails = self.clone();
        (fails.cpus[cpu].0, _) = (failed, fails.queued.clear());
        fails.cpus[cpu].2.clear();
        all.push(fails);
        self.carry_out(op);
    }

    /// Takes the mirror's lock, which is free, or what is queued, before user code runs.
    fn flush(&mut self, cpu: usize, rules: Rules) {
        self.cpus[cpu].0 = At::FlushCarry;
        if rules.holds {
            self.mirror_lock = Some(cpu);
        } else {
            self.cpus[cpu].2 = core::mem::take(&mut self.queued);
        }
    }
}

/// Walks through everything that can happen; how many states there are, or one that is wrong.
fn walk(rules: Rules) -> Result<usize, Box<State>> {
    let mut seen = HashSet::from([State::new()]);
    let mut open = Vec::from([State::new()]);
    while let Some(state) = open.pop() {
        if state.is_wrong() {
            return Err(Box::new(state));
        }
        for next in state.next(rules) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn a_frame_is_free_only_after_every_stub_has_let_go() {
    let states = walk(Rules { confirms: true, holds: true, marks: true }).unwrap();
    assert!(states > 500, "{states}");
}

#[test]
fn freeing_what_is_only_queued_to_be_unmapped_is_found() {
    assert!(walk(Rules { confirms: false, holds: true, marks: true }).is_err());
}

#[test]
fn taking_operations_out_before_they_are_carried_out_is_found() {
    assert!(walk(Rules { confirms: true, holds: false, marks: true }).is_err());
}

#[test]
fn giving_up_what_is_only_queued_to_be_shown_is_found() {
    assert!(walk(Rules { confirms: true, holds: true, marks: false }).is_err());
}
