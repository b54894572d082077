//! Pending signals are taken, by delivery or by who waits for them.

use alloc::sync::Arc;

use crate::task::core::Task;
use crate::task::itimer;
use crate::task::signal::info::SigInfo;
use crate::task::signal::send::retarget;
use machine::errno::{Errno, Result};
use machine::sched;

/// Takes the next pending signal of `set` for the task, its own before the process's. Also for signal descriptors.
pub fn take_pending(task: &Task, set: u64) -> Option<SigInfo> {
    let taken = {
        let mut shared = task.process.pending.lock();
        let mut own = task.signals.lock();
        own.pending.take(set).or_else(|| shared.take(set))
    };
    taken.map(|info| itimer::signal_taken(&task.process, info))
}

/// Sleeps until a signal of `set` is pending, blocked or not, and takes it. `EAGAIN` at the deadline, `EINTR` when
/// another signal comes.
pub fn wait_for_signal(task: &Arc<Task>, set: u64, deadline_ns: Option<u64>) -> Result<SigInfo> {
    task.signals.lock().waiting_for = set;
    let slept = sched::sleep_until(sched::Sleep::Interruptible, deadline_ns, || take_pending(task, set));
    task.signals.lock().waiting_for = 0;
    // A signal of the process that this task was to take goes to another task.
    retarget(&task.process, task, set);
    match slept {
        Ok(Some(info)) => Ok(info),
        Ok(None) => Err(Errno::EAGAIN),
        Err(_) => Err(Errno::EINTR),
    }
}
