//! Futexes (skeleton).

use alloc::sync::Arc;

use super::Task;
use crate::mm::UserMemory;

/// Wakes up to `count` waiters of the shared or private futex at `addr`; how many there were.
pub fn wake_address(_user: &UserMemory, _addr: u64, _count: usize) -> usize {
    0
}

/// Handles the robust futexes a dying task holds (`set_robust_list(2)`).
pub fn release_robust_list(_task: &Arc<Task>, _user: &UserMemory) {}
