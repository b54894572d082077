//! Kernel timers: a queue of deadlines per CPU.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound;
use core::sync::atomic::{AtomicU64, Ordering};

use abi::report::TimerKind;

use super::set_times;
use super::state::is_paused;
use super::task::Runnable;
use super::wake::wake;
use crate::arch;
use crate::platform;
use crate::rank::Rank;
use crate::spin::SpinLock;
use crate::time;

/// The action of a timer that is due. Runs without locks, must not sleep.
pub trait Alarm: Send + Sync {
    /// The deadline `due_ns` (monotonic) has passed. A returned time arms the timer again.
    fn fire(&self, due_ns: u64) -> Option<u64>;
    /// Who waits for it; `None`: nobody, or it is the kernel's own. Called without locks.
    fn waiter(&self) -> Option<Waiter> {
        None
    }
}

/// Whoever waits for a deadline.
pub struct Waiter {
    /// The task, or one of its process; `None`: it is not known any more.
    pub task: Option<Runnable>,
    pub kind: TimerKind,
}

/// A deadline that a program waits for. Times are of the monotonic clock.
pub struct Standing {
    pub due_ns: u64,
    /// When it was set; 0: nobody kept it ([`set_times::keep`]).
    pub set_ns: u64,
    /// It is the next of a timer that fires again and again, not the first.
    pub is_period: bool,
    pub waiter: Waiter,
}

/// Whether a deadline is of interest to who looks at all of a CPU, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    Yes,
    No,
    /// Nor is any later one.
    NoMore,
}

#[derive(Clone)]
enum Action {
    Wake(Runnable),
    Alarm(Arc<dyn Alarm>),
}

#[derive(Clone)]
struct Entry {
    /// When it was set, if that is kept; else 0.
    set_ns: u64,
    /// See [`Standing`].
    is_period: bool,
    action: Action,
}

/// An armed timer; dropping it disarms.
pub struct Timer {
    cpu: usize,
    key: (u64, u64),
    /// Whether it may have armed itself again under another deadline.
    periodic: bool,
}

/// Most timers that are taken out at once; the rest is due at the next look.
const DUE_MAX: usize = 256;
/// Deadlines that are copied, and such that are looked at, under one lock.
const CHUNK: usize = 32;
const SEEN_MAX: usize = 256;

struct Queue {
    timers: BTreeMap<(u64, u64), Entry>,
    /// Alarms that were taken out because they are due, and may come back. One that is dropped meanwhile leaves.
    firing: Vec<u64>,
}

impl Queue {
    const fn new() -> Self {
        Self { timers: BTreeMap::new(), firing: Vec::new() }
    }

    /// Takes out what is due, or some of it.
    fn take_due(&mut self, now_ns: u64) -> Vec<((u64, u64), Action)> {
        let mut due = Vec::new();
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now_ns || due.len() >= DUE_MAX {
                break;
            }
            if matches!(entry.get().action, Action::Alarm(_)) {
                self.firing.push(entry.key().1);
            }
            let (key, entry) = entry.remove_entry();
            due.push((key, entry.action));
        }
        due
    }

    /// An alarm that was taken out has fired, and is wanted again or not; returns it if it is done with.
    fn fired(&mut self, id: u64, again_ns: Option<u64>, alarm: Arc<dyn Alarm>) -> Option<Arc<dyn Alarm>> {
        let at = self.firing.iter().position(|firing| *firing == id);
        match (at.map(|at| self.firing.swap_remove(at)), again_ns) {
            (Some(_), Some(again_ns)) => {
                let entry = Entry { set_ns: set_now(), is_period: true, action: Action::Alarm(alarm) };
                self.timers.insert((again_ns, id), entry);
                None
            }
            _ => Some(alarm),
        }
    }

    /// A timer that was armed under `key` is gone.
    fn disarm(&mut self, key: (u64, u64), is_periodic: bool) -> Option<Entry> {
        let removed = self.timers.remove(&key);
        if removed.is_some() || !is_periodic {
            return removed;
        }
        let id = key.1;
        self.firing.retain(|firing| *firing != id);
        let key = self.timers.keys().find(|key| key.1 == id).copied();
        key.and_then(|key| self.timers.remove(&key))
    }

    /// Copies deadlines of interest behind `after`, which is moved on, as many as there is room for. Whether there may be more.
    fn copy(
        &self,
        after: &mut (u64, u64),
        room: &mut [Option<(u64, Entry)>; CHUNK],
        interest: &impl Fn(u64, u64) -> Interest,
    ) -> bool {
        let mut room = room.iter_mut();
        let rest = self.timers.range((Bound::Excluded(*after), Bound::Unbounded));
        for (seen, (key, entry)) in rest.enumerate() {
            match interest(key.0, entry.set_ns) {
                Interest::NoMore => return false,
                Interest::No => {}
                Interest::Yes => match room.next() {
                    Some(place) => *place = Some((key.0, entry.clone())),
                    None => return true,
                },
            }
            *after = *key;
            if seen >= SEEN_MAX {
                return true;
            }
        }
        false
    }
}

/// The time, if it is kept when deadlines were set.
fn set_now() -> u64 {
    if set_times::are_kept() { time::monotonic_ns() } else { 0 }
}

static QUEUES: [SpinLock<Queue>; abi::layout::MAX_CPUS as usize] =
    [const { SpinLock::new(Rank::Timers, Queue::new()) }; abi::layout::MAX_CPUS as usize];
/// The earliest deadline of each queue.
static NEXT: [AtomicU64; abi::layout::MAX_CPUS as usize] =
    [const { AtomicU64::new(u64::MAX) }; abi::layout::MAX_CPUS as usize];
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn arm(due_ns: u64, set_ns: u64, action: Action) -> Timer {
    let periodic = matches!(action, Action::Alarm(_));
    let (cpu, id) = insert(due_ns, Entry { set_ns, is_period: false, action });
    Timer { cpu, key: (due_ns, id), periodic }
}

/// The CPU in whose queue it is, and its number there.
fn insert(due_ns: u64, entry: Entry) -> (usize, u64) {
    let cpu = arch::cpu_index();
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let mut queue = QUEUES[cpu].lock();
    queue.timers.insert((due_ns, id), entry);
    update_next(cpu, &queue);
    (cpu, id)
}

fn update_next(cpu: usize, queue: &Queue) {
    let next = queue.timers.keys().next().map_or(u64::MAX, |key| key.0);
    NEXT[cpu].store(next, Ordering::SeqCst);
}

/// Timers that are armed.
#[cfg(feature = "harness")]
pub fn count() -> usize {
    QUEUES.iter().map(|queue| queue.lock().timers.len()).sum()
}

/// Wakes `task` at `due_ns` (monotonic).
pub fn wake_at(due_ns: u64, task: &Runnable) -> Timer {
    let set_ns = match set_now() {
        0 => 0,
        now_ns => task.sched().set_times.since(due_ns, now_ns),
    };
    arm(due_ns, set_ns, Action::Wake(task.clone()))
}

/// Fires `alarm` at `due_ns` (monotonic).
pub fn alarm_at(due_ns: u64, alarm: Arc<dyn Alarm>) -> Timer {
    arm(due_ns, set_now(), Action::Alarm(alarm))
}

/// Fires `alarm` at `due_ns` (monotonic), which nobody can take back.
pub(crate) fn fire_at(due_ns: u64, alarm: Arc<dyn Alarm>) {
    insert(due_ns, Entry { set_ns: 0, is_period: false, action: Action::Alarm(alarm) });
}

impl Drop for Timer {
    fn drop(&mut self) {
        let mut queue = QUEUES[self.cpu].lock();
        let removed = queue.disarm(self.key, self.periodic);
        update_next(self.cpu, &queue);
        drop(queue);
        drop(removed);
    }
}

/// When this CPU's next timer is due (`u64::MAX`: never). In a pause none is: timers fire when it ends, as far as their
/// time has come by then.
pub fn next_deadline() -> u64 {
    if is_paused() {
        return u64::MAX;
    }
    NEXT[arch::cpu_index()].load(Ordering::SeqCst)
}

/// Calls `f`, without locks, with the deadlines that programs wait for and that are of `interest`, by when they are due and when they
/// were set, as long as `goes_on` says so, which is asked after each few; whether all were shown. What changes meanwhile may be missed.
pub fn standing(
    goes_on: impl Fn() -> bool,
    interest: impl Fn(u64, u64) -> Interest,
    mut f: impl FnMut(Standing),
) -> bool {
    for queue in QUEUES.iter().take(platform::cpus()) {
        let mut after = (0, 0);
        loop {
            if !goes_on() {
                return false;
            }
            let mut chunk = [const { None }; CHUNK];
            let is_more = queue.lock().copy(&mut after, &mut chunk, &interest);
            for (due_ns, Entry { set_ns, is_period, action }) in chunk.into_iter().flatten() {
                let waiter = match action {
                    Action::Wake(task) => Some(Waiter { task: Some(task), kind: TimerKind::Wait }),
                    Action::Alarm(alarm) => alarm.waiter(),
                };
                if let Some(waiter) = waiter {
                    f(Standing { due_ns, set_ns, is_period, waiter });
                }
            }
            if !is_more {
                break;
            }
        }
    }
    true
}

/// Fires what is due on this CPU.
pub fn run_expired() {
    let cpu = arch::cpu_index();
    let next = NEXT[cpu].load(Ordering::SeqCst);
    if next == u64::MAX || is_paused() || next > time::monotonic_ns() {
        return;
    }
    time::resync();
    let now = time::monotonic_ns();
    let due = {
        let mut queue = QUEUES[cpu].lock();
        let due = queue.take_due(now);
        update_next(cpu, &queue);
        due
    };
    for ((due_ns, id), action) in due {
        match action {
            Action::Wake(task) => {
                wake(&task);
            }
            Action::Alarm(alarm) => {
                let again = alarm.fire(due_ns);
                let mut queue = QUEUES[cpu].lock();
                let done = queue.fired(id, again, alarm);
                update_next(cpu, &queue);
                drop(queue);
                drop(done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;
    impl Alarm for Nothing {
        fn fire(&self, _due_ns: u64) -> Option<u64> {
            None
        }
    }

    fn entry(set_ns: u64) -> Entry {
        Entry { set_ns, is_period: false, action: Action::Alarm(Arc::new(Nothing)) }
    }

    fn fire(queue: &mut Queue, now_ns: u64) -> Vec<(u64, Arc<dyn Alarm>)> {
        let alarm = |((_, id), action)| match action {
            Action::Alarm(alarm) => Some((id, alarm)),
            Action::Wake(_) => None,
        };
        queue.take_due(now_ns).into_iter().filter_map(alarm).collect()
    }

    #[test]
    fn an_alarm_that_is_dropped_while_it_fires_stays_away() {
        let mut queue = Queue::new();
        for id in 1..=3 {
            queue.timers.insert((10 * id, id), entry(0));
        }
        let mut firing = fire(&mut queue, 20).into_iter();
        let (first, alarm) = firing.next().unwrap();
        assert!(queue.fired(first, Some(40), alarm).is_none());
        let (second, alarm) = firing.next().unwrap();
        assert!(queue.disarm((20, second), true).is_none());
        assert!(queue.fired(second, Some(40), alarm).is_some());
        assert!(queue.timers.keys().eq(&[(30, 3), (40, 1)]) && queue.firing.is_empty());
        // One that has come back is found by its number.
        assert!(queue.disarm((10, 1), true).is_some());
        assert!(queue.disarm((30, 3), true).is_some());
        assert!(queue.timers.is_empty());
    }

    #[test]
    fn deadlines_are_looked_at_in_pieces() {
        let mut queue = Queue::new();
        for id in 1..=1000 {
            queue.timers.insert((10 * id, id), entry(id));
        }
        let interest = |due_ns: u64, set_ns: u64| match due_ns {
            8000.. => Interest::NoMore,
            _ if set_ns.is_multiple_of(7) => Interest::Yes,
            _ => Interest::No,
        };
        let (mut found, mut after, mut looks) = (Vec::new(), (0, 0), 0);
        loop {
            let mut chunk = [const { None }; CHUNK];
            let is_more = queue.copy(&mut after, &mut chunk, &interest);
            found.extend(chunk.into_iter().flatten().map(|(due_ns, entry)| (due_ns, entry.set_ns)));
            looks += 1;
            if !is_more {
                break;
            }
        }
        let expected: Vec<_> = (1..800).filter(|id| id % 7 == 0).map(|id| (10 * id, id)).collect();
        assert!(found == expected && looks > 3, "{looks} {found:?}");
    }
}
