//! One work queue for several threads: each has a driver of its own while it packs or unpacks.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use codec::{Corrupt, Engine, Table, Work};

use crate::{
    driver::Driver,
    portal::Portal,
    work::{Counters, Settings},
};

/// Most drivers, and most jobs that all of them together keep in flight: memory for more would be hundreds of kilobytes each.
const DRIVERS_MAX: usize = 4;
const JOBS_MAX: usize = 32;
/// A device is lost when so many of its jobs hung: each costs its memory, and a wait.
const HUNG_MAX: u64 = 8;

/// Drivers on one work queue.
pub struct QueueEngine<P: Portal> {
    portal: Arc<P>,
    settings: Settings,
    drivers_max: usize,
    state: Mutex<State<P>>,
    /// A driver is idle again.
    returned: Condvar,
}

struct State<P: Portal> {
    idle: Vec<Driver<Arc<P>>>,
    /// How many drivers there are, idle ones and others.
    drivers: usize,
    /// The device is used no more.
    is_lost: bool,
    counters: Counters,
}

impl<P: Portal> QueueEngine<P> {
    /// On a queue that holds `settings.in_flight` jobs.
    #[must_use]
    pub fn new(portal: P, settings: Settings) -> Self {
        let jobs = settings.in_flight.clamp(1, JOBS_MAX);
        let drivers_max = DRIVERS_MAX.min(jobs);
        let settings = Settings { in_flight: jobs / drivers_max, ..settings };
        let state = State { idle: Vec::new(), drivers: 0, is_lost: false, counters: Counters::default() };
        Self {
            portal: Arc::new(portal),
            settings,
            drivers_max,
            state: Mutex::new(state),
            returned: Condvar::new(),
        }
    }

    /// The way to the queue that all drivers share.
    pub fn portal(&self) -> &P {
        &self.portal
    }

    fn state(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A driver for this table, which is the caller's until it gives it back.
    fn take(&self, table: &Arc<Table>) -> Driver<Arc<P>> {
        let mut state = self.state();
        loop {
            if let Some(at) = state.idle.iter().position(|driver| driver.is_ready_for(table)) {
                return state.idle.swap_remove(at);
            }
            if state.drivers < self.drivers_max {
                state.drivers += 1;
                let is_lost = state.is_lost;
                drop(state);
                let make = if is_lost { Driver::without_device } else { Driver::new };
                return make(Arc::clone(&self.portal), table, self.settings);
            }
            if let Some(mut driver) = state.idle.pop() {
                drop(state);
                driver.set_table(table);
                return driver;
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give_back(&self, mut driver: Driver<Arc<P>>) {
        let counters = driver.take_counters();
        let mut state = self.state();
        state.counters.add(&counters);
        // A job that hung has its place in the queue for ever, and a dedicated queue is never to be given more than it holds.
        state.is_lost |= driver.is_lost()
            || counters.hung > 0 && self.settings.is_dedicated
            || state.counters.hung >= HUNG_MAX;
        if state.is_lost {
            driver.leave_device();
            state.idle.iter_mut().for_each(Driver::leave_device);
        }
        state.idle.push(driver);
        self.returned.notify_one();
    }
}

impl<P: Portal + Send + Sync> Engine for QueueEngine<P> {
    fn run(&self, table: &Arc<Table>, work: &mut [Work<'_>]) -> Result<(), (usize, Corrupt)> {
        let mut driver = self.take(table);
        let result = driver.run(work);
        self.give_back(driver);
        result
    }

    fn rest(&self) {
        let mut state = self.state();
        let idle = std::mem::take(&mut state.idle);
        state.drivers -= idle.len();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.state().counters.by_name()
    }
}
