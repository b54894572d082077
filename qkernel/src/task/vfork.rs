//! The wait of a `vfork(2)` parent for its child.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use machine::sched::wait::WaitQueue;

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
    /// Waits for the child, unless the parent `is_ending`.
    pub fn wait(&self, is_ending: impl Fn() -> bool) {
        let over = || self.done.load(Ordering::SeqCst) || is_ending();
        while !over() {
            // Other signals wait until the child is done.
            self.queue.wait_uninterruptible(over);
        }
    }
}
