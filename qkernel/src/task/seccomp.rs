//! Changes of a task's confinement, by itself and by others of its process.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use crate::seccomp::filter::NewFilter;
use crate::task::confinement::Mode;
use crate::task::core::Task;
use machine::errno::{Errno, Result};

/// The caller keeps to strict mode from now on; `EINVAL` if it has filters.
pub fn become_strict(task: &Task) -> Result<()> {
    let _tasks = task.process.tasks.lock();
    match task.confinement.mode() {
        Mode::Filter => Err(Errno::EINVAL),
        _ => {
            task.confinement.mode.store(Mode::Strict as u32, Ordering::Release);
            Ok(())
        }
    }
}

/// The outcome of adding a filter.
pub enum Added {
    Done,
    /// A thread has filters of its own, so nothing was changed.
    Differs {
        tid: u32,
    },
}

/// Gives the caller a filter more, and with `all_threads` every thread of its process the caller's chain.
pub fn add(task: &Arc<Task>, filter: NewFilter, all_threads: bool) -> Result<Added> {
    let tasks = task.process.tasks.lock();
    let mine = &task.confinement;
    if mine.mode() == Mode::Strict {
        return Err(Errno::EINVAL);
    }
    let older = mine.filter.lock().clone();
    let is_other = |other: &&Arc<Task>| !Arc::ptr_eq(other, task) && !other.confinement.is_over();
    let others = || tasks.iter().filter(|other| all_threads && is_other(other));
    let follows = |other: &Task| match other.confinement.mode() {
        Mode::Off => true,
        Mode::Strict => false,
        Mode::Filter => {
            let theirs = other.confinement.filter.lock();
            older.as_ref().is_some_and(|older| older.extends(theirs.as_deref()))
        }
    };
    if let Some(other) = others().find(|other| !follows(other)) {
        return Ok(Added::Differs { tid: other.tid() });
    }
    let chain = filter.onto(older)?;
    for thread in others().chain(core::iter::once(task)) {
        if mine.no_new_privs() {
            thread.confinement.set_no_new_privs();
        }
        let former = thread.confinement.filter.lock().replace(chain.clone());
        drop(former);
        thread.confinement.mode.store(Mode::Filter as u32, Ordering::Release);
    }
    Ok(Added::Done)
}
