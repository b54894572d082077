//! Wait queues: tasks, and objects such as epoll items, that want to hear of a change.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering, fence};

use bitflags::bitflags;

use super::cpu::current;
use super::sleep::{Sleep, sleep_until};
use super::task::Runnable;
use super::wake::wake;
use crate::errno::{Errno, Result};
use crate::lock_order;
use crate::rank::Rank;
use crate::spin::SpinLock;

bitflags! {
    /// `POLL*` (and `EPOLL*`, which has the same low bits).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PollEvents: u32 {
        const IN = 0x1;
        const PRI = 0x2;
        const OUT = 0x4;
        const ERR = 0x8;
        const HUP = 0x10;
        const NVAL = 0x20;
        const RDNORM = 0x40;
        const RDBAND = 0x80;
        const WRNORM = 0x100;
        const WRBAND = 0x200;
        const MSG = 0x400;
        const RDHUP = 0x2000;
    }
}

impl PollEvents {
    /// Readable, in both spellings.
    pub const READABLE: Self = Self::IN.union(Self::RDNORM);
    /// Writable, in both spellings.
    pub const WRITABLE: Self = Self::OUT.union(Self::WRNORM);
}

/// Something other than a task that is told of events. Called with no lock but the queue's held: must not sleep and
/// must not touch the same queue.
pub trait Wake: Send + Sync {
    /// `events` may have become true.
    fn wake(&self, events: PollEvents);
    /// Adds the tasks that wait behind it for something to read, as an epoll set's do. Under the same rule.
    fn add_readers(&self, _readers: &mut Readers) {}
}

/// Tasks that wait for something to read.
pub struct Readers {
    found: Vec<Reader>,
    /// So many waiters are looked at yet.
    left: usize,
}

/// One of them.
pub struct Reader {
    pub task: Runnable,
    /// It waits in the queue itself, and not behind an object.
    pub is_direct: bool,
}

/// Most waiters that are looked at, and most tasks that are found: a program chooses how many there are.
const LOOKED_AT_MAX: usize = 64;
const READERS_MAX: usize = 8;

/// The receiver of a wake-up.
#[derive(Clone)]
pub enum Waker {
    Task(Runnable),
    Object(Arc<dyn Wake>),
}

struct Entry {
    waker: Waker,
    /// At most one exclusive entry is woken by [`WaitQueue::wake_one`].
    events: PollEvents,
}

/// A list of waiters. A waiter registers, looks at the condition once more, and only then sleeps.
pub struct WaitQueue {
    waiting: AtomicUsize,
    next_id: AtomicUsize,
    /// By id, so in the order they came. A tree grows by small pieces: a program chooses how many waiters there are, and
    /// under the lock no allocation may fail.
    entries: SpinLock<BTreeMap<usize, Entry>>,
}

impl WaitQueue {
    /// An empty queue.
    pub const fn new() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            next_id: AtomicUsize::new(1),
            entries: SpinLock::new(Rank::WaitQueue, BTreeMap::new()),
        }
    }

    /// Adds a waiter for `events`; returns what [`Self::unregister`] needs.
    pub fn register(&self, waker: Waker, events: PollEvents) -> usize {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.entries.lock().insert(id, Entry { waker, events });
        self.waiting.fetch_add(1, Ordering::SeqCst);
        id
    }

    /// Removes a waiter; harmless when it is gone.
    pub fn unregister(&self, id: usize) {
        let removed = self.entries.lock().remove(&id);
        if removed.is_some() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether anyone waits.
    pub fn is_empty(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Wakes everyone who waits for any of `events`.
    pub fn wake(&self, events: PollEvents) {
        if self.is_empty() {
            return;
        }
        for entry in self.entries.lock_beside().values() {
            if entry.events.intersects(events) {
                entry.waker.wake(events);
            }
        }
    }

    /// The tasks that wait for something to read, or some of them.
    pub fn readers(&self) -> Vec<Reader> {
        let mut readers = Readers { found: Vec::with_capacity(READERS_MAX), left: LOOKED_AT_MAX };
        self.add_readers(&mut readers, true);
        readers.found
    }

    /// Adds them to those of other queues. `is_direct`: no object stands before the queue.
    pub fn add_readers(&self, readers: &mut Readers, is_direct: bool) {
        if self.is_empty() {
            return;
        }
        for entry in self.entries.lock_beside().values() {
            if readers.left == 0 || readers.found.len() == READERS_MAX {
                return;
            }
            readers.left -= 1;
            match &entry.waker {
                _ if !entry.events.intersects(PollEvents::READABLE) => {}
                Waker::Task(task) => readers.found.push(Reader { task: task.clone(), is_direct }),
                Waker::Object(object) => object.add_readers(readers),
            }
        }
    }

    /// Wakes everyone.
    pub fn wake_all(&self) {
        self.wake(PollEvents::all());
    }

    /// Wakes the longest waiting task that is really asleep, and every object.
    pub fn wake_one(&self) {
        if self.is_empty() {
            return;
        }
        let mut woken = false;
        for entry in self.entries.lock_beside().values() {
            match &entry.waker {
                Waker::Task(task) if !woken => woken = wake(task),
                Waker::Task(_) => {}
                Waker::Object(object) => object.wake(PollEvents::all()),
            }
        }
    }

    /// [`Self::wake_one`] for mutexes: one load when nobody waits.
    #[inline]
    pub fn wake_one_quick(&self) {
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.wake_one();
        }
    }

    /// Sleeps until `ready` holds. Signals don't end it; only for waits that end soon.
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn wait_uninterruptible(&self, mut ready: impl FnMut() -> bool) {
        let _ = self.sleep(Sleep::Uninterruptible, None, || ready().then_some(()));
    }

    /// Sleeps until `ready` yields a value, or a signal comes (`Errno::RESTART`).
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn wait<R>(&self, ready: impl FnMut() -> Option<R>) -> Result<R> {
        self.sleep(Sleep::Interruptible, None, ready)?.ok_or(Errno::EIO)
    }

    /// Like [`Self::wait`]; `None` once monotonic time reaches `deadline_ns`.
    #[cfg_attr(feature = "checks", track_caller)]
    pub fn wait_until<R>(
        &self,
        deadline_ns: Option<u64>,
        ready: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>> {
        self.sleep(Sleep::Interruptible, deadline_ns, ready)
    }

    #[cfg_attr(feature = "checks", track_caller)]
    fn sleep<R>(
        &self,
        kind: Sleep,
        deadline_ns: Option<u64>,
        mut ready: impl FnMut() -> Option<R>,
    ) -> Result<Option<R>> {
        lock_order::may_sleep();
        if let Some(value) = ready() {
            return Ok(Some(value));
        }
        let task = current();
        let id = self.register(Waker::Task(task), PollEvents::all());
        let result = sleep_until(kind, deadline_ns, ready);
        self.unregister(id);
        result
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl Waker {
    /// Tells the waiter.
    pub fn wake(&self, events: PollEvents) {
        match self {
            Waker::Task(task) => {
                wake(task);
            }
            Waker::Object(object) => object.wake(events),
        }
    }
}
