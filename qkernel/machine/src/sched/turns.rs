//! Others get their turn while a task has long work in the kernel.

use core::sync::atomic::Ordering;

use super::cpu::{current, this_cpu};
use super::queue::QueueClass;
use super::schedule::{schedule, schedule_idle};
use super::sleep::settle;
#[cfg(feature = "checks")]
use super::stretch::end_stretch;
use super::task::SchedState;
use super::{state, timer};
use crate::errno::{Errno, Result};
use crate::{arch, lock_order, platform, time};

/// How often long work shows the host that it goes on.
const SHOWN_EVERY_NS: u64 = 100_000_000;

/// Gives the CPU to the next task if there is one; the current one stays runnable. Timers fire and news of the host are taken as by
/// [`let_others_go_on`].
pub fn yield_now() {
    if !take_news(current().sched()) && state::has_waiting() {
        schedule(QueueClass::Kernel);
    }
}

/// Fires timers that are due, and has the idle task take news of the host if there are any; whether it did.
fn take_news(state: &SchedState) -> bool {
    // An idle task comes back only once its CPU has nothing else to do, and may hold a mutex that others wait for.
    if state.is_idle() {
        return false;
    }
    // They take no mutex, so it does not matter what the task holds.
    timer::run_expired();
    let has_news = has_news();
    if has_news {
        // To act on news may take a mutex that the task holds: the idle task can wait for it.
        schedule_idle();
    }
    has_news
}

/// Work of the kernel that takes long says so now and then: timers that are due fire, news of the host are taken, others run whose
/// turn it is, and the host sees that it goes on. `EINTR`: the task is to end. The caller may sleep.
#[cfg_attr(feature = "checks", track_caller)]
pub fn go_on() -> Result<()> {
    let task = current();
    if task.is_to_end() {
        return Err(Errno::EINTR);
    }
    let_others_go_on();
    Ok(())
}

/// [`go_on`] for work that a task finishes even if it is to end.
#[cfg_attr(feature = "checks", track_caller)]
pub fn let_others_go_on() {
    lock_order::may_sleep();
    let task = current();
    // About to sleep until what it does now succeeds, it asks once more then.
    settle(&task);
    let sched = task.sched();
    #[cfg(feature = "checks")]
    end_stretch(core::panic::Location::caller());
    if !take_news(sched) && !sched.is_idle() && state::has_waiting() {
        let is_urgent = sched.urgent.load(Ordering::Relaxed) != 0;
        let_others_in(sched, if is_urgent { QueueClass::Urgent } else { QueueClass::Kernel });
    }
    let now = time::monotonic_ns();
    let shown = &this_cpu().shown_ns;
    if now.wrapping_sub(shown.load(Ordering::Relaxed)) >= SHOWN_EVERY_NS {
        shown.store(now, Ordering::Relaxed);
        platform::show_progress();
    }
}

/// Gives the CPU to the next task if the current one's time slice is over.
pub(super) fn let_others_in(state: &SchedState, class: QueueClass) {
    if time::monotonic_ns() >= state.slice_end_ns.load(Ordering::Relaxed) {
        state.involuntary_switches.fetch_add(1, Ordering::Relaxed);
        schedule(class);
    }
}

/// Whether the host has told this CPU of something that it has yet to look at.
pub fn has_news() -> bool {
    arch::cpu().pending.load(Ordering::SeqCst) != 0
}
