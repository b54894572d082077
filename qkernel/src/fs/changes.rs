//! Changes of something that a file shows, for those who poll the file.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::fs::poll::PollTable;
use machine::sched::wait::{PollEvents, WaitQueue};

/// Counts the changes, and wakes who waits for one.
#[derive(Default)]
pub struct Changes {
    count: AtomicU32,
    queue: Arc<WaitQueue>,
}

impl Changes {
    /// It has changed. Called without spin locks.
    pub fn tell(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.queue.wake(PollEvents::all());
    }
}

/// The number of changes that one open file has told its pollers of.
pub struct Seen {
    changes: Arc<Changes>,
    count: AtomicU32,
}

impl Seen {
    /// Begins with the next change.
    pub fn of(changes: Arc<Changes>) -> Self {
        let count = AtomicU32::new(changes.count.load(Ordering::Acquire));
        Self { changes, count }
    }

    /// It can always be read. After a change an error and urgent data hold, for one look: that which registers for
    /// changes leaves them to the look that follows.
    pub fn poll(&self, table: Option<&mut PollTable>) -> PollEvents {
        let registers = table.is_some();
        if let Some(table) = table {
            table.add(&self.changes.queue);
        }
        let now = self.changes.count.load(Ordering::Acquire);
        let told = if registers {
            self.count.load(Ordering::Relaxed)
        } else {
            self.count.swap(now, Ordering::Relaxed)
        };
        let changed = PollEvents::ERR | PollEvents::PRI;
        PollEvents::READABLE | if told == now { PollEvents::empty() } else { changed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_told_once_to_each_file() {
        let changes = Arc::new(Changes::default());
        let (first, second) = (Seen::of(changes.clone()), Seen::of(changes.clone()));
        assert_eq!(first.poll(None), PollEvents::READABLE);
        changes.tell();
        changes.tell();
        let changed = PollEvents::READABLE | PollEvents::ERR | PollEvents::PRI;
        assert_eq!(first.poll(None), changed);
        assert_eq!(first.poll(None), PollEvents::READABLE);
        assert_eq!(second.poll(None), changed);
    }
}
