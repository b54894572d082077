//! The moment at which the sandbox's memory is taken for another VMM: it is asleep, no task runs, and no CPU but this one is in the
//! kernel. Under the other VMM the kernel begins at its entry and is revived ([`crate::boot`]).

use core::sync::atomic::{AtomicI64, Ordering};

use abi::hostcall as hc;

use super::HIBERNATION;
use super::state_machine::HibernationMachine;
use machine::errno::Errno;
use machine::host;
use machine::mm::window;
use machine::platform;
use machine::sched;

/// The request that has not been answered; 0: none.
static WANTED: AtomicI64 = AtomicI64::new(0);

/// The memory is to be taken.
pub fn request(request: i64) {
    WANTED.store(request, Ordering::SeqCst);
}

/// Whether it is to be taken as soon as nothing is in the way.
pub(super) fn is_wanted() -> bool {
    WANTED.load(Ordering::SeqCst) != 0
}

/// Has the memory taken if that is wanted and nothing is in the way, as a sleep that was ordered is; then it does not return. For the
/// idle loop.
pub fn attempt() {
    if !is_wanted() {
        return;
    }
    let is_between = |machine: &HibernationMachine| machine.is_at_work() || machine.is_wanted();
    if is_between(&HIBERNATION.machine.lock()) {
        return;
    }
    let Some(frozen) = sched::freeze() else { return };
    // In what is taken there is no request any more.
    let request = WANTED.swap(0, Ordering::SeqCst);
    if request == 0 {
        // Another CPU was faster.
        return;
    }
    let is_asleep = HIBERNATION.machine.lock().is_hibernated() && window::is_empty();
    let result = match is_asleep {
        true => {
            sched::fetch_all(&frozen);
            platform::call(hc::SNAPSHOT, [request.cast_unsigned(), 0, 0, 0, 0, 0])
        }
        false => Err(Errno::EBUSY),
    };
    drop(frozen);
    match result {
        Err(Errno::EAGAIN) => {
            // A later request counts.
            let _ = WANTED.compare_exchange(0, request, Ordering::SeqCst, Ordering::SeqCst);
        }
        _ => host::report(hc::REPORT_NOT_TAKEN, request),
    }
}
