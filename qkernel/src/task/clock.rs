//! The clocks of `clock_gettime(2)`.

use alloc::sync::Arc;

use crate::task::core::Task;
use crate::task::process::Process;
use crate::task::used::Used;
use machine::errno::{Errno, Result};
use machine::time;

/// The time that a clock measures.
#[derive(Clone)]
pub enum Clock {
    Real,
    Monotonic,
    Boot,
    /// Processor time of a process: all of it, or user time alone.
    Process(Arc<Process>, bool),
    Thread(Arc<Task>, bool),
}

const CLOCK_PROCESS_CPUTIME_ID: i32 = 2;
const CLOCK_THREAD_CPUTIME_ID: i32 = 3;

/// The monotonic time at which the real-time clock will show `ns`.
pub fn monotonic_of_realtime(ns: u64) -> u64 {
    // A time before the clock's beginning has passed.
    ns.saturating_sub(time::realtime_offset_ns())
}

impl Clock {
    /// The clock of an id as `clock_gettime(2)` takes it, asked for by `task`.
    pub fn from_id(task: &Arc<Task>, id: i32) -> Result<Self> {
        match id {
            // CLOCK_REALTIME, _COARSE, _ALARM, CLOCK_TAI (no leap seconds are known here)
            0 | 5 | 8 | 11 => Ok(Self::Real),
            // CLOCK_MONOTONIC, _RAW, _COARSE
            1 | 4 | 6 => Ok(Self::Monotonic),
            // CLOCK_BOOTTIME, _ALARM
            7 | 9 => Ok(Self::Boot),
            CLOCK_PROCESS_CPUTIME_ID => Ok(Self::Process(task.process.clone(), false)),
            CLOCK_THREAD_CPUTIME_ID => Ok(Self::Thread(task.clone(), false)),
            id if id < 0 => Self::of_other(task, id),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The clock of an id when timers can be made on it.
    pub fn for_timer(task: &Arc<Task>, id: i32) -> Result<Self> {
        match id {
            // CLOCK_MONOTONIC_RAW and the coarse ones
            4..=6 => Err(Errno::EOPNOTSUPP),
            id => Self::from_id(task, id),
        }
    }

    /// The clock of an id when one can sleep by it: a thread does not use processor time asleep.
    pub fn for_sleep(task: &Arc<Task>, id: i32) -> Result<Self> {
        const CLOCK_OF_DESCRIPTOR: i32 = 3;
        if id == CLOCK_THREAD_CPUTIME_ID || (id < 0 && id & 7 == CLOCK_OF_DESCRIPTOR) {
            return Err(Errno::EOPNOTSUPP);
        }
        match Self::for_timer(task, id)? {
            Self::Thread(of, _) if Arc::ptr_eq(&of, task) => Err(Errno::EINVAL),
            Self::Thread(..) => Err(Errno::EOPNOTSUPP),
            clock => Ok(clock),
        }
    }

    /// A clock id made of another process's or thread's number (`clock_getcpuclockid(3)`).
    fn of_other(task: &Arc<Task>, id: i32) -> Result<Self> {
        const PER_THREAD: i32 = 4;
        const KIND: i32 = 3;
        const KIND_VIRTUAL: i32 = 1;
        if id & KIND == KIND {
            return Err(Errno::EINVAL); // a descriptor's clock
        }
        let number = (!(id >> 3)).unsigned_abs();
        let user_only = id & KIND == KIND_VIRTUAL;
        if id & PER_THREAD != 0 {
            let found =
                if number == 0 { Some(task.clone()) } else { task.process.container.pids.find_task(number) };
            let found = found.filter(|found| Arc::ptr_eq(&found.process, &task.process));
            return Ok(Self::Thread(found.ok_or(Errno::EINVAL)?, user_only));
        }
        let process = if number == 0 {
            Some(task.process.clone())
        } else {
            task.process.container.pids.find_process(number)
        };
        Ok(Self::Process(process.ok_or(Errno::EINVAL)?, user_only))
    }

    /// Whether it shows processor time.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Self::Process(..) | Self::Thread(..))
    }

    /// Its time, in nanoseconds.
    pub fn now(&self) -> u64 {
        match self {
            Self::Real => time::realtime_ns(),
            Self::Monotonic => time::monotonic_ns(),
            Self::Boot => time::boottime_ns(),
            Self::Process(process, user_only) => {
                let (user, total) = process.cpu_times();
                if *user_only { user } else { total }
            }
            Self::Thread(task, user_only) => {
                let (user, total) = Used::by(&task.thread.sched).cpu_times();
                if *user_only { user } else { total }
            }
        }
    }

    /// The monotonic time at which it will show `ns`; `None` for clocks of processor time.
    pub fn monotonic_at(&self, ns: u64) -> Option<u64> {
        match self {
            Self::Real => Some(monotonic_of_realtime(ns)),
            Self::Monotonic => Some(ns),
            Self::Boot => Some(ns.saturating_sub(time::boottime_ns().saturating_sub(time::monotonic_ns()))),
            Self::Process(..) | Self::Thread(..) => None,
        }
    }
}
