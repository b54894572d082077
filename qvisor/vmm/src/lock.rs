//! Locks in a declared order: a thread takes them from lower to higher ranks only, so no two threads can wait for each
//! other. Debug builds check it at every lock; release builds have plain locks.

use std::ops::{Deref, DerefMut};
use std::sync::{self, Condvar, PoisonError};
use std::time::Duration;

/// The order, from outer to inner. A thread that holds one takes only locks listed below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The wanted and the present state of the sandbox (`runtime::supervisor`).
    Progress,
    /// Exec'd processes (`exec_relay`).
    ExecRelay,
    /// Containers that the kernel has not taken (`container_queue`).
    ContainerQueue,
    /// The home of its pages (`hibernate`). Held while the disk is read or written.
    Hibernation,
    /// Figures of its hibernations and wakes.
    HibernationFigures,
    /// Pages that stay in memory for an image. Held while they are written.
    Staying,
    /// Waiting for the time to pack its pages.
    Settling,
    /// How often vCPUs left the guest (kvm).
    Exits,
    /// The handles that are waited for (`hostcall::io_threads`) …
    IoArms,
    /// … the threads that wait …
    IoThreads,
    /// … and the jobs of the thread pool.
    IoJobs,
    /// Events for the kernel; a vCPU may have to be interrupted for one.
    Events,
    /// A position in a directory (`hostcall::file`).
    Position,
    /// Which nodes the host watches (`hostcall::watches`).
    Watches,
    /// The handles by which the host's locks are held (`hostcall::locks`) …
    Locks,
    /// … and one of them. Held while the host locks.
    LockedFile,
    /// The account of the copy-on-write view (`hostcall::quota`).
    Quota,
    /// The stub thread that a vCPU ran last. Held while that thread runs.
    LastStub,
    /// How many threads of a stub process are used. Held while one is started.
    StubThreads,
    /// An order to a stub process. Held until it is answered.
    StubOrder,
    /// The file that tells a new thread's id.
    StubIds,
    /// The chunks that the file window shows (`memory`).
    Window,
    /// The zygote. Held while it forks.
    Zygote,
    /// Which stub processes there are.
    StubSlots,
    /// Those that are ready.
    StubsReady,
    /// Whether a process is reaped. Held while its pid is used.
    StubReaped,
    /// The image that the sandbox's memory is asked for (`checkpoint`).
    Image,
    /// The broker's socket. Held from a request to its answer.
    Broker,
    /// The leash's socket.
    Leash,
    /// How the sandbox has ended.
    End,
}

/// A mutex with a rank. A thread that panicked while it held the lock leaves the value as it was.
#[derive(Debug)]
pub struct Mutex<T> {
    #[cfg(debug_assertions)]
    rank: Rank,
    inner: sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    #[cfg_attr(not(debug_assertions), allow(unused_variables, reason = "only debug builds check the order"))]
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            #[cfg(debug_assertions)]
            rank,
            inner: sync::Mutex::new(value),
        }
    }

    /// Takes the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        #[cfg(debug_assertions)]
        held::check(self.rank);
        self.guard(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the lock if it is free. That cannot wait, so any order will do.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        if_free(self.inner.try_lock()).map(|inner| self.guard(inner))
    }

    fn guard<'a>(&'a self, inner: sync::MutexGuard<'a, T>) -> Guard<'a, T> {
        Holder {
            inner,
            #[cfg(debug_assertions)]
            held: held::Held::new(self.rank),
        }
    }
}

/// The guard of a lock, whether or not a thread panicked with it.
fn if_free<G>(taken: sync::TryLockResult<G>) -> Option<G> {
    match taken {
        Ok(guard) => Some(guard),
        Err(sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(sync::TryLockError::WouldBlock) => None,
    }
}

/// Holds a lock.
#[derive(Debug)]
pub struct Holder<G> {
    inner: G,
    /// Gone after the lock.
    #[cfg(debug_assertions)]
    held: held::Held,
}

/// Holds a [`Mutex`].
pub type Guard<'a, T> = Holder<sync::MutexGuard<'a, T>>;
/// Holds a [`RwLock`] to read.
pub type ReadGuard<'a, T> = Holder<sync::RwLockReadGuard<'a, T>>;
/// Holds a [`RwLock`] to write.
pub type WriteGuard<'a, T> = Holder<sync::RwLockWriteGuard<'a, T>>;

impl<G: Deref> Deref for Holder<G> {
    type Target = G::Target;
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Holder<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<T> Guard<'_, T> {
    /// Gives the lock back until `condition` is raised, and takes it again.
    pub fn wait(self, condition: &Condvar) -> Self {
        Self {
            inner: condition.wait(self.inner).unwrap_or_else(PoisonError::into_inner),
            #[cfg(debug_assertions)]
            held: self.held,
        }
    }

    /// Gives the lock back while `goes_on` says so, but no longer than `time`, and takes it again. The result says
    /// whether the time is over.
    pub fn wait_while(
        self,
        condition: &Condvar,
        time: Duration,
        goes_on: impl FnMut(&mut T) -> bool,
    ) -> (Self, bool) {
        let (inner, waited) =
            condition.wait_timeout_while(self.inner, time, goes_on).unwrap_or_else(PoisonError::into_inner);
        let guard = Self {
            inner,
            #[cfg(debug_assertions)]
            held: self.held,
        };
        (guard, waited.timed_out())
    }
}

/// A lock with a rank that many may hold to read, or one to write. As a [`Mutex`] otherwise: a thread that holds it takes
/// it no second time.
#[derive(Debug)]
pub struct RwLock<T> {
    #[cfg(debug_assertions)]
    rank: Rank,
    inner: sync::RwLock<T>,
}

impl<T> RwLock<T> {
    /// An unlocked lock.
    #[cfg_attr(not(debug_assertions), allow(unused_variables, reason = "only debug builds check the order"))]
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            #[cfg(debug_assertions)]
            rank,
            inner: sync::RwLock::new(value),
        }
    }

    /// The value, which nobody else has any more.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock to read.
    pub fn read(&self) -> ReadGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::check(self.rank);
        self.holder(self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the lock to read if nobody writes. That cannot wait, so any order will do.
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        if_free(self.inner.try_read()).map(|inner| self.holder(inner))
    }

    /// Takes the lock to write.
    pub fn write(&self) -> WriteGuard<'_, T> {
        #[cfg(debug_assertions)]
        held::check(self.rank);
        self.holder(self.inner.write().unwrap_or_else(PoisonError::into_inner))
    }

    #[cfg_attr(not(debug_assertions), allow(clippy::unused_self, reason = "only debug builds note the rank"))]
    fn holder<G>(&self, inner: G) -> Holder<G> {
        Holder {
            inner,
            #[cfg(debug_assertions)]
            held: held::Held::new(self.rank),
        }
    }
}

/// The ranks that the calling thread holds.
#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    use super::Rank;

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    pub fn check(rank: Rank) {
        let highest = HELD.with_borrow(|held| held.iter().copied().max());
        assert!(highest.is_none_or(|held| held < rank), "takes {rank:?} while it holds {highest:?}");
    }

    /// A rank that the calling thread holds as long as the value lives.
    #[derive(Debug)]
    pub struct Held(Rank);

    impl Held {
        pub fn new(rank: Rank) -> Self {
            HELD.with_borrow_mut(|held| held.push(rank));
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                if let Some(at) = held.iter().rposition(|one| *one == self.0) {
                    held.remove(at);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_taken_upwards() {
        let (outer, inner) = (Mutex::new(Rank::LastStub, ()), Mutex::new(Rank::StubOrder, ()));
        let held = (outer.lock(), inner.lock());
        drop(held);
        // In any order with attempts, and again once all is given back.
        let guard = inner.lock();
        assert!(outer.try_lock().is_some());
        drop(guard);
        drop(outer.lock());
    }

    #[test]
    #[should_panic(expected = "takes LastStub while it holds Some(StubOrder)")]
    #[cfg(debug_assertions)]
    fn the_other_order_is_noticed_even_if_nobody_waits() {
        let (outer, inner) = (Mutex::new(Rank::LastStub, ()), Mutex::new(Rank::StubOrder, ()));
        let _guard = inner.lock();
        let _ = outer.lock();
    }

    #[test]
    fn many_read_at_once_and_one_writes() {
        let lock = RwLock::new(Rank::LastStub, 1);
        let read = lock.read();
        std::thread::scope(|scope| {
            // Other threads' ranks are their own.
            scope.spawn(|| assert_eq!(*lock.read(), *read)).join().unwrap();
        });
        drop(read);
        *lock.write() += 1;
        let write = lock.write();
        assert!(lock.try_read().is_none());
        drop(write);
        assert_eq!(lock.try_read().map(|value| *value), Some(2));
    }

    #[test]
    #[should_panic(expected = "takes LastStub while it holds Some(LastStub)")]
    #[cfg(debug_assertions)]
    fn reading_twice_is_noticed_even_if_nobody_writes() {
        let lock = RwLock::new(Rank::LastStub, ());
        let _guard = lock.read();
        let _ = lock.read();
    }
}
