//! `timerfd_create(2)`: timers that can be polled.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;

use abi::report::TimerKind;

use crate::fs::anon;
use crate::fs::file::{At, File, FileOps, OpenFlags, Whence};
use crate::fs::inode::Stat;
use crate::fs::poll::PollTable;
use machine::errno::{Errno, Result};
use machine::mm::IoBuf;
use machine::sched;
use machine::sched::Run;
use machine::sched::set_times;
use machine::sched::timer;
use machine::sched::timer::{Alarm, Timer, Waiter};
use machine::sched::wait::PollEvents;
use machine::sched::wait::WaitQueue;
use machine::sync::{Rank, SpinLock};
use machine::time;

/// `TFD_TIMER_ABSTIME`.
pub const ABSOLUTE: u32 = 1;

/// The clock a timer goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    Monotonic,
    Realtime,
    Boottime,
}

impl Clock {
    /// By its `CLOCK_*` number; `EINVAL`.
    pub fn from_number(number: i32) -> Result<Self> {
        match number {
            0 | 8 => Ok(Self::Realtime),
            1 => Ok(Self::Monotonic),
            7 | 9 => Ok(Self::Boottime),
            _ => Err(Errno::EINVAL),
        }
    }

    fn now_ns(self) -> u64 {
        match self {
            Self::Monotonic => time::monotonic_ns(),
            Self::Realtime => time::realtime_ns(),
            Self::Boottime => time::boottime_ns(),
        }
    }
}

/// When a timer expires, on its own clock. All zero: never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Setting {
    pub due_ns: u64,
    pub interval_ns: u64,
}

#[derive(Default)]
struct State {
    /// `due_ns` is the next expiry that hasn't been counted.
    setting: Setting,
    /// Expiries counted and not read.
    expired: u64,
    /// `TFD_TIMER_*` of the last setting.
    flags: u32,
    timer: Option<Timer>,
    /// The task that has set it, if that is kept.
    setter: Option<Weak<dyn Run>>,
}

impl State {
    /// Counts the expiries up to `now_ns`; true if the next one is another than before.
    fn count(&mut self, now_ns: u64) -> bool {
        let Setting { due_ns, interval_ns } = self.setting;
        if due_ns == 0 || now_ns < due_ns {
            return false;
        }
        match (now_ns - due_ns).checked_div(interval_ns) {
            None => {
                self.expired = self.expired.saturating_add(1);
                self.setting.due_ns = 0;
            }
            Some(more) => {
                let count = more.saturating_add(1);
                self.expired = self.expired.saturating_add(count);
                self.setting.due_ns = due_ns.saturating_add(count.saturating_mul(interval_ns));
            }
        }
        true
    }

    /// The values that `timerfd_gettime(2)` shows: the time left, and the interval.
    fn remaining(&self, now_ns: u64) -> Setting {
        let left = self.setting.due_ns.saturating_sub(now_ns);
        let due_ns = if self.setting.due_ns == 0 { 0 } else { left.max(1) };
        Setting { due_ns, interval_ns: self.setting.interval_ns }
    }
}

struct Core {
    clock: Clock,
    /// The clock as it was asked for: some are the same here.
    number: i32,
    state: SpinLock<State>,
    queue: Arc<WaitQueue>,
}

impl Core {
    /// Arms the kernel's timer for the next expiry.
    fn arm(self: &Arc<Self>, state: &mut State) {
        state.timer = None;
        let due_ns = state.setting.due_ns;
        if due_ns != 0 {
            let wait_ns = due_ns.saturating_sub(self.clock.now_ns());
            let at = time::monotonic_ns().saturating_add(wait_ns);
            state.timer = Some(timer::alarm_at(at, self.clone()));
        }
    }
}

impl Alarm for Core {
    fn fire(&self, _due_ns: u64) -> Option<u64> {
        {
            let state = self.state.lock();
            let due_ns = state.setting.due_ns;
            if due_ns == 0 {
                return None;
            }
            // Not due: it was set anew while this ran, or its clock was corrected meanwhile.
            let now_ns = self.clock.now_ns();
            if now_ns < due_ns {
                return Some(time::monotonic_ns().saturating_add(due_ns - now_ns));
            }
        }
        // Expiries are counted when a reader looks; a periodic timer that nobody reads costs nothing.
        self.queue.wake(PollEvents::READABLE);
        None
    }

    fn waiter(&self) -> Option<Waiter> {
        if self.queue.is_empty() {
            return None;
        }
        let setter = self.state.lock().setter.clone();
        Some(Waiter { task: setter.and_then(|setter| setter.upgrade()), kind: TimerKind::TimerFd })
    }
}

/// The descriptor's side.
pub struct TimerFile {
    core: Arc<Core>,
    ino: u64,
}

impl TimerFile {
    /// A timer that isn't armed; `number` is its `CLOCK_*`.
    pub fn open(number: i32, flags: OpenFlags) -> Result<Arc<File>> {
        let clock = Clock::from_number(number)?;
        anon::check_room()?;
        let queue = Arc::new(WaitQueue::new());
        let core =
            Arc::new(Core { clock, number, state: SpinLock::new(Rank::Leaf, State::default()), queue });
        Ok(File::new(Box::new(Self { core, ino: anon::next_ino() }), flags | OpenFlags::RDWR, None))
    }

    /// Sets the timer (`due_ns` 0 disarms; it is a time of the clock with [`ABSOLUTE`]); returns the former setting with
    /// the time that was left.
    pub fn set(&self, new: Setting, flags: u32) -> Setting {
        let now_ns = self.core.clock.now_ns();
        let mut state = self.core.state.lock();
        state.count(now_ns);
        let old = state.remaining(now_ns);
        let due_ns = match new.due_ns {
            0 => 0,
            due_ns if flags & ABSOLUTE != 0 => due_ns,
            due_ns => now_ns.saturating_add(due_ns),
        };
        state.setting = Setting { due_ns, interval_ns: new.interval_ns };
        state.expired = 0;
        state.flags = flags;
        state.setter = set_times::are_kept().then(|| Arc::downgrade(&sched::current()));
        self.core.arm(&mut state);
        old
    }

    /// The time until the next expiry, and the interval.
    pub fn get(&self) -> Setting {
        let now_ns = self.core.clock.now_ns();
        let mut state = self.core.state.lock();
        if state.count(now_ns) {
            self.core.arm(&mut state);
        }
        state.remaining(now_ns)
    }
}

impl Drop for TimerFile {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.setting = Setting::default();
        let timer = state.timer.take();
        drop(state);
        drop(timer);
    }
}

impl FileOps for TimerFile {
    fn can_be_spliced(&self) -> bool {
        false
    }

    fn read(&self, _file: &File, buf: &mut IoBuf<'_>, _at: At) -> Result<usize> {
        if buf.remaining() < 8 {
            return Err(Errno::EINVAL);
        }
        let expired = {
            let mut state = self.core.state.lock();
            if state.count(self.core.clock.now_ns()) {
                self.core.arm(&mut state);
            }
            core::mem::take(&mut state.expired)
        };
        if expired == 0 {
            return Err(Errno::EAGAIN);
        }
        buf.fill(&expired.to_ne_bytes())?;
        Ok(8)
    }

    fn poll(&self, _file: &File, table: Option<&mut PollTable>) -> PollEvents {
        if let Some(table) = table {
            table.add(&self.core.queue);
        }
        let state = self.core.state.lock();
        let due_ns = state.setting.due_ns;
        let due = due_ns != 0 && self.core.clock.now_ns() >= due_ns;
        if due || state.expired != 0 { PollEvents::IN } else { PollEvents::empty() }
    }

    fn seek(&self, _file: &File, _offset: i64, _whence: Whence) -> Result<u64> {
        anon::seek()
    }

    fn stat(&self, _file: &File) -> Result<Stat> {
        Ok(anon::stat(0o600, self.ino, (0, 0)))
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[timerfd]".to_vec()
    }

    fn fdinfo(&self) -> Vec<u8> {
        let left = self.get();
        let (ticks, flags) = {
            let state = self.core.state.lock();
            (state.expired, state.flags)
        };
        let pair = |ns: u64| format!("({}, {})", ns / time::NSEC, ns % time::NSEC);
        let (value, interval) = (pair(left.due_ns), pair(left.interval_ns));
        let clock = self.core.number;
        format!("clockid: {clock}\nticks: {ticks}\nsettime flags: 0{flags:o}\nit_value: {value}\nit_interval: {interval}\n").into_bytes()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(due_ns: u64, interval_ns: u64) -> State {
        State { setting: Setting { due_ns, interval_ns }, ..State::default() }
    }

    #[test]
    fn expiries_are_counted_when_looked_at() {
        let mut periodic = state(100, 50);
        assert!(!periodic.count(99));
        assert!(periodic.count(100));
        assert_eq!((periodic.expired, periodic.setting.due_ns), (1, 150));
        assert!(periodic.count(305));
        assert_eq!((periodic.expired, periodic.setting.due_ns), (5, 350));
        assert_eq!(periodic.remaining(310), Setting { due_ns: 40, interval_ns: 50 });
    }

    #[test]
    fn a_single_expiry_happens_once() {
        let mut once = state(100, 0);
        assert!(once.count(1000) && !once.count(2000));
        assert_eq!((once.expired, once.remaining(2000)), (1, Setting::default()));
    }
}
