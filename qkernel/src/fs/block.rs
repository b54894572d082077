//! Waiting until a file is ready.

use machine::errno::{Errno, Result};
use machine::sched;
use machine::sched::wait::{PollEvents, Waker};

use crate::fs::file::File;
use crate::fs::poll::PollTable;

/// Tries `attempt` until it isn't `EAGAIN`, sleeping in between until one of `events` may hold on `file`.
///
/// With `nonblock` the first answer counts. `Errno::RESTART` when a signal comes, `Errno::EAGAIN` at `deadline_ns`.
pub fn block_on<R>(
    file: &File,
    events: PollEvents,
    nonblock: bool,
    deadline_ns: Option<u64>,
    mut attempt: impl FnMut() -> Result<R>,
) -> Result<R> {
    let first = attempt();
    if nonblock || !matches!(first, Err(Errno::EAGAIN)) {
        return first;
    }
    let mut table = PollTable::new(Waker::Task(sched::current()), events);
    file.ops.poll_for(file, Some(&mut table), events);
    let ready = || match attempt() {
        Err(Errno::EAGAIN) => None,
        result => Some(result),
    };
    sched::sleep_until(sched::Sleep::Interruptible, deadline_ns, ready)?.unwrap_or(Err(Errno::EAGAIN))
}
