//! Futexes: `futex(2)` and the robust list.
//!
//! A waiter compares the word and queues itself in one go: inside [`UserMemory::with_atomic`], which holds the address
//! space, with the bucket locked. A waker changes the word first and looks at the bucket afterwards, so it finds the
//! waiter, or the waiter finds the new value.

mod pi;
mod requeue_pi;
mod robust;
mod vector;

pub use pi::{lock_pi, owner_ended, unlock_pi};
pub use requeue_pi::{cmp_requeue_pi, wait_requeue_pi};
pub use robust::release_robust_list;
pub use vector::wait_any;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::task::core::Task;
use machine::errno::{Errno, Result};
use machine::mm::{UserAddr, UserMemory};
use machine::sched;
use machine::sched::Runnable;
use machine::sync::{Rank, SpinLock};

/// `FUTEX_BITSET_MATCH_ANY`.
pub const MATCH_ANY: u32 = u32::MAX;
/// Someone waits in the kernel.
const WAITERS: u32 = 0x8000_0000;
/// The owner ended without unlocking.
const OWNER_DIED: u32 = 0x4000_0000;
/// The owner's thread id.
const TID_MASK: u32 = 0x3fff_ffff;

/// The identity of a futex word. With `FUTEX_PRIVATE_FLAG` a word is another futex than without.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    /// Address space and address.
    Private(u64, u64),
    /// Address space and address of a word without the flag, in memory that no other process shares.
    Own(u64, u64),
    /// Memory object and offset.
    Shared(usize, u64),
}

impl Key {
    fn of(user: &UserMemory, addr: UserAddr, private: bool) -> Result<Self> {
        if !addr.is_aligned(4) {
            return Err(Errno::EINVAL);
        }
        if !addr.is_user() {
            return Err(Errno::EFAULT);
        }
        let shared = if private { None } else { user.aspace().shared_key(addr.get())? };
        Ok(match shared {
            Some((object, offset)) => Self::Shared(object, offset),
            None if private => Self::Private(user.aspace().id(), addr.get()),
            None => Self::Own(user.aspace().id(), addr.get()),
        })
    }

    fn bucket(&self) -> usize {
        let (a, b) = match *self {
            Self::Private(space, addr) | Self::Own(space, addr) => (space, addr),
            Self::Shared(object, offset) => (object as u64, offset),
        };
        let mixed = (a.rotate_left(32) ^ (b >> 2)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - BUCKET_BITS)) as usize
    }
}

/// The key of a waiter in its bucket: ordered by futex, and there behind those who came before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct WaiterKey(Key, u64);

impl WaiterKey {
    /// Of one that stands in no bucket yet.
    fn none(key: Key) -> Self {
        Self(key, 0)
    }

    /// Behind all others that wait for the futex.
    fn last(key: Key) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(key, NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

struct Waiter {
    task: Runnable,
    bitset: u32,
    /// Changes only with the buckets of both keys locked.
    key: SpinLock<WaiterKey>,
    woken: AtomicBool,
    /// The lock that it is to wait for next (`FUTEX_WAIT_REQUEUE_PI`).
    lock: Option<Arc<pi::Waiter>>,
}

impl Waiter {
    fn new(task: &Arc<Task>, wait: &Wait, key: Key, lock: Option<Arc<pi::Waiter>>) -> Arc<Self> {
        Arc::new(Self {
            task: task.clone(),
            bitset: wait.bitset,
            key: SpinLock::new(Rank::Leaf, WaiterKey::none(key)),
            woken: AtomicBool::new(false),
            lock,
        })
    }
}

const BUCKET_BITS: u32 = 8;
/// A tree, so that who comes, leaves or is woken meets those alone who wait for the same futex.
type Bucket = BTreeMap<WaiterKey, Arc<Waiter>>;
static BUCKETS: [SpinLock<Bucket>; 1 << BUCKET_BITS] =
    [const { SpinLock::new(Rank::Futex, BTreeMap::new()) }; 1 << BUCKET_BITS];

/// The keys of all that wait for a futex.
fn waiter_keys(key: Key) -> core::ops::RangeInclusive<WaiterKey> {
    WaiterKey(key, 0)..=WaiterKey(key, u64::MAX)
}

/// Takes up to `count` waiters that match out of a bucket, the longest waiting first. `EINVAL`: the next one waits for a
/// lock.
fn take_waiters(
    bucket: &mut Bucket,
    key: Key,
    bitset: u32,
    count: usize,
    taken: &mut Vec<Arc<Waiter>>,
) -> Result<()> {
    let wanted = taken.len().saturating_add(count);
    let mut result = Ok(());
    let found = bucket.extract_if(waiter_keys(key), |_, waiter| {
        if result.is_ok() && waiter.lock.is_some() {
            result = Err(Errno::EINVAL);
        }
        result.is_ok() && waiter.bitset & bitset != 0
    });
    taken.extend(found.take(count).map(|(_, waiter)| waiter));
    result?;
    // Those who wait for a lock in the word itself.
    if taken.len() < wanted && pi::is_awaited(key) { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Wakes waiters that were taken out of their bucket; how many there were.
fn wake_taken(taken: Vec<Arc<Waiter>>) -> usize {
    /// Waiters that are woken before others may run.
    const BREATH: usize = 256;
    for (at, waiter) in taken.iter().enumerate() {
        if at % BREATH == BREATH - 1 {
            sched::let_others_go_on();
        }
        waiter.woken.store(true, Ordering::SeqCst);
        sched::wake(&waiter.task);
    }
    taken.len()
}

fn wake_key(key: Key, count: usize, bitset: u32) -> Result<usize> {
    let mut taken = Vec::new();
    let result = take_waiters(&mut BUCKETS[key.bucket()].lock(), key, bitset, count, &mut taken);
    let woken = wake_taken(taken);
    result.map(|()| woken)
}

/// Wakes up to `count` waiters of the futex at `addr` whose bits match.
pub fn wake(user: &UserMemory, addr: UserAddr, private: bool, count: usize, bitset: u32) -> Result<usize> {
    if bitset == 0 {
        return Err(Errno::EINVAL);
    }
    wake_key(Key::of(user, addr, private)?, count, bitset)
}

/// Wakes up to `count` waiters of the shared or private futex at `addr`; how many there were.
pub fn wake_address(user: &UserMemory, addr: UserAddr, count: usize) -> usize {
    let private = wake(user, addr, true, count, MATCH_ANY).unwrap_or(0);
    if private >= count {
        return private;
    }
    private + wake(user, addr, false, count - private, MATCH_ANY).unwrap_or(0)
}

/// A waiter's request.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub addr: UserAddr,
    pub private: bool,
    pub value: u32,
    pub bitset: u32,
    /// Monotonic.
    pub deadline_ns: Option<u64>,
}

/// Puts a waiter into the bucket of a key, where its turn is from now on.
fn queue_up(bucket: &mut Bucket, key: Key, waiter: Arc<Waiter>) {
    let key = WaiterKey::last(key);
    *waiter.key.lock() = key;
    bucket.insert(key, waiter);
}

/// Queues the caller if the word still has the expected value.
fn enqueue(user: &UserMemory, wait: &Wait, key: Key, waiter: &Arc<Waiter>) -> Result<()> {
    let queued = user.with_atomic(wait.addr, false, |word| {
        let mut bucket = BUCKETS[key.bucket()].lock();
        let unchanged = word.load(Ordering::SeqCst) == wait.value;
        if unchanged {
            queue_up(&mut bucket, key, waiter.clone());
        }
        unchanged
    })?;
    if !queued {
        return Err(Errno::EAGAIN);
    }
    if matches!(key, Key::Shared(..)) {
        // A word of a host file was compared as a copy made before the bucket was locked: look once more.
        let now = user.with_atomic(wait.addr, false, |word| word.load(Ordering::SeqCst));
        if now != Ok(wait.value) && dequeue(waiter) {
            return Err(now.err().unwrap_or(Errno::EAGAIN));
        }
    }
    Ok(())
}

/// Takes a waiter out of its bucket; false when it was woken.
fn dequeue(waiter: &Arc<Waiter>) -> bool {
    loop {
        let key = *waiter.key.lock();
        let mut bucket = BUCKETS[key.0.bucket()].lock();
        if *waiter.key.lock() != key {
            continue; // requeued meanwhile
        }
        let removed = bucket.remove(&key);
        drop(bucket);
        return removed.is_some();
    }
}

/// Sleeps until the futex is woken. `EAGAIN` when the word has another value, `ETIMEDOUT` at the deadline,
/// `Errno::RESTART` when a signal comes.
pub fn wait(task: &Arc<Task>, user: &UserMemory, wait: &Wait) -> Result<()> {
    if wait.bitset == 0 {
        return Err(Errno::EINVAL);
    }
    let key = Key::of(user, wait.addr, wait.private)?;
    let waiter = Waiter::new(task, wait, key, None);
    enqueue(user, wait, key, &waiter)?;
    let woken = || waiter.woken.load(Ordering::SeqCst).then_some(());
    let slept = sched::sleep_until(sched::Sleep::Interruptible, wait.deadline_ns, woken);
    if !dequeue(&waiter) {
        return Ok(());
    }
    match slept {
        Ok(_) => Err(Errno::ETIMEDOUT),
        Err(error) => Err(error),
    }
}

/// Wakes `wake_count` waiters of one futex and moves `move_count` others to a second one; how many of both there were.
/// With `expected`, only if the first word has that value.
pub fn requeue(
    user: &UserMemory,
    (from, to): (UserAddr, UserAddr),
    private: bool,
    (wake_count, move_count): (usize, usize),
    expected: Option<u32>,
) -> Result<usize> {
    let from_key = Key::of(user, from, private)?;
    let to_key = Key::of(user, to, private)?;
    let mut woken = Vec::new();
    let mut shift = |from: &mut Bucket, to: Option<&mut Bucket>| {
        let mut moved = Vec::new();
        let result = take_waiters(from, from_key, MATCH_ANY, wake_count, &mut woken)
            .and_then(|()| take_waiters(from, from_key, MATCH_ANY, move_count, &mut moved));
        (result, put(to.unwrap_or(from), to_key, moved))
    };
    let (from_at, to_at) = (from_key.bucket(), to_key.bucket());
    let mut change = |word: Option<&AtomicU32>| {
        // With the buckets locked, so that nobody comes or goes in between.
        let differs = || word.map(|word| word.load(Ordering::SeqCst)) != expected;
        let mut first = BUCKETS[from_at.min(to_at)].lock();
        let mut second = (from_at != to_at).then(|| BUCKETS[from_at.max(to_at)].lock_beside());
        if differs() {
            return Err(Errno::EAGAIN);
        }
        Ok(match &mut second {
            None => shift(&mut first, None),
            Some(second) if from_at < to_at => shift(&mut first, Some(second)),
            Some(second) => shift(second, Some(&mut first)),
        })
    };
    let (result, moved) = match expected {
        Some(_) => user.with_atomic(from, false, |word| change(Some(word)))??,
        None => change(None)?,
    };
    let woken = wake_taken(woken);
    result.map(|()| woken + moved)
}

/// Puts waiters into the bucket of another key; how many there were.
fn put(bucket: &mut Bucket, key: Key, waiters: Vec<Arc<Waiter>>) -> usize {
    let count = waiters.len();
    waiters.into_iter().for_each(|waiter| queue_up(bucket, key, waiter));
    count
}

/// The change and the comparison of `FUTEX_WAKE_OP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeOp {
    op: u32,
    compare: u32,
    argument: u32,
    compare_argument: u32,
}

impl WakeOp {
    /// Decodes the call's last argument.
    pub fn decode(encoded: u32) -> Result<Self> {
        const SHIFT_ARGUMENT: u32 = 8;
        let signed = |value: u32| ((value << 20).cast_signed() >> 20).cast_unsigned();
        let op = encoded >> 28;
        let mut argument = signed(encoded >> 12 & 0xfff);
        if op & SHIFT_ARGUMENT != 0 {
            argument = 1 << (argument & 31);
        }
        let decoded = Self {
            op: op & 7,
            compare: encoded >> 24 & 0xf,
            argument,
            compare_argument: signed(encoded & 0xfff),
        };
        if decoded.op > 4 { Err(Errno::ENOSYS) } else { Ok(decoded) }
    }

    /// Changes the word; returns what it was.
    fn apply(&self, word: &AtomicU32) -> u32 {
        let argument = self.argument;
        match self.op {
            0 => word.swap(argument, Ordering::SeqCst),
            1 => word.fetch_add(argument, Ordering::SeqCst),
            2 => word.fetch_or(argument, Ordering::SeqCst),
            3 => word.fetch_and(!argument, Ordering::SeqCst),
            _ => word.fetch_xor(argument, Ordering::SeqCst),
        }
    }

    /// Whether the old value satisfies the comparison. An unknown one is refused only here, with the word changed, as
    /// on Linux: `ENOSYS`.
    fn holds(&self, old: u32) -> Result<bool> {
        let (old, with) = (old.cast_signed(), self.compare_argument.cast_signed());
        Ok(match self.compare {
            0 => old == with,
            1 => old != with,
            2 => old < with,
            3 => old <= with,
            4 => old > with,
            5 => old >= with,
            _ => return Err(Errno::ENOSYS),
        })
    }
}

/// `FUTEX_WAKE_OP`: changes the second word, wakes waiters of the first, and of the second if its old value compares.
pub fn wake_op(
    user: &UserMemory,
    (first, second): (UserAddr, UserAddr),
    private: bool,
    (first_count, second_count): (usize, usize),
    op: WakeOp,
) -> Result<usize> {
    let first = Key::of(user, first, private)?;
    let second_key = Key::of(user, second, private)?;
    let old = user.with_atomic(second, true, |word| op.apply(word))?;
    let second_too = op.holds(old)?;
    let mut woken = wake_key(first, first_count, MATCH_ANY)?;
    if second_too {
        woken += wake_key(second_key, second_count, MATCH_ANY)?;
    }
    Ok(woken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_operations_decode_as_their_macro_encodes() {
        // FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_GT, 2)
        let op = WakeOp::decode(1 << 28 | 4 << 24 | 5 << 12 | 2).unwrap();
        let word = AtomicU32::new(3);
        let old = op.apply(&word);
        assert_eq!((old, word.load(Ordering::Relaxed)), (3, 8));
        assert_eq!((op.holds(3), op.holds(2)), (Ok(true), Ok(false)));
        // Negative arguments, and an argument that is a bit number.
        let op = WakeOp::decode(0xfff << 12 | 0xfff).unwrap();
        assert_eq!(op.apply(&word), 8);
        assert_eq!(word.load(Ordering::Relaxed), u32::MAX);
        assert_eq!(op.holds(u32::MAX), Ok(true));
        assert_eq!(WakeOp::decode(8 << 28 | 3 << 12).unwrap().argument, 8);
        assert_eq!(WakeOp::decode(7 << 28), Err(Errno::ENOSYS));
        assert_eq!(WakeOp::decode(9 << 24).unwrap().holds(0), Err(Errno::ENOSYS));
    }

    #[test]
    fn keys_spread_over_the_buckets() {
        let used: alloc::collections::BTreeSet<usize> =
            (0..1000).map(|i| Key::Private(7, 0x7f00_0000_0000 + i * 4).bucket()).collect();
        assert!(used.len() > 200);
    }
}
