//! How a whole process begins to end.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::task::core::Task;
use crate::task::process::{Process, call_attention};

/// The wait status of a normal end.
pub const fn exited(code: i32) -> i32 {
    (code & 0xff) << 8
}

/// Makes a whole process end with this wait status (the first one counts).
pub fn begin_group_exit(process: &Arc<Process>, status: i32) {
    process.group_exit.lock().get_or_insert(status);
    call_attention(process);
    let tasks: Vec<Arc<Task>> = process.tasks.lock().clone();
    tasks.iter().for_each(|task| end_vfork_wait(task));
}

/// A task that is to end waits for no `vfork(2)` child any longer, which may be what ends it.
pub fn end_vfork_wait(task: &Task) {
    let waits_for = task.vfork_wait.lock().clone();
    if let Some(child) = waits_for {
        child.look_again();
    }
}
