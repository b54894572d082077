//! Files to wait for.

use alloc::sync::Arc;

use crate::fs::file::File;
use crate::fs::host_poll;
use crate::fs::poll::PollTable;
use machine::errno::{Errno, Result};
use machine::sched;
use machine::sched::wait::PollEvents;
use machine::sched::wait::Waker;
use machine::sched::work;

/// One file to wait for.
pub(super) struct Watched {
    pub(super) file: Option<Arc<File>>,
    /// The events that end the wait.
    pub(super) events: PollEvents,
    pub(super) found: PollEvents,
}

impl Watched {
    fn look(&mut self, table: Option<&mut PollTable>) {
        if let Some(file) = &self.file {
            self.found = file.ops.poll_for(file, table, self.events) & self.events;
        }
    }
}

/// A file to wait for, alone or beside its descriptor.
pub(super) trait Watch {
    fn watched(&mut self) -> &mut Watched;
}

impl Watch for Watched {
    fn watched(&mut self) -> &mut Watched {
        self
    }
}

impl Watch for (usize, Watched) {
    fn watched(&mut self) -> &mut Watched {
        &mut self.1
    }
}

/// Looks at all files; how many have something to report.
fn scan<W: Watch>(watched: &mut [W]) -> usize {
    watched.iter_mut().map(Watch::watched).fold(0, |count, one| {
        one.look(None);
        work::count(1);
        count + usize::from(!one.found.is_empty())
    })
}

/// Waits until a file has something to report, or `deadline_ns` (monotonic; `None`: for ever, 0: not at all).
/// Returns how many have; `Errno::RESTART` by a signal.
pub(super) fn wait_for<W: Watch>(watched: &mut [W], deadline_ns: Option<u64>) -> Result<usize> {
    let count = scan(watched);
    if count > 0 {
        return Ok(count);
    }
    if deadline_ns == Some(0) {
        host_poll::look();
        let count = scan(watched);
        // Who never waits gets its signals here as well.
        let is_interrupted = count == 0 && crate::task::core::current().has_pending();
        return if is_interrupted { Err(Errno::RESTART) } else { Ok(count) };
    }
    let task = crate::task::core::current();
    let mut table = PollTable::new(Waker::Task(task.clone()), PollEvents::all());
    for one in watched.iter_mut().map(Watch::watched) {
        table.set_events(one.events);
        one.look(Some(&mut table));
        work::count(2);
    }
    if table.is_short() {
        return Err(Errno::ENOMEM);
    }
    let files = watched.iter_mut().filter_map(|one| one.watched().file.as_ref());
    let (count, outside) =
        files.fold((0, false), |(count, outside), file| (count + 1, outside || file.ops.is_from_outside()));
    let ready = || Some(scan(watched)).filter(|count| *count > 0);
    let wait = || sched::sleep_until(sched::Sleep::Interruptible, deadline_ns, ready);
    Ok(task.thread.sched.waiting.on(count, outside, wait)?.unwrap_or(0))
}
