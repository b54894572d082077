//! The task that a system call works for.

use alloc::sync::Arc;
use core::ops::Deref;

use crate::fs::caller::CallerCtx;
use crate::task::container::Container;
use crate::task::core::Task;
use crate::task::pid_space::PidSpace;
use crate::task::process::Process;

/// A system call's view of its caller: the task, and its files and memory.
pub struct Ctx<'a> {
    pub task: &'a Arc<Task>,
    files: CallerCtx<'a>,
}

impl<'a> Ctx<'a> {
    /// The context of the current task, which still has its memory and its descriptors.
    pub fn new(task: &'a Arc<Task>) -> Self {
        Self { task, files: CallerCtx::new(&**task) }
    }

    /// The caller's container.
    pub fn container(&self) -> &Arc<Container> {
        &self.task.process.container
    }

    /// The process ids that the caller sees.
    pub fn pids(&self) -> &Arc<PidSpace> {
        &self.task.process.container.pids
    }

    /// The caller's process.
    pub fn process(&self) -> &Arc<Process> {
        &self.task.process
    }
}

impl<'a> Deref for Ctx<'a> {
    type Target = CallerCtx<'a>;
    fn deref(&self) -> &CallerCtx<'a> {
        &self.files
    }
}
