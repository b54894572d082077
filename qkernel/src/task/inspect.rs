//! Whether a task may look into another's memory (`ptrace(2)`, "Ptrace access mode checking").

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::creds::Inspection;
use crate::task::core::Task;
use machine::errno::{Errno, Result};

/// `EPERM`: it may not. Threads of one process always may.
pub fn check(task: &Task, other: &Task, by: Inspection) -> Result<()> {
    if Arc::ptr_eq(&task.process, &other.process) {
        return Ok(());
    }
    let dumpable = other.process.dumpable.load(Ordering::Relaxed) == 1;
    let covers = task.creds.get().covers(&other.creds.get(), dumpable, by);
    if covers { Ok(()) } else { Err(Errno::EPERM) }
}
