//! Futexes with an owner: `FUTEX_LOCK_PI` and its relatives. The word holds the owner's thread id, so the lock can be
//! handed from one to the next. All tasks have the same priority here, so there is none to inherit.
//!
//! The word and its bucket change together: inside [`UserMemory::with_atomic`] with the bucket locked.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use crate::task::core::Task;
use crate::task::futex::{BUCKET_BITS, Key, OWNER_DIED, TID_MASK, WAITERS};
use crate::task::pid_space::PidSpace;
use machine::errno::{Errno, Result};
use machine::mm::{UserAddr, UserMemory};
use machine::sched;
use machine::sched::Runnable;
use machine::sync::{Rank, SpinLock};

const WAITING: u8 = 0;
/// The lock is the waiter's.
const GRANTED: u8 = 1;
/// The owner has ended: the waiter tries anew.
const RETRY: u8 = 2;

/// A task that waits for a lock, or will.
pub(super) struct Waiter {
    task: Runnable,
    tid: u32,
    /// The space of all thread ids here.
    pids: Arc<PidSpace>,
    pub(super) key: Key,
    /// The thread it waits for.
    owner: AtomicU32,
    state: AtomicU8,
}

type Bucket = SpinLock<Vec<Arc<Waiter>>>;
/// Locked after those of waiters without a lock.
pub(super) static BUCKETS: [Bucket; 1 << BUCKET_BITS] =
    [const { SpinLock::new(Rank::Futex, Vec::new()) }; 1 << BUCKET_BITS];
/// Waiters in all buckets, for a quick look when a task ends.
static WAITING_TASKS: AtomicUsize = AtomicUsize::new(0);

impl Waiter {
    pub(super) fn new(task: &Arc<Task>, key: Key) -> Arc<Self> {
        Arc::new(Self {
            task: task.clone(),
            tid: task.tid(),
            pids: task.process.container.pids.clone(),
            key,
            owner: AtomicU32::new(0),
            state: AtomicU8::new(WAITING),
        })
    }

    /// The lock, which its word says to be this one's by now, is this one's. Said with the bucket locked, in which it is no longer, so
    /// that one whose time is over finds it; it is woken afterwards.
    pub(super) fn grant(&self) {
        self.state.store(GRANTED, Ordering::SeqCst);
    }

    /// Has it look at the news.
    pub(super) fn wake(&self) {
        sched::wake(&self.task);
    }

    /// Sleeps until there is news, or the deadline.
    pub(super) fn sleep(&self, deadline_ns: Option<u64>) -> Result<()> {
        let news = || (self.state.load(Ordering::SeqCst) != WAITING).then_some(());
        sched::sleep_until(sched::Sleep::Interruptible, deadline_ns, news).map(|_| ())
    }
}

/// Whether anyone waits for the lock.
pub(super) fn is_awaited(key: Key) -> bool {
    WAITING_TASKS.load(Ordering::SeqCst) != 0 && position(&BUCKETS[key.bucket()].lock_beside(), key).is_some()
}

fn position(bucket: &[Arc<Waiter>], key: Key) -> Option<usize> {
    bucket.iter().position(|waiter| waiter.key == key)
}

/// The state of the lock that its word tells.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// It is free; the new value makes it ours.
    Free(u32),
    /// It is ours already.
    Ours,
    /// It is this thread's.
    Owned(u32),
}

fn look(word: u32, tid: u32, others_wait: bool, ended: u32) -> Look {
    let waiters = if others_wait { WAITERS } else { 0 };
    match word & TID_MASK {
        owner if owner == tid => Look::Ours,
        0 => Look::Free(tid | (word & OWNER_DIED) | waiters),
        owner if owner == ended => Look::Free(tid | OWNER_DIED | waiters),
        owner => Look::Owned(owner),
    }
}

/// Whether there is such a thread.
fn exists(pids: &PidSpace, tid: u32) -> bool {
    pids.tree.lock().tasks.contains_key(&tid)
}

/// Takes the lock if it is free, else queues the waiter in the key's bucket unless it only tries; whether it was free.
/// `ended` is a thread known to have ended.
pub(super) fn take_or_queue(
    bucket: &mut Vec<Arc<Waiter>>,
    word: &AtomicU32,
    waiter: &Arc<Waiter>,
    only_try: bool,
    ended: u32,
) -> Result<bool> {
    loop {
        let old = word.load(Ordering::SeqCst);
        let others_wait = position(bucket, waiter.key).is_some();
        let (new, owner) = match look(old, waiter.tid, others_wait, ended) {
            Look::Ours => return Err(Errno::EDEADLK),
            Look::Free(new) => (new, None),
            Look::Owned(_) if only_try => return Err(Errno::EAGAIN),
            Look::Owned(owner) if !exists(&waiter.pids, owner) => return Err(Errno::ESRCH),
            Look::Owned(owner) => (old | WAITERS, Some(owner)),
        };
        if word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            continue;
        }
        if let Some(owner) = owner {
            waiter.owner.store(owner, Ordering::SeqCst);
            WAITING_TASKS.fetch_add(1, Ordering::SeqCst);
            bucket.push(waiter.clone());
        }
        return Ok(owner.is_none());
    }
}

/// Takes a waiter out of its bucket; false when it was told something.
fn dequeue(waiter: &Arc<Waiter>) -> bool {
    let mut bucket = BUCKETS[waiter.key.bucket()].lock();
    let Some(at) = bucket.iter().position(|other| Arc::ptr_eq(other, waiter)) else { return false };
    bucket.remove(at);
    WAITING_TASKS.fetch_sub(1, Ordering::SeqCst);
    true
}

/// `FUTEX_LOCK_PI`, or `FUTEX_TRYLOCK_PI` if `only_try`. `deadline_ns` is monotonic.
pub fn lock_pi(
    task: &Arc<Task>,
    user: &UserMemory,
    addr: UserAddr,
    private: bool,
    only_try: bool,
    deadline_ns: Option<u64>,
) -> Result<()> {
    let key = Key::of(user, addr, private)?;
    acquire(task, user, (addr, key), only_try, deadline_ns, 0)
}

/// Takes the lock, or waits for it; `ended` is a thread known to have ended.
pub(super) fn acquire(
    task: &Arc<Task>,
    user: &UserMemory,
    (addr, key): (UserAddr, Key),
    only_try: bool,
    deadline_ns: Option<u64>,
    mut ended: u32,
) -> Result<()> {
    loop {
        let waiter = Waiter::new(task, key);
        let is_taken = user.with_atomic(addr, true, |word| {
            take_or_queue(&mut BUCKETS[key.bucket()].lock(), word, &waiter, only_try, ended)
        })??;
        if is_taken {
            return Ok(());
        }
        match settle(&waiter, waiter.sleep(deadline_ns))? {
            None => return Ok(()),
            Some(thread) => ended = thread,
        }
    }
}

/// Returns the result of a wait for a lock: `None`: the waiter has it; else the thread that owned it and has left it
/// behind (0: that lives on). `ETIMEDOUT`, or a restart of the call: neither has come.
pub(super) fn settle(waiter: &Arc<Waiter>, slept: Result<()>) -> Result<Option<u32>> {
    if dequeue(waiter) {
        return Err(if slept.is_ok() { Errno::ETIMEDOUT } else { Errno::RESTART_ALWAYS });
    }
    if waiter.state.load(Ordering::SeqCst) == GRANTED {
        return Ok(None);
    }
    let owner = waiter.owner.load(Ordering::SeqCst);
    // It may have left its locks behind by execve.
    Ok(Some(if exists(&waiter.pids, owner) { 0 } else { owner }))
}

/// `FUTEX_UNLOCK_PI`: hands the lock to the longest waiting.
pub fn unlock_pi(task: &Arc<Task>, user: &UserMemory, addr: UserAddr, private: bool) -> Result<()> {
    let key = Key::of(user, addr, private)?;
    let tid = task.tid();
    let next = user.with_atomic(addr, true, |word| {
        let mut bucket = BUCKETS[key.bucket()].lock();
        let at = position(&bucket, key);
        let heir = at.map(|at| bucket.remove(at));
        let more = if position(&bucket, key).is_some() { WAITERS } else { 0 };
        let new = heir.as_ref().map_or(0, |heir| heir.tid | more);
        let mut old = word.load(Ordering::SeqCst);
        while old & TID_MASK == tid {
            match word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    let rest = bucket.iter().filter(|waiter| waiter.key == key);
                    rest.for_each(|waiter| waiter.owner.store(new & TID_MASK, Ordering::SeqCst));
                    heir.iter().for_each(|heir| heir.grant());
                    return Ok(heir);
                }
                Err(now) => old = now,
            }
        }
        if let (Some(at), Some(heir)) = (at, heir) {
            bucket.insert(at, heir);
        }
        Err(Errno::EPERM)
    })??;
    if let Some(heir) = next {
        WAITING_TASKS.fetch_sub(1, Ordering::SeqCst);
        heir.wake();
    }
    Ok(())
}

/// A thread has ended, or left its locks behind: those who wait for it try anew.
pub fn owner_ended(pids: &Arc<PidSpace>, tid: u32) {
    if WAITING_TASKS.load(Ordering::SeqCst) == 0 {
        return;
    }
    let mut waiting = Vec::new();
    for bucket in &BUCKETS {
        bucket.lock().retain(|waiter| {
            let keep = !Arc::ptr_eq(&waiter.pids, pids) || waiter.owner.load(Ordering::SeqCst) != tid;
            if !keep {
                waiting.push(waiter.clone());
            }
            keep
        });
    }
    WAITING_TASKS.fetch_sub(waiting.len(), Ordering::SeqCst);
    for waiter in waiting {
        waiter.state.store(RETRY, Ordering::SeqCst);
        waiter.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_word_is_taken_and_keeps_the_news_of_a_dead_owner() {
        assert_eq!(look(0, 7, false, 0), Look::Free(7));
        assert_eq!(look(OWNER_DIED | WAITERS, 7, true, 0), Look::Free(7 | OWNER_DIED | WAITERS));
        assert_eq!(look(9 | WAITERS, 7, false, 9), Look::Free(7 | OWNER_DIED));
        assert_eq!(look(9 | WAITERS, 7, false, 8), Look::Owned(9));
        assert_eq!(look(7, 7, false, 0), Look::Ours);
    }
}
