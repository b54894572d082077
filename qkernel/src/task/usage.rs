//! Resources that processes and threads have used, in the forms that system calls ask for.

use crate::task::core::Task;
use crate::task::process::Process;
use crate::task::used::{Rusage, Used};
use machine::mm::AddressSpace;

/// The resources that a process has used.
pub fn of_process(process: &Process, aspace: Option<&AddressSpace>) -> Rusage {
    shown(process.used(), process, aspace)
}

/// The resources that a thread has used.
pub fn of_thread(task: &Task, aspace: &AddressSpace) -> Rusage {
    shown(Used::by(&task.thread.sched), &task.process, Some(aspace))
}

/// With the largest memory that there was, now or earlier.
fn shown(mut used: Used, process: &Process, aspace: Option<&AddressSpace>) -> Rusage {
    let now = aspace.map_or(0, AddressSpace::resident_peak);
    used.max_rss = now.max(process.ended_used.lock().max_rss);
    used.rusage()
}
