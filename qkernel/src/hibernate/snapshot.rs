//! The moment at which the sandbox's memory is taken for another VMM: it is asleep, no task runs, and no CPU but this one is in the
//! kernel. Under the other VMM the kernel begins at its entry and is revived ([`crate::boot`]).

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use abi::hostcall as hc;

use super::HIBERNATION;
use super::state_machine::HibernationMachine;
use machine::errno::Errno;
use machine::host;
use machine::mm::window;
use machine::platform;
use machine::sched;
use machine::time;

/// The request that has not been answered; 0: none.
static WANTED: AtomicI64 = AtomicI64::new(0);
/// Until when it is tried (monotonic).
static UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// How long it is tried.
const PATIENCE_NS: u64 = 5_000_000_000;

/// The memory is to be taken. A request that came before and has not been answered is refused.
pub fn request(request: i64) {
    UNTIL_NS.store(time::monotonic_ns().saturating_add(PATIENCE_NS), Ordering::SeqCst);
    refuse(WANTED.swap(request, Ordering::SeqCst));
}

fn refuse(request: i64) {
    if request != 0 {
        host::report(hc::REPORT_NOT_TAKEN, request);
    }
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
    if time::monotonic_ns() > UNTIL_NS.load(Ordering::SeqCst) {
        refuse(WANTED.swap(0, Ordering::SeqCst));
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
            if WANTED.compare_exchange(0, request, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                refuse(request);
            }
        }
        _ => refuse(request),
    }
}
