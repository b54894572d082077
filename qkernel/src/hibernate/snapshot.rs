//! The moment at which the sandbox's memory is taken for another VMM: it is asleep, no task runs, and no CPU but this one is in the
//! kernel. Under the other VMM the kernel begins at its entry and is revived ([`crate::boot`]).

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use abi::hostcall as hc;
use abi::report::Report;

use super::HIBERNATION;
use super::regions;
use super::state_machine::HibernationMachine;
use crate::fs::caches;
use crate::fs::hostfs::written;
use crate::net::inet::own;
use crate::task::container::{self, ContainerId};
use machine::errno::{Errno, Result};
use machine::host;
use machine::mm::{residency, window};
use machine::objects;
use machine::platform;
use machine::reopen::{self, Connections};
use machine::sched;
use machine::sched::Frozen;
use machine::time;

/// The request that has not been answered; 0: none.
static WANTED: AtomicI64 = AtomicI64::new(0);
/// The next VMM will have none of this one's files.
static IS_IMAGE: AtomicBool = AtomicBool::new(false);
/// Connections are a reason to refuse it.
static IS_UNCONNECTED: AtomicBool = AtomicBool::new(false);
/// Until when it is tried (monotonic).
static UNTIL_NS: AtomicU64 = AtomicU64::new(0);
/// How long it is tried.
const PATIENCE_NS: u64 = 5_000_000_000;
/// How long it is tried before tasks may run in between.
const BUSY_NS: u64 = 20_000_000;

/// The memory is to be taken. `flags`: of the event ([`hc::EVENT_SNAPSHOT`]). A request that came before and has not been answered is
/// refused.
pub fn request(request: i64, flags: u32) {
    IS_IMAGE.store(flags & hc::EVENT_FLAG_IMAGE != 0, Ordering::SeqCst);
    IS_UNCONNECTED.store(flags & hc::EVENT_FLAG_UNCONNECTED != 0, Ordering::SeqCst);
    UNTIL_NS.store(time::monotonic_ns().saturating_add(PATIENCE_NS), Ordering::SeqCst);
    refuse(WANTED.swap(request, Ordering::SeqCst), "another request came");
}

/// An image that was written while the sandbox ran is written.
pub fn image_is_over() {
    let _ = residency::is_staying();
}

fn refuse(request: i64, why: &str) {
    if request != 0 {
        host::report(&Report::NotTaken { request: request.cast_unsigned(), why: why.as_bytes() });
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
        refuse(WANTED.swap(0, Ordering::SeqCst), "it did not come to rest in time");
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
    let is_image = IS_IMAGE.load(Ordering::SeqCst);
    let result = take(&frozen, request, is_image);
    if is_image {
        reopen::note_connections(Connections::default());
        own::let_go();
    }
    drop(frozen);
    match result {
        // It was taken, and the sandbox goes on here as well.
        Ok(Ok(_)) => {}
        Ok(Err(error)) => not_taken(request, error),
        Err(why) => refuse(request, &why),
    }
}

/// Has the memory of a frozen sandbox taken; the outer error says why it may not be.
fn take(frozen: &Frozen, request: i64, is_image: bool) -> core::result::Result<Result<u64>, String> {
    if !is_asleep() {
        return Err("it is not asleep any more".into());
    }
    match residency::is_staying() {
        true if !is_image => return Err("its memory has not gone to its home".into()),
        true => {}
        // What is known by another image would be nowhere in this one.
        false => residency::end_stay(),
    }
    if is_image {
        caches::shrink();
        let ties = objects::ties().map_err(|_| "there is no memory left to list its files")?;
        let containers: Vec<ContainerId> = container::all().iter().map(|container| container.id).collect();
        reopen::check(&ties, &containers)?;
        let kept = own::hold();
        if IS_UNCONNECTED.load(Ordering::SeqCst) {
            reopen::check_unconnected(&ties, &kept.pairs)?;
        }
        reopen::note_connections(kept);
        reopen::note(&ties)?;
        host::report(&Report::Written { lines: &written::list(&ties) });
    }
    if is_image {
        regions::tell(frozen);
    }
    sched::fetch_all(frozen);
    Ok(call_out(request, is_image))
}

/// Has the VMM take the memory. Other CPUs may be at work for a moment on news of connections that were read here.
fn call_out(request: i64, is_image: bool) -> Result<u64> {
    let until_ns = time::monotonic_ns().saturating_add(BUSY_NS);
    loop {
        if !is_asleep() {
            return Err(Errno::EAGAIN);
        }
        match platform::call(hc::SNAPSHOT, [request.cast_unsigned(), 0, 0, 0, 0, 0]) {
            Err(Errno::EAGAIN) if is_image && time::monotonic_ns() < until_ns => {
                platform::relax();
            }
            taken => return taken,
        }
    }
}

fn is_asleep() -> bool {
    HIBERNATION.machine.lock().is_hibernated() && window::is_empty()
}

fn not_taken(request: i64, error: Errno) {
    match error {
        Errno::EAGAIN => {
            // A later request counts.
            if WANTED.compare_exchange(0, request, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                refuse(request, "another request came");
            }
        }
        _ => refuse(request, "the VMM could not take it"),
    }
}
