//! Whether a process is stopped, and how its stop ends.

use core::sync::atomic::Ordering;

use crate::task::process::Process;

/// A process was continued; what its parent hears.
#[derive(Clone, Copy)]
pub struct Resumed {
    /// The stop was complete, so the continuation is news.
    pub(super) tell: bool,
}

/// Whether the process is stopped, or about to be.
pub fn is_stopped(process: &Process) -> bool {
    process.stopped.load(Ordering::SeqCst)
}

/// `SIGCONT`: ends a stop. The caller holds the signal lock and calls [`resume`](super::send) without it.
pub fn end(process: &Process) -> Option<Resumed> {
    let mut stop = process.stop.lock();
    stop.requested = false;
    if !process.stopped.swap(false, Ordering::SeqCst) {
        return None;
    }
    stop.generation += 1;
    stop.at_rest = 0;
    Some(Resumed { tell: stop.reported })
}
