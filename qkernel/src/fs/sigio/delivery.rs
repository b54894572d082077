//! Delivery: the list of notices with something to tell, and who sends it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use machine::sched;
use machine::sched::wait::{PollEvents, Wake};
use machine::sync::{Rank, SpinLock};

use super::{Asking, Notice, SIGNALS_AT_ONCE};

/// Most notices that a task sees to at once.
const NOTICES_AT_ONCE: usize = 16;
/// Most notices, and most signals, where no task runs.
const EVENTS_AT_ONCE: usize = 8;

/// Notices with something to deliver, linked by [`Notice::next`]: putting one on the list needs no memory.
struct Due {
    first: Option<Arc<Notice>>,
    last: Option<Arc<Notice>>,
    count: usize,
}

impl Due {
    fn append(&mut self, notice: Arc<Notice>) {
        match self.last.replace(notice.clone()) {
            Some(last) => *last.next.lock() = Some(notice),
            None => self.first = Some(notice),
        }
        self.count += 1;
    }
}

static DUE: SpinLock<Due> = SpinLock::new(Rank::NoticesDue, Due { first: None, last: None, count: 0 });
static DUE_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Somebody left notices to others.
static IS_LEFT: AtomicBool = AtomicBool::new(false);

impl Wake for Notice {
    fn wake(&self, events: PollEvents) {
        let wanted = if self.is_on.load(Ordering::Acquire) { PollEvents::all() } else { PollEvents::PRI };
        let events = events & wanted;
        if events.is_empty() {
            return;
        }
        self.noted.fetch_or(events.bits(), Ordering::SeqCst);
        if self.listed.swap(true, Ordering::SeqCst) {
            return;
        }
        // The queue that calls holds the notice, so this isn't the last reference.
        if let Some(me) = self.me.upgrade() {
            push(me);
        }
    }
}

/// Sends what is due, up to a bound. The caller is a task that may sleep.
#[inline]
pub fn deliver() {
    if DUE_COUNT.load(Ordering::SeqCst) != 0 {
        deliver_due(Asking::Yes, NOTICES_AT_ONCE, SIGNALS_AT_ONCE);
    }
}

/// Sends what is due, up to a bound, where no task runs: notices whose files must be asked first are left to the next
/// task.
pub fn deliver_events() {
    if DUE_COUNT.load(Ordering::SeqCst) != 0 {
        deliver_due(Asking::Later, EVENTS_AT_ONCE, EVENTS_AT_ONCE);
    }
}

/// A CPU that has nothing to do sends some of what others left. It looks for other work before it asks again. `false`: nothing is left.
pub fn help() -> bool {
    let is_left = IS_LEFT.load(Ordering::SeqCst);
    if is_left {
        deliver_due(Asking::Never, EVENTS_AT_ONCE, EVENTS_AT_ONCE);
    }
    is_left
}

fn push(notice: Arc<Notice>) {
    let mut due = DUE.lock();
    due.append(notice);
    DUE_COUNT.store(due.count, Ordering::SeqCst);
}

/// Takes the first notice off the list. One that has to be asked, where that must wait for a task, goes to the end: the task finds it
/// there at any time.
fn pop(asking: Asking) -> Option<Arc<Notice>> {
    let mut due = DUE.lock();
    let notice = due.first.take()?;
    due.first = notice.next.lock().take();
    // The notice is still held, so this drops nothing.
    if due.first.is_none() {
        due.last = None;
    }
    due.count -= 1;
    if asking == Asking::Later && notice.has_to_be_asked() {
        due.append(notice);
        return None;
    }
    DUE_COUNT.store(due.count, Ordering::SeqCst);
    Some(notice)
}

/// Sees to at most so many notices, and sends at most about so many signals.
fn deliver_due(asking: Asking, notices: usize, mut room: usize) {
    // What comes meanwhile is the next one's.
    let due = DUE_COUNT.load(Ordering::SeqCst);
    let mut has_rest = due > notices;
    for _ in 0..due.min(notices) {
        if room == 0 {
            has_rest = true;
            break;
        }
        let Some(notice) = pop(asking) else { continue };
        if !notice.send_all_due(asking, &mut room) {
            push(notice);
            has_rest = true;
        }
    }
    leave(has_rest);
}

/// Has an idle CPU go on if something is left.
fn leave(has_rest: bool) {
    if !has_rest {
        if DUE_COUNT.load(Ordering::SeqCst) == 0 {
            IS_LEFT.store(false, Ordering::SeqCst);
            // Who left something meanwhile had put it on the list before.
            if DUE_COUNT.load(Ordering::SeqCst) != 0 {
                IS_LEFT.store(true, Ordering::SeqCst);
            }
        }
    } else if !IS_LEFT.swap(true, Ordering::SeqCst) {
        sched::rouse_another();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::eventfd;
    use crate::fs::file::OpenFlags;

    #[test]
    fn the_list_keeps_its_order_and_needs_no_memory() {
        let file = eventfd::EventFile::open(0, false, OpenFlags::empty()).unwrap();
        let notices = [(); 3].map(|()| Notice::new(&file).unwrap());
        for notice in &notices {
            push(notice.clone());
        }
        for notice in &notices[..2] {
            assert!(pop(Asking::Yes).is_some_and(|first| Arc::ptr_eq(&first, notice)));
        }
        push(notices[0].clone());
        for notice in [&notices[2], &notices[0]] {
            assert!(pop(Asking::Yes).is_some_and(|first| Arc::ptr_eq(&first, notice)));
        }
        assert!(pop(Asking::Yes).is_none() && DUE_COUNT.load(Ordering::Relaxed) == 0);
    }
}
