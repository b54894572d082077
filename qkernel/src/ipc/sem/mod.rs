//! System V semaphores (`semget(2)`).
//!
//! A call that has to wait leaves its operations with the set. Whoever changes the set tries them on behalf of the waiters,
//! so that each change is seen by all who wait for it, however short it lasts.

pub mod ops;
pub mod undo;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::creds::Creds;
use crate::fs::caller::PidOf;
use crate::ipc::perm::{self, Perm};
use crate::ipc::sem::ops::{Attempt, SEMVMX, SemOp, Semaphore};
use crate::ipc::sem::undo::UndoList;
use crate::ipc::table::{Got, Table};
use crate::ipc::{IpcNamespace, OBJECT_BYTES, Who, now};
use machine::errno::{Errno, Result};
use machine::mm::account::{self, Charge};
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
    /// The position of the operation that it waits for.
    blocked: usize,
    outcome: Arc<Outcome>,
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

/// What `IPC_STAT` tells.
pub struct Facts {
    pub perm: Perm,
    pub otime: i64,
    pub ctime: i64,
    pub size: usize,
}

/// What `semctl(2)` asks about one semaphore.
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

    /// The set was changed: does what waiters can do now, those that wait for zero first, in one pass. The lock is not held
    /// for a further one, since a program chooses how many there are.
    fn pass(&mut self) -> Pass {
        let only_waits = |waiter: &Waiter| waiter.ops.iter().all(|op| op.change == 0);
        let of_kind = |zero: bool| {
            let found = self.waiters.iter().filter(move |(_, waiter)| only_waits(waiter) == zero);
            found.map(|(id, _)| *id)
        };
        let order: Vec<u64> = of_kind(true).chain(of_kind(false)).collect();
        let mut pass = Pass::default();
        for id in order {
            let Some(mut waiter) = self.waiters.remove(&id) else { continue };
            let result = match self.attempt(&waiter.ops, waiter.undo, waiter.pid) {
                Ok(Attempt::Blocked(at)) => {
                    waiter.blocked = at;
                    self.waiters.insert(id, waiter);
                    continue;
                }
                Ok(Attempt::Done) => {
                    self.otime = now();
                    pass.has_changed |= !only_waits(&waiter);
                    Ok(())
                }
                Err(error) => Err(error),
            };
            waiter.outcome.set(result);
            pass.woken.push(waiter.outcome);
        }
        pass
    }
}

/// What a pass over the waiters came to.
#[derive(Default)]
struct Pass {
    woken: Vec<Arc<Outcome>>,
    has_changed: bool,
}

impl SemSet {
    /// Wakes those whom a pass has served, and makes further ones while they change something.
    fn settle(&self, mut pass: Pass) {
        loop {
            pass.woken.iter().for_each(|outcome| outcome.queue.wake_all());
            if !pass.has_changed {
                return;
            }
            pass = self.state.lock().pass();
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
        account::check(WAITER_BYTES + ops.capacity() * size_of::<SemOp>())?;
        let outcome = Arc::new(Outcome { result: SpinLock::new(Rank::Value, None), queue: WaitQueue::new() });
        let id = {
            let mut state = self.state.lock();
            state.check_alive()?;
            match state.attempt(&ops, undo, who.pid)? {
                Attempt::Done => {
                    state.otime = now();
                    let pass = if changes { state.pass() } else { Pass::default() };
                    drop(state);
                    self.settle(pass);
                    return Ok(());
                }
                Attempt::Blocked(blocked) => {
                    let id = state.next_waiter;
                    state.next_waiter += 1;
                    let waiter = Waiter { ops, pid: who.pid, undo, blocked, outcome: outcome.clone() };
                    state.waiters.insert(id, waiter);
                    id
                }
            }
        };
        let slept = outcome.queue.wait_until(deadline_ns, || *outcome.result.lock());
        // Whoever is not there any more has an outcome, whatever ended the sleep.
        if self.state.lock().waiters.remove(&id).is_some() {
            return slept.and(Err(Errno::EAGAIN));
        }
        let result = *outcome.result.lock();
        result.unwrap_or(Err(Errno::EINTR))
    }

    /// Sees that the set holds adjustments for a list; returns the list's id.
    fn adjustments_of(self: &Arc<Self>, list: &Arc<UndoList>) -> Result<u64> {
        if self.state.lock().undo.contains_key(&list.id) {
            return Ok(list.id);
        }
        let none = account::filled(0i16, self.size)?;
        account::check(OBJECT_BYTES)?;
        let mut state = self.state.lock();
        state.check_alive()?;
        if state.undo.insert(list.id, none).is_none() {
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
            state.pass()
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
        let pass = state.pass();
        drop(state);
        self.settle(pass);
        Ok(())
    }

    /// `SETVAL`.
    pub fn set_value(&self, who: &Who, number: i32, value: i32) -> Result<()> {
        let value = u16::try_from(value).ok().filter(|value| i32::from(*value) <= SEMVMX);
        let value = value.ok_or(Errno::ERANGE)?;
        let number = self.number(number)?;
        self.check(&who.creds, perm::WRITE)?;
        let mut state = self.state.lock();
        state.check_alive()?;
        state.semaphores[number] = Semaphore { value, pid: who.pid };
        state.undo.values_mut().for_each(|undo| undo[number] = 0);
        state.ctime = now();
        let pass = state.pass();
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

    /// All sets with their ids, and the largest index.
    pub fn all_sem_sets(&self) -> (Vec<(i32, Arc<SemSet>)>, u32) {
        let sets = self.sets.lock();
        (sets.iter().map(|(id, set)| (id, set.clone())).collect(), sets.last_index())
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
            (core::mem::take(&mut state.waiters), core::mem::take(&mut state.undo))
        };
        drop(undo);
        for waiter in waiters.values() {
            waiter.outcome.set(Err(Errno::EIDRM));
            waiter.outcome.queue.wake_all();
        }
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
        undo: BTreeMap::new(),
    };
    Ok(Arc::new(SemSet { size, state: SpinLock::new(Rank::Leaf, state), _charge: charge }))
}
