//! Out of memory: the process that holds most is killed, be it frames or kernel memory, before the host has to act.

use crate::task::signal::send::kill_process;
use abi::hostcall::REPORT_OOM_KILL;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::limits::TASK_BYTES;
use crate::task::container;
use crate::task::container::FIRST_PID;
use crate::task::core::Task;
use crate::task::process::Process;
use machine::host;
use machine::log::RateLimit;
use machine::mm::account::SANDBOX;
use machine::mm::{PAGE, account, frames};
use machine::sched;
use machine::sync::{Rank, SpinLock};
use machine::time::{NSEC, monotonic_ns};

/// How long a killed process may take to give its memory back before another one is killed.
const PATIENCE_NS: u64 = 2 * NSEC;
/// How long a task that found no memory sleeps before it tries again.
const PAUSE_NS: u64 = 2_000_000;
/// `oom_score_adj` of a process that is killed last.
const NEVER: i32 = -1000;

/// The process that was killed last, and until when the others wait for its memory.
struct Victim {
    process: Weak<Process>,
    until_ns: u64,
}

static VICTIM: SpinLock<Victim> =
    SpinLock::new(Rank::OomVictim, Victim { process: Weak::new(), until_ns: 0 });
static SAID: RateLimit = RateLimit::new();

/// There is no memory for the current task: kills the largest process, unless one that was killed is still ending, and
/// gives that time to end. No lock is held. Whoever calls this tries again then, or ends.
pub fn relieve(task: &Arc<Task>) {
    SANDBOX.relieve();
    if !is_one_ending() {
        kill_largest(task);
    }
    if !task.process.is_exiting() {
        let until = Some(monotonic_ns() + PAUSE_NS);
        // A signal ends the pause as well.
        let _ = sched::sleep_until(sched::Sleep::Interruptible, until, || None::<()>);
    }
}

/// Makes room for a process that comes in from outside, at the cost of the largest; gives up when that does not help.
pub fn make_room(task: &Arc<Task>, bytes: usize) {
    let deadline = monotonic_ns() + 2 * PATIENCE_NS;
    let is_short = || account::check(bytes).is_err() || !frames::has_any();
    while is_short() && monotonic_ns() < deadline && !task.process.is_exiting() {
        relieve(task);
    }
}

fn is_one_ending() -> bool {
    let victim = VICTIM.lock();
    let process = victim.process.upgrade();
    monotonic_ns() < victim.until_ns && process.is_some_and(|process| !process.tasks.lock().is_empty())
}

fn kill_largest(task: &Arc<Task>) {
    let all: Vec<Arc<Process>> =
        container::all().iter().flat_map(|container| container.processes()).collect();
    let candidates = all.iter().filter(|process| !process.is_exiting() && !process.tasks.lock().is_empty());
    // The largest of the user who has most in all: many small processes do not get a larger one of somebody else's killed.
    // The first process's end is the sandbox's, so it goes only if nobody else is left.
    let rows: Vec<_> = candidates.map(|process| (owner(process), points(process), process)).collect();
    let mut totals = BTreeMap::<u32, i64>::new();
    for (owner, points, _) in rows.iter().filter(|(.., process)| process.pid != FIRST_PID) {
        let total = totals.entry(*owner).or_default();
        *total = total.saturating_add((*points).max(0));
    }
    let rank = |(owner, points, process): &&(u32, i64, &Arc<Process>)| {
        (process.pid != FIRST_PID, *points >= 0, totals.get(owner).copied(), *points)
    };
    let (_, points, process) = rows.iter().max_by_key(rank).copied().unwrap_or((0, 0, &task.process));
    task.process.container.events.out_of_memory.fetch_add(1, Ordering::Relaxed);
    process.container.events.oom_kills.fetch_add(1, Ordering::Relaxed);
    // Before the kill, which may be the sandbox's end.
    host::report_container(REPORT_OOM_KILL, process.container.id.0, 0);
    if SAID.allow() {
        machine::info!(
            "out of memory: process {} is killed, {} KiB are its",
            process.pid,
            points.max(0) / 1024
        );
    }
    *VICTIM.lock() =
        Victim { process: Arc::downgrade(process), until_ns: monotonic_ns().saturating_add(PATIENCE_NS) };
    kill_process(process, crate::signals::SIGKILL);
}

fn owner(process: &Arc<Process>) -> u32 {
    process.any_task().map_or(0, |task| task.creds.get().uid)
}

/// Bytes that would come back with a process's end, more or less as its `oom_score_adj` says.
fn points(process: &Arc<Process>) -> i64 {
    let adjust = process.oom_score_adj.load(Ordering::Relaxed);
    if adjust == NEVER {
        return -1;
    }
    let total = (frames::stats().limit_frames as u64 * PAGE).cast_signed();
    let bytes = i64::try_from(footprint(process)).unwrap_or(i64::MAX);
    bytes.saturating_add(total / 1000 * i64::from(adjust)).max(0)
}

/// Bytes of applications' and of kernel memory that a process holds; of what it shares with others its part.
fn footprint(process: &Arc<Process>) -> u64 {
    let mut bytes = 0_u64;
    for task in process.tasks.lock().iter() {
        // Filters that threads have in common count for each of them.
        bytes = bytes.saturating_add(TASK_BYTES as u64).saturating_add(task.confinement.filter_bytes());
    }
    let Some(task) = process.any_task() else { return bytes };
    if let Some(aspace) = task.aspace() {
        bytes = bytes.saturating_add(aspace.sizes().1).saturating_add(aspace.kernel_bytes() as u64);
    }
    if let Some(files) = task.files() {
        bytes = bytes.saturating_add(files.held_bytes());
    }
    bytes
}
