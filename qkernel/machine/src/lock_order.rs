//! Holds the kernel to the order of [`Rank`] in builds with the feature `checks`; elsewhere all of it is nothing.
//!
//! Each CPU knows the spin locks that are held on it, since nothing sleeps with one and the kernel is not pre-empted;
//! each task knows the mutexes that it holds. Before the first CPU is set up nothing is checked. A unit test has no CPU:
//! what it holds is its thread's.

#[cfg(any(test, feature = "checks"))]
pub use checked::{HeldMutex, HeldSpin, LockRank, enable, may_sleep};
#[cfg(all(feature = "checks", not(test)))]
pub use checked::{Locks, run_task};
#[cfg(not(any(test, feature = "checks")))]
pub use unchecked::{HeldMutex, HeldSpin, LockRank, enable, may_sleep};

#[cfg(not(any(test, feature = "checks")))]
mod unchecked {
    use crate::rank::Rank;

    /// The rank of a lock, for the checks of the order.
    #[derive(Clone, Copy)]
    pub struct LockRank;
    pub struct HeldSpin;
    pub struct HeldMutex;
    impl LockRank {
        pub const fn new(_rank: Rank) -> Self {
            Self
        }
        #[inline(always)]
        pub fn expect_spin(self, _beside: bool) {}
        #[inline(always)]
        pub fn hold_spin(self) -> HeldSpin {
            HeldSpin
        }
        #[inline(always)]
        pub fn release_spin(self) {}
        #[inline(always)]
        pub fn expect_mutex(self, _beside: bool) {}
        #[inline(always)]
        pub fn hold_mutex(self) -> HeldMutex {
            HeldMutex
        }
    }

    #[inline(always)]
    pub fn enable() {}
    #[inline(always)]
    pub fn may_sleep() {}
}

#[cfg(any(test, feature = "checks"))]
mod checked {
    use core::fmt::Arguments;
    use core::panic::Location;
    use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

    use crate::rank::Rank;

    #[cfg(not(test))]
    pub use cpus::run_task;
    #[cfg(not(test))]
    use cpus::{enabled, of_cpu, of_task, stop};
    #[cfg(test)]
    use threads::{enabled, of_cpu, of_task, stop};

    /// The locks that a task or a CPU holds. Only the holder changes this, at one place at a time.
    pub struct Locks {
        /// A bit for each rank of which a lock is held.
        ranks: AtomicU64,
        counts: [AtomicU32; Rank::COUNT],
        /// The place where the last of each rank was taken.
        places: [AtomicPtr<Location<'static>>; Rank::COUNT],
    }

    const _: () = assert!(Rank::COUNT <= u64::BITS as usize);

    impl Locks {
        #[allow(clippy::new_without_default, reason = "none is made but by a constant")]
        pub const fn new() -> Self {
            Self {
                ranks: AtomicU64::new(0),
                counts: [const { AtomicU32::new(0) }; Rank::COUNT],
                places: [const { AtomicPtr::new(core::ptr::null_mut()) }; Rank::COUNT],
            }
        }

        /// Complains unless all that is held stands above the rank; with `beside`, or is of the rank.
        fn expect_above(&self, rank: LockRank, beside: bool, at: &'static Location<'static>) {
            let at_least = (u64::MAX << rank.0 as u32) << u32::from(beside);
            let wrong = self.ranks.load(Ordering::Relaxed) & at_least;
            if wrong != 0 {
                self.complain(wrong, format_args!("takes {:?} at {at}", rank.0));
            }
        }

        fn add(&self, rank: Rank, at: &'static Location<'static>) {
            let rank = rank as usize;
            self.counts[rank].fetch_add(1, Ordering::Relaxed);
            self.ranks.fetch_or(1 << rank, Ordering::Relaxed);
            self.places[rank].store(core::ptr::from_ref(at).cast_mut(), Ordering::Relaxed);
        }

        fn remove(&self, rank: Rank) {
            // Locks that were taken before the checks began are not counted.
            let less = |count: u32| count.checked_sub(1);
            let rank = rank as usize;
            if self.counts[rank].fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) == Ok(1) {
                self.ranks.fetch_and(!(1 << rank), Ordering::Relaxed);
            }
        }

        /// Says what is wrong beside the innermost lock of `held`.
        #[cold]
        fn complain(&self, held: u64, what: Arguments<'_>) -> ! {
            let bit = held.ilog2().to_le_bytes()[0];
            // SAFETY: `add` alone sets bits, and sets those of ranks.
            let rank = unsafe { core::mem::transmute::<u8, Rank>(bit) };
            // SAFETY: `add` alone stores places, from references that live for ever.
            let place = unsafe { self.places[usize::from(bit)].load(Ordering::Relaxed).as_ref() };
            match place {
                Some(place) => stop(format_args!("a task {what} while it holds {rank:?}, taken at {place}")),
                None => stop(format_args!("a task {what} while it holds {rank:?}")),
            }
        }
    }

    /// The rank of a lock, for the checks of the order.
    #[derive(Clone, Copy)]
    pub struct LockRank(Rank);

    impl LockRank {
        pub const fn new(rank: Rank) -> Self {
            Self(rank)
        }

        /// The lock is about to be waited for. `beside`: the caller has an order among those of one rank.
        #[track_caller]
        pub fn expect_spin(self, beside: bool) {
            let at = Location::caller();
            of_cpu(|held| held.expect_above(self, beside, at));
        }

        /// The lock is taken.
        #[track_caller]
        pub fn hold_spin(self) -> HeldSpin {
            let at = Location::caller();
            of_cpu(|held| held.add(self.0, at));
            HeldSpin(self)
        }

        /// It is given back; for one that has no guard.
        pub fn release_spin(self) {
            of_cpu(|held| held.remove(self.0));
        }

        /// The mutex is about to be waited for. `beside`: the caller has an order among those of one rank.
        #[track_caller]
        pub fn expect_mutex(self, beside: bool) {
            // All spin locks stand below all mutexes.
            self.expect_spin(false);
            let at = Location::caller();
            of_task(|held| held.expect_above(self, beside, at));
        }

        /// The mutex is taken, and the current task holds it as long as the result lives.
        #[track_caller]
        pub fn hold_mutex(self) -> HeldMutex {
            let at = Location::caller();
            of_task(|held| held.add(self.0, at));
            HeldMutex(self)
        }
    }

    /// A spin lock that this CPU holds as long as the value lives.
    pub struct HeldSpin(LockRank);

    impl Drop for HeldSpin {
        fn drop(&mut self) {
            self.0.release_spin();
        }
    }

    /// A mutex that the current task holds as long as the value lives.
    pub struct HeldMutex(LockRank);

    impl Drop for HeldMutex {
        fn drop(&mut self) {
            of_task(|held| held.remove(self.0.0));
        }
    }

    /// The current task is about to sleep, or may be: it holds no spin lock.
    #[track_caller]
    pub fn may_sleep() {
        let at = Location::caller();
        of_cpu(|locks| {
            let held = locks.ranks.load(Ordering::Relaxed);
            if held != 0 {
                locks.complain(held, format_args!("sleeps at {at}"));
            }
        });
    }

    /// Begins to check: the first CPU is set up.
    pub fn enable() {
        enabled();
    }

    /// The locks held in the kernel.
    #[cfg(not(test))]
    mod cpus {
        use core::fmt::{Arguments, Write};
        use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

        use super::Locks;
        use crate::arch;
        use crate::platform::{self, Line};

        static IS_ENABLED: AtomicBool = AtomicBool::new(false);
        /// The locks of the task that each CPU runs.
        static TASKS: [AtomicPtr<Locks>; abi::layout::MAX_CPUS as usize] =
            [const { AtomicPtr::new(core::ptr::null_mut()) }; abi::layout::MAX_CPUS as usize];
        static CPUS: [Locks; abi::layout::MAX_CPUS as usize] =
            [const { Locks::new() }; abi::layout::MAX_CPUS as usize];

        pub fn enabled() {
            IS_ENABLED.store(true, Ordering::Relaxed);
        }

        /// This CPU runs the task that holds these from now on.
        ///
        /// # Safety
        /// They live until the CPU runs another task.
        pub unsafe fn run_task(locks: &Locks) {
            TASKS[arch::cpu_index()].store(core::ptr::from_ref(locks).cast_mut(), Ordering::Relaxed);
        }

        pub fn of_cpu(f: impl FnOnce(&Locks)) {
            if IS_ENABLED.load(Ordering::Relaxed) {
                f(&CPUS[arch::cpu_index()]);
            }
        }

        pub fn of_task(f: impl FnOnce(&Locks)) {
            if !IS_ENABLED.load(Ordering::Relaxed) {
                return;
            }
            let task = TASKS[arch::cpu_index()].load(Ordering::Relaxed);
            // SAFETY: whoever calls `run_task` keeps it as long as the task is the CPU's.
            if let Some(held) = unsafe { task.as_ref() } {
                f(held);
            }
        }

        pub fn stop(what: Arguments<'_>) -> ! {
            let mut line = Line::default();
            let _ = line.write_fmt(what);
            platform::die(line.text())
        }
    }

    /// The locks held in a unit test.
    #[cfg(test)]
    mod threads {
        use super::{Arguments, Locks};

        std::thread_local! {
            static SPINS: Locks = const { Locks::new() };
            static MUTEXES: Locks = const { Locks::new() };
        }

        pub fn enabled() {}

        pub fn of_cpu(f: impl FnOnce(&Locks)) {
            SPINS.with(f);
        }

        pub fn of_task(f: impl FnOnce(&Locks)) {
            MUTEXES.with(f);
        }

        pub fn stop(what: Arguments<'_>) -> ! {
            panic!("{what}")
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::mutex::Mutex;
    use crate::rank::Rank;
    use crate::spin::SpinLock;

    #[test]
    fn locks_are_taken_inwards_and_given_back_in_any_order() {
        let (space, tree, leaf) = (
            Mutex::new(Rank::AddressSpace, ()),
            SpinLock::new(Rank::ProcessTree, ()),
            SpinLock::new(Rank::Leaf, ()),
        );
        let mutex = space.lock();
        let outer = tree.lock();
        let inner = leaf.lock();
        drop(mutex);
        drop(outer);
        drop(inner);
        // Attempts in any order, and again once all is given back.
        let inner = leaf.lock();
        assert!(tree.try_lock().is_some() && space.try_lock().is_some());
        drop(inner);
        drop((space.lock(), tree.lock()));
    }

    #[test]
    #[should_panic(expected = "takes ProcessTree at")]
    fn an_outer_spin_lock_within_an_inner_one_is_noticed_even_if_nobody_waits() {
        let (outer, inner) = (SpinLock::new(Rank::ProcessTree, ()), SpinLock::new(Rank::Tasks, ()));
        let _inner = inner.lock();
        drop(outer.lock());
    }

    #[test]
    #[should_panic(expected = "while it holds Tasks, taken at")]
    fn two_of_one_rank_are_noticed() {
        let (one, other) = (SpinLock::new(Rank::Tasks, ()), SpinLock::new(Rank::Tasks, ()));
        let _one = one.lock();
        drop(other.lock());
    }

    #[test]
    fn two_of_one_rank_have_an_order_where_the_caller_says_so() {
        let (one, other) = (SpinLock::new(Rank::WaitQueue, ()), SpinLock::new(Rank::WaitQueue, ()));
        drop((one.lock(), other.lock_beside()));
        let (one, other) = (Mutex::new(Rank::Directory, ()), Mutex::new(Rank::Directory, ()));
        drop((one.lock(), other.lock_beside()));
    }

    #[test]
    #[should_panic(expected = "takes Directory at")]
    fn an_outer_mutex_within_an_inner_one_is_noticed() {
        let (outer, inner) = (Mutex::new(Rank::Directory, ()), Mutex::new(Rank::Inode, ()));
        let _inner = inner.lock();
        drop(outer.lock());
    }

    #[test]
    #[should_panic(expected = "takes AddressSpace at")]
    fn a_mutex_under_a_spin_lock_is_noticed_though_it_is_free() {
        let (space, leaf) = (Mutex::new(Rank::AddressSpace, ()), SpinLock::new(Rank::Leaf, ()));
        let _leaf = leaf.lock();
        drop(space.lock());
    }

    #[test]
    #[should_panic(expected = "sleeps at")]
    fn a_sleep_under_a_spin_lock_is_noticed_though_nothing_is_waited_for() {
        let (leaf, queue) = (SpinLock::new(Rank::Leaf, ()), crate::sched::wait::WaitQueue::new());
        queue.wait_uninterruptible(|| true);
        let _leaf = leaf.lock();
        queue.wait_uninterruptible(|| true);
    }
}
