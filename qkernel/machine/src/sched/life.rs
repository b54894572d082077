//! How a task begins, and how it ends.

use core::sync::atomic::Ordering;

use super::cpu::current;
use super::queue::QueueClass;
use super::schedule::schedule;
use super::stack::KernelStack;
use super::switch::finish_switch;
use super::task::{DEAD, SchedState};
use crate::errno::Result;
use crate::{arch, host};

impl SchedState {
    /// A new task that will do `main` on a stack of its own.
    pub fn new(main: fn()) -> Result<Self> {
        let stack = KernelStack::new()?;
        // SAFETY: the stack is fresh and ours.
        let sp = unsafe { arch::prepare_stack(stack.top(), begin_task) };
        Ok(Self::with(sp, Some(stack), main))
    }
}

/// The first function of a new task, on its own stack.
extern "sysv64" fn begin_task() -> ! {
    finish_switch();
    let main = current().sched().main;
    main();
    exit_current()
}

/// Ends the current task. Its `Arc` is dropped by whatever runs next.
fn exit_current() -> ! {
    let me = current();
    me.sched().state.store(DEAD, Ordering::SeqCst);
    drop(me);
    schedule(QueueClass::Kernel);
    host::die("a dead task ran")
}
