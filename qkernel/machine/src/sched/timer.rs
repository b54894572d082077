//! Kernel timers: a queue of deadlines per CPU.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Runnable, pause};
use crate::arch;
use crate::rank::Rank;
use crate::spin::SpinLock;
use crate::time;

/// The action of a timer that is due. Runs without locks, must not sleep.
pub trait Alarm: Send + Sync {
    /// The deadline `due_ns` (monotonic) has passed. A returned time arms the timer again.
    fn fire(&self, due_ns: u64) -> Option<u64>;
}

enum Action {
    Wake(Runnable),
    Alarm(Arc<dyn Alarm>),
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

struct Queue {
    timers: BTreeMap<(u64, u64), Action>,
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
            if matches!(entry.get(), Action::Alarm(_)) {
                self.firing.push(entry.key().1);
            }
            due.push(entry.remove_entry());
        }
        due
    }

    /// An alarm that was taken out has fired, and is wanted again or not; returns it if it is done with.
    fn fired(&mut self, id: u64, again_ns: Option<u64>, alarm: Arc<dyn Alarm>) -> Option<Arc<dyn Alarm>> {
        let at = self.firing.iter().position(|firing| *firing == id);
        match (at.map(|at| self.firing.swap_remove(at)), again_ns) {
            (Some(_), Some(again_ns)) => {
                self.timers.insert((again_ns, id), Action::Alarm(alarm));
                None
            }
            _ => Some(alarm),
        }
    }

    /// A timer that was armed under `key` is gone.
    fn disarm(&mut self, key: (u64, u64), is_periodic: bool) -> Option<Action> {
        let removed = self.timers.remove(&key);
        if removed.is_some() || !is_periodic {
            return removed;
        }
        let id = key.1;
        self.firing.retain(|firing| *firing != id);
        let key = self.timers.keys().find(|key| key.1 == id).copied();
        key.and_then(|key| self.timers.remove(&key))
    }
}

static QUEUES: [SpinLock<Queue>; abi::layout::MAX_CPUS as usize] =
    [const { SpinLock::new(Rank::Timers, Queue::new()) }; abi::layout::MAX_CPUS as usize];
/// The earliest deadline of each queue.
static NEXT: [AtomicU64; abi::layout::MAX_CPUS as usize] =
    [const { AtomicU64::new(u64::MAX) }; abi::layout::MAX_CPUS as usize];
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn arm(due_ns: u64, action: Action) -> Timer {
    let periodic = matches!(action, Action::Alarm(_));
    let (cpu, id) = insert(due_ns, action);
    Timer { cpu, key: (due_ns, id), periodic }
}

/// The CPU in whose queue it is, and its number there.
fn insert(due_ns: u64, action: Action) -> (usize, u64) {
    let cpu = arch::cpu_index();
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let mut queue = QUEUES[cpu].lock();
    queue.timers.insert((due_ns, id), action);
    update_next(cpu, &queue);
    (cpu, id)
}

fn update_next(cpu: usize, queue: &Queue) {
    let next = queue.timers.keys().next().map_or(u64::MAX, |key| key.0);
    NEXT[cpu].store(next, Ordering::SeqCst);
}

/// Wakes `task` at `due_ns` (monotonic).
pub fn wake_at(due_ns: u64, task: &Runnable) -> Timer {
    arm(due_ns, Action::Wake(task.clone()))
}

/// Fires `alarm` at `due_ns` (monotonic).
pub fn alarm_at(due_ns: u64, alarm: Arc<dyn Alarm>) -> Timer {
    arm(due_ns, Action::Alarm(alarm))
}

/// Fires `alarm` at `due_ns` (monotonic), which nobody can take back.
pub(crate) fn fire_at(due_ns: u64, alarm: Arc<dyn Alarm>) {
    insert(due_ns, Action::Alarm(alarm));
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
    if pause::is_paused() {
        return u64::MAX;
    }
    NEXT[arch::cpu_index()].load(Ordering::SeqCst)
}

/// Fires what is due on this CPU.
pub fn run_expired() {
    let cpu = arch::cpu_index();
    let next = NEXT[cpu].load(Ordering::SeqCst);
    if next == u64::MAX || pause::is_paused() || next > time::monotonic_ns() {
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
                super::wake(&task);
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
            queue.timers.insert((10 * id, id), Action::Alarm(Arc::new(Nothing)));
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
}
