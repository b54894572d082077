//! The state of a process that job control stops.

/// How far the stop of a process has got. Guarded by its own lock inside the signal lock.
#[derive(Default)]
pub struct StopState {
    /// A stop signal was taken and nothing has continued the process since.
    pub(super) requested: bool,
    /// The signal that stopped it.
    pub(super) signal: u32,
    /// Changes with every stop and continue.
    pub(super) generation: u64,
    /// Threads that have come to rest in this generation.
    pub(super) at_rest: usize,
    /// The parent was told.
    pub(super) reported: bool,
}
