//! Tasks that others of all owners wait for.

use core::sync::atomic::Ordering;

use super::cpu::current;
use super::task::Runnable;
use crate::platform;

/// The current task holds something that tasks of other owners wait for, for as long as this lives: where it lets others go on, its
/// owner's share does not keep it waiting.
pub struct Urgent(Option<Runnable>);

/// See [`Urgent`].
pub fn be_urgent() -> Urgent {
    // In unit tests there is no task.
    let task = platform::is_ready().then(current);
    if let Some(task) = &task {
        task.sched().urgent.fetch_add(1, Ordering::Relaxed);
    }
    Urgent(task)
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.sched().urgent.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
