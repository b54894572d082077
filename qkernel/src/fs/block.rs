//! Waiting until a file is ready.

use machine::errno::{Errno, Result};
use machine::sched;
use machine::sched::wait::{PollEvents, Waker};
use machine::time;

use crate::fs::file::File;
use crate::fs::poll::PollTable;
use crate::fs::sigio;

/// How often a waiter looks that nobody will tell: rarely enough to cost nothing.
const LOOK_AGAIN_NS: u64 = 20_000_000;

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
    if matches!(first, Err(Errno::EAGAIN)) && events.intersects(PollEvents::WRITABLE) {
        sigio::found_full(file);
    }
    if nonblock || !matches!(first, Err(Errno::EAGAIN)) {
        return first;
    }
    // What it has done so far is told before it sleeps.
    sigio::delivery::deliver();
    let task = sched::current();
    let mut table = PollTable::new(Waker::Task(task.clone()), events);
    file.ops.poll_for(file, Some(&mut table), events);
    let ready = || match attempt() {
        Err(Errno::EAGAIN) => None,
        result => Some(result),
    };
    if table.is_short() {
        drop(table);
        return look_again(deadline_ns, ready);
    }
    let wait = || sched::sleep_until(sched::Sleep::Interruptible, deadline_ns, ready);
    task.sched().waiting.on(1, file.ops.is_from_outside(), wait)?.unwrap_or(Err(Errno::EAGAIN))
}

/// Waits without being told: of a waiter that found no memory to register with, as `read(2)` knows no error for that.
fn look_again<R>(deadline_ns: Option<u64>, mut ready: impl FnMut() -> Option<Result<R>>) -> Result<R> {
    loop {
        let next = time::monotonic_ns().saturating_add(LOOK_AGAIN_NS);
        let until = deadline_ns.map_or(next, |deadline| deadline.min(next));
        if let Some(result) = sched::sleep_until(sched::Sleep::Interruptible, Some(until), &mut ready)? {
            return result;
        }
        if deadline_ns.is_some_and(|deadline| time::monotonic_ns() >= deadline) {
            return Err(Errno::EAGAIN);
        }
    }
}
