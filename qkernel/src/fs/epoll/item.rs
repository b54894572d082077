//! A file's membership in a set, and the list of those members that may be ready.

use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::fs::file::File;
use crate::fs::poll::PollTable;
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::sched::wait::{PollEvents, Readers, WaitQueue, Wake};
use machine::sync::SpinLock;

use super::HOW;

/// The ready list, and the tasks that wait for it.
pub(super) struct Ready {
    pub(super) list: SpinLock<VecDeque<Arc<Item>>>,
    /// Tasks in `epoll_wait(2)`: one event wakes one of them.
    pub(super) waiters: WaitQueue,
    /// Tasks that poll the set itself.
    pub(super) pollers: Arc<WaitQueue>,
}

impl Ready {
    pub(super) fn is_empty(&self) -> bool {
        self.list.lock().is_empty()
    }

    /// Puts an item on the list unless it is there.
    pub(super) fn push(&self, item: &Arc<Item>) -> bool {
        if item.listed.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.list.lock().push_back(item.clone());
        true
    }

    pub(super) fn pop(&self) -> Option<Arc<Item>> {
        let item = self.list.lock().pop_front()?;
        // A waker that saw the item listed changed the file's state before that; the look that follows sees the change.
        item.listed.swap(false, Ordering::AcqRel);
        Some(item)
    }

    /// Makes room for `items` at once: items are put on the list where no allocation may fail.
    pub(super) fn reserve(&self, items: usize) -> Result<()> {
        let mut list = self.list.lock();
        let more = items.saturating_sub(list.len());
        if items > list.capacity() {
            account::check(2 * items * size_of::<Arc<Item>>())?;
            list.try_reserve(more).map_err(|_| Errno::ENOMEM)?;
        }
        Ok(())
    }

    /// Takes removed items off the list.
    pub(super) fn purge(&self) {
        let mut gone = Vec::new();
        let mut list = self.list.lock();
        list.retain(|item| {
            let removed = item.removed.load(Ordering::Acquire);
            if removed {
                gone.push(item.clone());
            }
            !removed
        });
        drop(list);
    }

    pub(super) fn announce(&self) {
        self.waiters.wake_one();
        self.pollers.wake(PollEvents::READABLE);
    }
}

/// A file in a set.
pub(super) struct Item {
    pub(super) me: Weak<Item>,
    pub(super) file: Weak<File>,
    /// The file's id and the descriptor it was added by.
    pub(super) key: (u64, i32),
    pub(super) ready: Arc<Ready>,
    pub(super) events: AtomicU32,
    pub(super) data: SpinLock<u64>,
    /// On the ready list.
    pub(super) listed: AtomicBool,
    /// Out of the set.
    pub(super) removed: AtomicBool,
    /// Registrations with the file's queues.
    pub(super) table: SpinLock<Option<PollTable>>,
}

impl Wake for Item {
    fn wake(&self, events: PollEvents) {
        if self.removed.load(Ordering::Acquire) || !self.interest().intersects(events) {
            return;
        }
        // The queue that calls holds the item, so this isn't the last reference.
        if let Some(me) = self.me.upgrade()
            && self.ready.push(&me)
        {
            self.ready.announce();
        }
    }

    fn add_readers(&self, readers: &mut Readers) {
        if !self.removed.load(Ordering::Acquire) && self.interest().intersects(PollEvents::READABLE) {
            self.ready.waiters.add_readers(readers, false);
            self.ready.pollers.add_readers(readers, false);
        }
    }
}

impl Item {
    /// The events it reports; none while a one-shot item is spent.
    fn interest(&self) -> PollEvents {
        let events = self.events.load(Ordering::Acquire);
        if events & !HOW == 0 {
            return PollEvents::empty();
        }
        PollEvents::from_bits_truncate(events)
    }

    /// The events that hold now; `None` when the file is closed.
    pub(super) fn look(&self) -> Option<PollEvents> {
        let file = self.file.upgrade()?;
        let interest = self.interest();
        Some(file.ops.poll_for(&file, None, interest) & interest)
    }

    /// Ends the membership.
    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::Release);
        let table = self.table.lock().take();
        drop(table);
    }
}
