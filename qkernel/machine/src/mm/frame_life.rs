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

    fn step(&self, cpu: usize, rules: Rules, all: &mut Vec<State>) {
        let mut state = self.clone();
        let at = self.cpus[cpu].0;
        let (next, batch, taken, freed) = &mut state.cpus[cpu];
        match at {
            At::Begin if self.rounds[cpu] == 0 => *next = At::Done,
            At::Begin => {
                if self.space_lock.is_some() {
                    return;
                }
                *next = At::Change;
                state.space_lock = Some(cpu);
                state.rounds[cpu] -= 1;
            }
            At::Change if cpu == FAULTS => {
                let free = self.owners.iter().position(|owner| *owner == Owner::Nobody);
                *next = At::End;
                let frame = match self.entry {
                    Some(frame) if !self.is_shown => Some(frame),
                    Some(_) => None,
                    None => free,
                };
                if let Some(frame) = frame {
                    (state.entry, state.owners[frame]) = (Some(frame), Owner::Space);
                    if self.entry.is_none() {
                        // It comes ahead of a touch, and is not shown yet.
                        all.push(state.clone());
                    }
                    let (next, batch, ..) = &mut state.cpus[cpu];
                    batch.push(Op::Map(frame));
                    (*next, state.is_shown) = (At::Queue, true);
                }
            }
            At::Change => {
                *next = At::End;
                if let Some(frame) = state.entry.take() {
                    let is_shown = if rules.marks { state.is_shown } else { state.mapped.is_some() };
                    if is_shown {
                        batch.push(Op::Unmap);
                    }
                    (*next, *freed) = (if is_shown { At::Queue } else { At::Free }, Some(frame));
                    state.is_shown = false;
                }
            }
            At::Queue => {
                if self.mirror_lock.is_some() {
                    return;
                }
                let mut ops = core::mem::take(batch);
                // Operations that only give access wait for the next run of user code.
                let withdraws = freed.is_some() && rules.confirms;
                *next = if withdraws { At::Carry } else { At::Queued };
                state.queued.append(&mut ops);
                if withdraws && !rules.holds {
                    *taken = core::mem::take(&mut state.queued);
                }
                state.mirror_lock = Some(cpu);
            }
            At::Carry | At::FlushCarry => {
                let (done, failed) =
                    if at == At::Carry { (At::Queued, At::GiveUp) } else { (At::Flushed, At::FlushGiveUp) };
                // Without the lock, what was taken out is this CPU's own.
                let ops = if rules.holds { &mut state.queued } else { taken };
                if ops.is_empty() {
                    *next = done;
                } else {
                    let op = ops.remove(0);
                    let mut fails = state.clone();
                    (fails.cpus[cpu].0, _) = (failed, fails.queued.clear());
                    fails.cpus[cpu].2.clear();
                    all.push(fails);
                    state.carry_out(op);
                }
            }
            At::GiveUp | At::FlushGiveUp => {
                *next = if at == At::GiveUp { At::Queued } else { At::Flushed };
                state.mapped = None;
                // The other one takes the space's lock for that, and meanwhile marks say too much.
                state.is_shown &= at != At::GiveUp;
            }
            At::Queued => {
                *next = At::Free;
                state.mirror_lock = None;
            }
            At::Free => {
                *next = At::End;
                if let Some(frame) = freed.take() {
                    state.owners[frame] = Owner::Nobody;
                }
            }
            At::End => {
                *next = if cpu == FAULTS { At::Flush } else { At::Begin };
                state.space_lock = None;
            }
            At::Flush => {
                if self.mirror_lock.is_some() {
                    return;
                }
                *next = At::FlushCarry;
                if rules.holds {
                    state.mirror_lock = Some(cpu);
                } else {
                    *taken = core::mem::take(&mut state.queued);
                }
            }
            At::Flushed => {
                *next = At::Begin;
                if state.mirror_lock == Some(cpu) {
                    state.mirror_lock = None;
                }
            }
            At::Done => return,
        }
        all.push(state);
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
