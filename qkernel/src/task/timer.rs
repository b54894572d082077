//! Kernel timers: a queue of deadlines per CPU.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Task, pause, sched};
use crate::arch;
use crate::sync::SpinLock;
use crate::time;

/// What a timer does when it is due. Runs without locks, must not sleep.
pub trait Alarm: Send + Sync {
    /// The deadline `due_ns` (monotonic) has passed. A returned time arms the timer again.
    fn fire(&self, due_ns: u64) -> Option<u64>;
}

enum Action {
    Wake(Arc<Task>),
    Alarm(Arc<dyn Alarm>),
}

/// An armed timer; dropping it disarms.
pub struct Timer {
    cpu: usize,
    key: (u64, u64),
    /// Whether it may have armed itself again under another deadline.
    periodic: bool,
}

struct Queue {
    timers: BTreeMap<(u64, u64), Action>,
}

static QUEUES: [SpinLock<Queue>; abi::layout::MAX_CPUS as usize] =
    [const { SpinLock::new(Queue { timers: BTreeMap::new() }) }; abi::layout::MAX_CPUS as usize];
/// The earliest deadline of each queue.
static NEXT: [AtomicU64; abi::layout::MAX_CPUS as usize] =
    [const { AtomicU64::new(u64::MAX) }; abi::layout::MAX_CPUS as usize];
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn arm(due_ns: u64, action: Action) -> Timer {
    let cpu = arch::cpu_index();
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let periodic = matches!(action, Action::Alarm(_));
    insert(cpu, due_ns, id, action);
    Timer { cpu, key: (due_ns, id), periodic }
}

fn insert(cpu: usize, due_ns: u64, id: u64, action: Action) {
    let mut queue = QUEUES[cpu].lock();
    queue.timers.insert((due_ns, id), action);
    update_next(cpu, &queue);
}

fn update_next(cpu: usize, queue: &Queue) {
    let next = queue.timers.keys().next().map_or(u64::MAX, |key| key.0);
    NEXT[cpu].store(next, Ordering::SeqCst);
}

/// Wakes `task` at `due_ns` (monotonic).
pub fn wake_at(due_ns: u64, task: &Arc<Task>) -> Timer {
    arm(due_ns, Action::Wake(task.clone()))
}

/// Fires `alarm` at `due_ns` (monotonic).
pub fn alarm_at(due_ns: u64, alarm: Arc<dyn Alarm>) -> Timer {
    arm(due_ns, Action::Alarm(alarm))
}

impl Drop for Timer {
    fn drop(&mut self) {
        let mut queue = QUEUES[self.cpu].lock();
        let removed = match queue.timers.remove(&self.key) {
            Some(action) => Some(action),
            None if self.periodic => {
                let id = self.key.1;
                let key = queue.timers.keys().find(|key| key.1 == id).copied();
                key.and_then(|key| queue.timers.remove(&key))
            }
            None => None,
        };
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
    let mut due = Vec::new();
    {
        let mut queue = QUEUES[cpu].lock();
        while let Some(entry) = queue.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            due.push(entry.remove_entry());
        }
        update_next(cpu, &queue);
    }
    for ((due_ns, id), action) in due {
        match action {
            Action::Wake(task) => {
                sched::wake(&task);
            }
            Action::Alarm(alarm) => {
                if let Some(again) = alarm.fire(due_ns) {
                    insert(cpu, again, id, Action::Alarm(alarm));
                }
            }
        }
    }
}
