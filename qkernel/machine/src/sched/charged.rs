//! For whom a task takes memory.

use core::sync::atomic::Ordering;

use super::cpu::current;
use super::task::{Runnable, SchedState};
use crate::owner::{self, Owner};

impl SchedState {
    /// The owner of the memory that the task takes. A new task has that of the task that makes it.
    pub fn owner(&self) -> Owner {
        Owner::new(self.owner.load(Ordering::Relaxed))
    }

    fn set_owner(&self, owner: Owner) {
        self.owner.store(owner.number(), Ordering::Relaxed);
        owner::set_current(owner);
    }
}

/// Until it is dropped the current task takes memory for another owner, and so do the tasks that it makes.
pub struct ChargedTo {
    task: Runnable,
    before: Owner,
}

/// See [`ChargedTo`].
pub fn charge_to(owner: Owner) -> ChargedTo {
    let task = current();
    let before = task.sched().owner();
    task.sched().set_owner(owner);
    ChargedTo { task, before }
}

impl Drop for ChargedTo {
    fn drop(&mut self) {
        self.task.sched().set_owner(self.before);
    }
}
