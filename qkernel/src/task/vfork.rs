//! The wait of a `vfork(2)` parent for its child.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use machine::sched::wait::WaitQueue;

use crate::task::core::Task;

/// The event that a `vfork(2)` parent waits for: its child's `execve(2)` or end.
pub struct VforkDone {
    done: AtomicBool,
    queue: WaitQueue,
}

impl VforkDone {
    /// Not done yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { done: AtomicBool::new(false), queue: WaitQueue::new() })
    }
    /// The child has its own memory now, or has ended.
    pub fn complete(&self) {
        self.done.store(true, Ordering::SeqCst);
        self.queue.wake_all();
    }
    /// Has the parent look again whether it is to wait any longer.
    pub fn look_again(&self) {
        self.queue.wake_all();
    }
    /// Waits for the child; a signal that kills the parent ends the wait.
    pub fn wait(&self, task: &Arc<Task>) {
        let over = || self.done.load(Ordering::SeqCst) || task.process.is_exiting() || task.is_dying();
        while !over() {
            // Other signals wait until the child is done.
            self.queue.wait_uninterruptible(over);
        }
    }
}
