//! System V semaphores (`semget(2)`).
//!
//! A call that has to wait leaves its operations with the set. Whoever changes the set tries them on behalf of the waiters,
//! so that each change is seen by all who wait for it, however short it lasts.

pub mod ops;
pub mod undo;

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::creds::Creds;
use crate::fs::caller::PidOf;
use crate::ipc::perm::{self, Perm};
use crate::ipc::sem::ops::{Attempt, Need, SEMVMX, SemOp, Semaphore};
use crate::ipc::sem::undo::UndoList;
use crate::ipc::table::{self, Got, Table};
use crate::ipc::{IpcNamespace, OBJECT_BYTES, Who, now};
use machine::errno::{Errno, Result};
use machine::mm::account::{self, Charge};
use machine::sched;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};

/// Kernel memory of a call that waits, beside its operations.
const WAITER_BYTES: usize = 1024;

/// A call that waits.
struct Waiter {
    ops: Vec<SemOp>,
    pid: PidOf,
    /// The list whose adjustments it changes.
    undo: Option<u64>,
    /// Whether it does more than wait for zero.
    changes: bool,
    /// The position of the operation that it waits for.
    blocked: usize,
    need: Need,
    outcome: Arc<Outcome>,
}

impl Waiter {
    /// It waits for the operation at this position.
    fn block(&mut self, at: usize) {
        (self.blocked, self.need) = (at, Need::of(&self.ops, at));
    }
}

/// How a call that waited has ended.
struct Outcome {
    result: SpinLock<Option<Result<()>>>,
    queue: WaitQueue,
}

impl Outcome {
    fn set(&self, result: Result<()>) {
        *self.result.lock() = Some(result);
    }
}

struct State {
    perm: Perm,
    semaphores: Vec<Semaphore>,
    otime: i64,
    ctime: i64,
    is_removed: bool,
    /// In the order they came.
    waiters: BTreeMap<u64, Waiter>,
    next_waiter: u64,
    waiting_ops: usize,
    /// Adjustments by list, one a semaphore.
    undo: BTreeMap<u64, Vec<i16>>,
}

/// A set of semaphores.
pub struct SemSet {
    size: usize,
    state: SpinLock<State>,
    _charge: Charge,
}

/// All sets of a namespace.
pub type Sets = Table<SemSet>;

/// The facts about a set that `IPC_STAT` tells.
pub struct Facts {
    pub perm: Perm,
    pub otime: i64,
    pub ctime: i64,
    pub size: usize,
}

/// A number as a semaphore's value. `ERANGE`.
pub fn semaphore_value(number: i32) -> Result<u16> {
    u16::try_from(number).ok().filter(|value| i32::from(*value) <= SEMVMX).ok_or(Errno::ERANGE)
}

/// A question of `semctl(2)` about one semaphore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    Value,
    Pid,
    /// How many wait for it to grow.
    Increase,
    /// How many wait for it to be zero.
    Zero,
}

/// An answer.
pub enum Answer {
    Number(u32),
    Pid(PidOf),
}

impl State {
    /// Whether it still is a set. `EIDRM`.
    fn check_alive(&self) -> Result<()> {
        if self.is_removed { Err(Errno::EIDRM) } else { Ok(()) }
    }

    fn attempt(&mut self, ops: &[SemOp], undo: Option<u64>, pid: PidOf) -> Result<Attempt> {
        let Self { semaphores, undo: undos, .. } = self;
        let undo = undo.and_then(|list| undos.get_mut(&list)).map(Vec::as_mut_slice);
        ops::attempt(semaphores, undo, ops, pid)
    }

    fn remove_waiter(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        self.waiting_ops -= waiter.ops.len();
        Some(waiter)
    }

    /// The set was changed: does what waiters can do now, those that wait for zero first. The lock is not held for more than
    /// a stretch of them, since a program chooses how many there are, and how long they are.
    fn pass(&mut self, mut at: PassCursor) -> Pass {
        let Self { semaphores, undo, waiters, waiting_ops, otime, .. } = self;
        let mut pass = Pass::default();
        let mut work = 0;
        loop {
            if work > STRETCH || pass.woken.len() >= WOKEN_MAX {
                pass.rest = Some(at);
                break;
            }
            let Some((id, waiter)) = waiters.range_mut(at.from..).next() else {
                if at.changers {
                    break;
                }
                at = PassCursor { changers: true, from: 0 };
                continue;
            };
            at.from = *id + 1;
            work += 1;
            if waiter.changes != at.changers || !waiter.need.is_met(semaphores) {
                continue;
            }
            work += waiter.ops.len();
            let adjustments = waiter.undo.and_then(|list| undo.get_mut(&list)).map(Vec::as_mut_slice);
            let result = match ops::attempt(semaphores, adjustments, &waiter.ops, waiter.pid) {
                Ok(Attempt::Blocked(blocked)) => {
                    waiter.block(blocked);
                    continue;
                }
                Ok(Attempt::Done) => {
                    *otime = now();
                    pass.has_changed |= waiter.changes;
                    Ok(())
                }
                Err(error) => Err(error),
            };
            waiter.outcome.set(result);
            let id = *id;
            if let Some(waiter) = waiters.remove(&id) {
                *waiting_ops -= waiter.ops.len();
                pass.woken.push(waiter.outcome);
            }
        }
        pass
    }
}

/// Operations of waiters under one hold of a set's lock.
const STRETCH: usize = 1 << 15;
/// Most waiters that are woken by one.
const WOKEN_MAX: usize = 256;
/// Most operations of all calls that wait for a set.
const WAITING_OPS_MAX: usize = 1 << 20;

/// The position at which a pass goes on.
#[derive(Clone, Copy, Default)]
struct PassCursor {
    /// Those that only wait for zero have had their turn.
    changers: bool,
    /// The number of the next waiter.
    from: u64,
}

/// The result of a stretch of a pass over the waiters.
#[derive(Default)]
struct Pass {
    woken: Vec<Arc<Outcome>>,
    has_changed: bool,
    /// There are more.
    rest: Option<PassCursor>,
}

/// A call before it waits.
struct Call {
    ops: Vec<SemOp>,
    pid: PidOf,
    undo: Option<u64>,
    changes: bool,
}

impl SemSet {
    /// Wakes those whom a pass has served, and makes further ones while they change something.
    fn settle(&self, mut pass: Pass) {
        loop {
            pass.woken.iter().for_each(|outcome| outcome.queue.wake_all());
            let at = match pass.rest {
                Some(rest) => rest,
                None if pass.has_changed => PassCursor::default(),
                None => return,
            };
            // A task that is to end finishes this as well: others wait for it.
            sched::let_others_go_on();
            let has_changed = pass.has_changed && pass.rest.is_some();
            pass = self.state.lock().pass(at);
            pass.has_changed |= has_changed;
        }
    }

    fn check(&self, creds: &Creds, wanted: u32) -> Result<()> {
        self.state.lock().perm.check(creds, wanted)
    }

    /// How many semaphores it has.
    pub fn size(&self) -> usize {
        self.size
    }

    /// `semtimedop(2)` of 1 to `semopm` operations. `EAGAIN` at the deadline; `Errno::RESTART` when a signal comes.
    pub fn operate(
        self: &Arc<Self>,
        who: &Who,
        ops: Vec<SemOp>,
        undo: Option<&Arc<UndoList>>,
        deadline_ns: Option<u64>,
    ) -> Result<()> {
        if ops.iter().any(|op| usize::from(op.number) >= self.size) {
            return Err(Errno::EFBIG);
        }
        let changes = ops.iter().any(|op| op.change != 0);
        self.check(&who.creds, if changes { perm::WRITE } else { perm::READ })?;
        let undo = match undo.filter(|_| ops.iter().any(SemOp::is_undone)) {
            Some(list) => Some(self.adjustments_of(list)?),
            None => None,
        };
        let mut call = Some(Call { ops, pid: who.pid, undo, changes });
        // What gives a semaphore back needs no memory, so the room of a waiter is asked for by those alone that wait.
        if self.tries(&mut call, None)?.is_none() {
            return Ok(());
        }
        let ops_bytes = call.as_ref().map_or(0, |call| call.ops.capacity()) * size_of::<SemOp>();
        account::check(WAITER_BYTES + ops_bytes)?;
        let outcome = Arc::new(Outcome { result: SpinLock::new(Rank::Value, None), queue: WaitQueue::new() });
        let Some(id) = self.tries(&mut call, Some(&outcome))? else { return Ok(()) };
        let slept = outcome.queue.wait_until(deadline_ns, || *outcome.result.lock());
        // Whoever is not there any more has an outcome, whatever ended the sleep.
        if self.state.lock().remove_waiter(id).is_some() {
            return slept.and(Err(Errno::EAGAIN));
        }
        let result = *outcome.result.lock();
        result.unwrap_or(Err(Errno::EINTR))
    }

    /// Does a call if it can. Otherwise `Some`, and with an outcome the call waits from now on, under the number returned.
    /// `ENOMEM`: those that wait already have too many operations.
    fn tries(&self, call: &mut Option<Call>, outcome: Option<&Arc<Outcome>>) -> Result<Option<u64>> {
        let Some(Call { ops, pid, undo, changes }) = call else { return Ok(None) };
        let mut state = self.state.lock();
        state.check_alive()?;
        let blocked = match state.attempt(ops, *undo, *pid)? {
            Attempt::Blocked(blocked) => blocked,
            Attempt::Done => {
                state.otime = now();
                let pass = if *changes { state.pass(PassCursor::default()) } else { Pass::default() };
                drop(state);
                self.settle(pass);
                return Ok(None);
            }
        };
        let Some(outcome) = outcome else { return Ok(Some(0)) };
        if state.waiting_ops.saturating_add(ops.len()) > WAITING_OPS_MAX {
            return Err(Errno::ENOMEM);
        }
        let id = state.next_waiter;
        state.next_waiter += 1;
        if let Some(Call { ops, pid, undo, changes }) = call.take() {
            let need = Need::of(&ops, blocked);
            state.waiting_ops += ops.len();
            let waiter = Waiter { ops, pid, undo, changes, blocked, need, outcome: outcome.clone() };
            state.waiters.insert(id, waiter);
        }
        Ok(Some(id))
    }

    /// Sees that the set holds adjustments for a list; returns the list's id.
    fn adjustments_of(self: &Arc<Self>, list: &Arc<UndoList>) -> Result<u64> {
        if self.state.lock().undo.contains_key(&list.id) {
            return Ok(list.id);
        }
        let none = account::filled(0i16, self.size)?;
        account::check(OBJECT_BYTES)?;
        self.begin_adjustments(list, none)
    }

    fn begin_adjustments(self: &Arc<Self>, list: &Arc<UndoList>, none: Vec<i16>) -> Result<u64> {
        let mut state = self.state.lock();
        state.check_alive()?;
        // Another thread of the process may have been faster.
        if let Entry::Vacant(place) = state.undo.entry(list.id) {
            place.insert(none);
            drop(state);
            list.add(self);
        }
        Ok(list.id)
    }

    /// The last task of an undo list has ended.
    fn undo(&self, list: u64, pid: PidOf) {
        let pass = {
            let mut state = self.state.lock();
            let Some(adjustments) = state.undo.remove(&list) else { return };
            if adjustments.iter().all(|adjustment| *adjustment == 0) {
                return;
            }
            ops::adjust(&mut state.semaphores, &adjustments, pid);
            state.otime = now();
            state.pass(PassCursor::default())
        };
        self.settle(pass);
    }

    /// `IPC_STAT`, `SEM_STAT`; with `any` for those who may not read it, too.
    pub fn facts(&self, creds: &Creds, any: bool) -> Result<Facts> {
        let state = self.state.lock();
        state.check_alive()?;
        if !any {
            state.perm.check(creds, perm::READ)?;
        }
        Ok(Facts { perm: state.perm, otime: state.otime, ctime: state.ctime, size: self.size })
    }

    /// `IPC_SET`.
    pub fn set(&self, creds: &Creds, uid: u32, gid: u32, mode: u32) -> Result<()> {
        let mut state = self.state.lock();
        state.check_alive()?;
        state.perm.check_owner(creds)?;
        state.perm.change(uid, gid, mode)?;
        state.ctime = now();
        Ok(())
    }

    /// `GETALL`.
    pub fn values(&self, creds: &Creds) -> Result<Vec<u16>> {
        self.check(creds, perm::READ)?;
        // The room is taken without the lock.
        let mut values = account::vec(self.size)?;
        let state = self.state.lock();
        state.check_alive()?;
        values.extend(state.semaphores.iter().map(|semaphore| semaphore.value));
        Ok(values)
    }

    /// `SETALL`; one value a semaphore.
    pub fn set_values(&self, who: &Who, values: &[u16]) -> Result<()> {
        self.check(&who.creds, perm::WRITE)?;
        if values.iter().any(|value| i32::from(*value) > SEMVMX) {
            return Err(Errno::ERANGE);
        }
        let mut state = self.state.lock();
        state.check_alive()?;
        for (semaphore, value) in state.semaphores.iter_mut().zip(values) {
            *semaphore = Semaphore { value: *value, pid: who.pid };
        }
        state.undo.values_mut().for_each(|undo| undo.fill(0));
        state.ctime = now();
        let pass = state.pass(PassCursor::default());
        drop(state);
        self.settle(pass);
        Ok(())
    }

    /// `SETVAL`.
    pub fn set_value(&self, who: &Who, number: i32, value: u16) -> Result<()> {
        let number = self.number(number)?;
        self.check(&who.creds, perm::WRITE)?;
        let mut state = self.state.lock();
        state.check_alive()?;
        state.semaphores[number] = Semaphore { value, pid: who.pid };
        state.undo.values_mut().for_each(|undo| undo[number] = 0);
        state.ctime = now();
        let pass = state.pass(PassCursor::default());
        drop(state);
        self.settle(pass);
        Ok(())
    }

    fn number(&self, number: i32) -> Result<usize> {
        usize::try_from(number).ok().filter(|number| *number < self.size).ok_or(Errno::EINVAL)
    }

    /// `GETVAL`, `GETPID`, `GETNCNT`, `GETZCNT`.
    pub fn ask(&self, creds: &Creds, number: i32, question: Question) -> Result<Answer> {
        self.check(creds, perm::READ)?;
        let number = self.number(number)?;
        let state = self.state.lock();
        state.check_alive()?;
        let count = |zero: bool| {
            let waits = |waiter: &&Waiter| {
                let op = waiter.ops.get(waiter.blocked);
                op.is_some_and(|op| usize::from(op.number) == number && (op.change == 0) == zero)
            };
            Answer::Number(u32::try_from(state.waiters.values().filter(waits).count()).unwrap_or(u32::MAX))
        };
        Ok(match question {
            Question::Value => Answer::Number(state.semaphores[number].value.into()),
            Question::Pid => Answer::Pid(state.semaphores[number].pid),
            Question::Increase => count(false),
            Question::Zero => count(true),
        })
    }
}

impl IpcNamespace {
    /// `semget(2)`.
    pub fn sem_get(&self, who: &Who, key: i32, size: i32, flags: u32) -> Result<i32> {
        let limits = self.limits();
        let size = u32::try_from(size).ok().filter(|size| *size <= limits.semmsl).ok_or(Errno::EINVAL)?;
        let perm = Perm::new(key, flags, &who.creds);
        let got = self.sets.lock().get_or(key, flags, |sets| {
            if size == 0 {
                return Err(Errno::EINVAL);
            }
            let used: u64 = sets.iter().map(|(_, set)| set.size as u64).sum();
            if used + u64::from(size) > u64::from(limits.semmns) {
                return Err(Errno::ENOSPC);
            }
            sets.insert(key, limits.semmni, |_| new_set(perm, size as usize))
        });
        match got? {
            Got::New(id) => Ok(id),
            Got::Old(_, set) if size as usize > set.size => Err(Errno::EINVAL),
            Got::Old(id, set) => set.check(&who.creds, flags).map(|()| id),
        }
    }

    /// The set with this id. `EINVAL`.
    pub fn sem_set(&self, id: i32) -> Result<Arc<SemSet>> {
        self.sets.lock().get(id)
    }

    /// Id and set at an index. `EINVAL`.
    pub fn sem_set_at(&self, index: i32) -> Result<(i32, Arc<SemSet>)> {
        self.sets.lock().at(index)
    }

    /// Calls `f` for each set and its id; see [`table::for_each`].
    pub fn for_each_sem_set(&self, f: impl FnMut(i32, &Arc<SemSet>) -> Result<()>) -> Result<()> {
        table::for_each(&self.sets, f)
    }

    /// How many sets there are, their semaphores, and the largest index.
    pub fn sem_usage(&self) -> (usize, usize, u32) {
        let sets = self.sets.lock();
        (sets.count(), sets.iter().map(|(_, set)| set.size).sum(), sets.last_index())
    }

    /// `IPC_RMID`: waiters are woken with `EIDRM`.
    pub fn sem_remove(&self, creds: &Creds, id: i32) -> Result<()> {
        let set = self.sem_set(id)?;
        set.state.lock().perm.check_owner(creds)?;
        if self.sets.lock().remove(id).is_none() {
            return Err(Errno::EIDRM);
        }
        let (waiters, undo) = {
            let mut state = set.state.lock();
            state.is_removed = true;
            state.waiting_ops = 0;
            // Whoever gives up meanwhile has to find why it is not there any more.
            state.waiters.values().for_each(|waiter| waiter.outcome.set(Err(Errno::EIDRM)));
            (core::mem::take(&mut state.waiters), core::mem::take(&mut state.undo))
        };
        drop(undo);
        waiters.values().for_each(|waiter| waiter.outcome.queue.wake_all());
        Ok(())
    }
}

fn new_set(perm: Perm, size: usize) -> Result<Arc<SemSet>> {
    let bytes = size.saturating_mul(size_of::<Semaphore>());
    let charge = Charge::lasting(OBJECT_BYTES + bytes)?;
    let state = State {
        perm,
        semaphores: account::filled(Semaphore::default(), size)?,
        otime: 0,
        ctime: now(),
        is_removed: false,
        waiters: BTreeMap::new(),
        next_waiter: 0,
        waiting_ops: 0,
        undo: BTreeMap::new(),
    };
    Ok(Arc::new(SemSet { size, state: SpinLock::new(Rank::Leaf, state), _charge: charge }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn op(number: u16, change: i16) -> SemOp {
        SemOp { number, change, flags: 0 }
    }

    fn a_set(size: usize) -> Arc<SemSet> {
        new_set(Perm::new(0, 0o600, &Creds::new(0, 0, vec![])), size).unwrap()
    }

    fn waits(set: &SemSet, ops: Vec<SemOp>) -> Arc<Outcome> {
        let outcome = Arc::new(Outcome { result: SpinLock::new(Rank::Value, None), queue: WaitQueue::new() });
        let mut call = Some(Call { ops, pid: PidOf::default(), undo: None, changes: true });
        assert!(set.tries(&mut call, Some(&outcome)).unwrap().is_some());
        outcome
    }

    #[test]
    fn the_lock_is_held_for_a_stretch_of_waiters() {
        const COUNT: usize = 300;
        let set = a_set(2);
        // Each looks possible by what it waits for, and all but the last are not.
        let mut long = vec![op(0, 0); 400];
        long.extend([op(1, -1), op(0, -1)]);
        let outcomes: Vec<_> = (0..COUNT).map(|_| waits(&set, long.clone())).collect();
        let last = waits(&set, vec![op(1, -3)]);
        let mut state = set.state.lock();
        assert_eq!(state.waiting_ops, COUNT * 402 + 1);
        state.semaphores[0].value = 1;
        state.semaphores[1].value = 3;
        let (mut stretches, mut at) = (1, PassCursor::default());
        while let Some(rest) = state.pass(at).rest {
            (stretches, at) = (stretches + 1, rest);
        }
        assert!(stretches > 2, "{stretches}");
        assert_eq!(*last.result.lock(), Some(Ok(())));
        assert!(outcomes.iter().all(|outcome| outcome.result.lock().is_none()));
        assert_eq!((state.semaphores[1].value, state.waiting_ops), (0, COUNT * 402));
    }

    #[test]
    fn many_are_woken_in_turns() {
        let set = a_set(1);
        let outcomes: Vec<_> = (0..2 * WOKEN_MAX + 1).map(|_| waits(&set, vec![op(0, -1)])).collect();
        let mut state = set.state.lock();
        state.semaphores[0].value = 30_000;
        let first = state.pass(PassCursor::default());
        assert_eq!(first.woken.len(), WOKEN_MAX);
        let second = state.pass(first.rest.unwrap());
        let third = state.pass(second.rest.unwrap());
        assert_eq!((third.woken.len(), third.rest.is_some()), (1, false));
        assert!(outcomes.iter().all(|outcome| *outcome.result.lock() == Some(Ok(()))));
    }

    #[test]
    fn a_list_has_its_adjustments_once() {
        let set = a_set(1);
        let list = UndoList::new();
        assert_eq!(set.adjustments_of(&list), Ok(list.id));
        set.state.lock().undo.get_mut(&list.id).unwrap()[0] = 1;
        // A second thread that has found none as well.
        assert_eq!(set.begin_adjustments(&list, vec![0]), Ok(list.id));
        assert_eq!(set.state.lock().undo[&list.id], [1]);
        // Its end needs a task.
        core::mem::forget(list);
    }

    #[test]
    fn waiting_operations_are_bounded() {
        let set = a_set(1);
        let ops = vec![op(0, -1); WAITING_OPS_MAX];
        waits(&set, ops);
        let outcome = Arc::new(Outcome { result: SpinLock::new(Rank::Value, None), queue: WaitQueue::new() });
        let mut one = Some(Call { ops: vec![op(0, -1)], pid: PidOf::default(), undo: None, changes: true });
        assert_eq!(set.tries(&mut one, Some(&outcome)), Err(Errno::ENOMEM));
        set.state.lock().remove_waiter(0);
        assert_eq!(set.state.lock().waiting_ops, 0);
    }
}
